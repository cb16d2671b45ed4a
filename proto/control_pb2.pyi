from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("version", "protocol", "run", "ticket", "name", "address", "certificate_request", "device", "may_dial_out", "oldest_protocol", "time")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAY_DIAL_OUT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    version: str
    protocol: int
    run: str
    ticket: str
    name: str
    address: str
    certificate_request: bytes
    device: Device
    may_dial_out: bool
    oldest_protocol: int
    time: float
    def __init__(self, version: _Optional[str] = ..., protocol: _Optional[int] = ..., run: _Optional[str] = ..., ticket: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., may_dial_out: bool = ..., oldest_protocol: _Optional[int] = ..., time: _Optional[float] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "description", "tflops", "memory_bytes", "cores", "upload_bps", "hours", "devices", "main_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BPS_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    description: str
    tflops: float
    memory_bytes: int
    cores: int
    upload_bps: float
    hours: float
    devices: int
    main_bytes: int
    def __init__(self, kind: _Optional[str] = ..., description: _Optional[str] = ..., tflops: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., cores: _Optional[int] = ..., upload_bps: _Optional[float] = ..., hours: _Optional[float] = ..., devices: _Optional[int] = ..., main_bytes: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("refused", "name", "session", "secret", "certificate", "authority", "job", "facts", "term", "dials_out", "certificate_life", "protocol", "passes", "over")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DIALS_OUT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_LIFE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    refused: str
    name: str
    session: str
    secret: str
    certificate: bytes
    authority: bytes
    job: str
    facts: str
    term: int
    dials_out: bool
    certificate_life: float
    protocol: int
    passes: bool
    over: bool
    def __init__(self, refused: _Optional[str] = ..., name: _Optional[str] = ..., session: _Optional[str] = ..., secret: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., job: _Optional[str] = ..., facts: _Optional[str] = ..., term: _Optional[int] = ..., dials_out: bool = ..., certificate_life: _Optional[float] = ..., protocol: _Optional[int] = ..., passes: bool = ..., over: bool = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("hello", "heartbeat", "links", "flushed", "prepared", "step", "eval", "evidence", "warning", "goodbye", "finished", "leaving", "back", "renew", "caught_up", "clock", "written", "kept", "scores", "unreadable", "waits", "trial_failed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FAILED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    links: Links
    flushed: Flushed
    prepared: Prepared
    step: StepDone
    eval: EvalDone
    evidence: Evidence
    warning: Warning
    goodbye: Goodbye
    finished: Finished
    leaving: Leaving
    back: Back
    renew: Renew
    caught_up: CaughtUp
    clock: ClockAnswer
    written: Written
    kept: Kept
    scores: Scores
    unreadable: Unreadable
    waits: Waits
    trial_failed: TrialFailed
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., links: _Optional[_Union[Links, _Mapping]] = ..., flushed: _Optional[_Union[Flushed, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., step: _Optional[_Union[StepDone, _Mapping]] = ..., eval: _Optional[_Union[EvalDone, _Mapping]] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., warning: _Optional[_Union[Warning, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., back: _Optional[_Union[Back, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., clock: _Optional[_Union[ClockAnswer, _Mapping]] = ..., written: _Optional[_Union[Written, _Mapping]] = ..., kept: _Optional[_Union[Kept, _Mapping]] = ..., scores: _Optional[_Union[Scores, _Mapping]] = ..., unreadable: _Optional[_Union[Unreadable, _Mapping]] = ..., waits: _Optional[_Union[Waits, _Mapping]] = ..., trial_failed: _Optional[_Union[TrialFailed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("session", "view", "holds")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    view: int
    holds: int
    def __init__(self, session: _Optional[str] = ..., view: _Optional[int] = ..., holds: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("trainer_age", "doing", "moved")
    TRAINER_AGE_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    trainer_age: float
    doing: str
    moved: int
    def __init__(self, trainer_age: _Optional[float] = ..., doing: _Optional[str] = ..., moved: _Optional[int] = ...) -> None: ...

class Links(_message.Message):
    __slots__ = ("links",)
    LINKS_FIELD_NUMBER: _ClassVar[int]
    links: _containers.RepeatedCompositeFieldContainer[LinkMeasurement]
    def __init__(self, links: _Optional[_Iterable[_Union[LinkMeasurement, _Mapping]]] = ...) -> None: ...

class LinkMeasurement(_message.Message):
    __slots__ = ("to", "latency_s", "bandwidth_bps")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BPS_FIELD_NUMBER: _ClassVar[int]
    to: str
    latency_s: float
    bandwidth_bps: float
    def __init__(self, to: _Optional[str] = ..., latency_s: _Optional[float] = ..., bandwidth_bps: _Optional[float] = ..., **kwargs) -> None: ...

class Flushed(_message.Message):
    __slots__ = ("view", "step", "ready_step", "norm", "sections", "layers", "pending", "save", "kept", "unsent", "moved")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    READY_STEP_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    UNSENT_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    ready_step: int
    norm: float
    sections: _containers.RepeatedCompositeFieldContainer[SectionState]
    layers: _containers.RepeatedScalarFieldContainer[int]
    pending: StepDone
    save: bool
    kept: _containers.RepeatedCompositeFieldContainer[Kept]
    unsent: _containers.RepeatedScalarFieldContainer[float]
    moved: float
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., ready_step: _Optional[int] = ..., norm: _Optional[float] = ..., sections: _Optional[_Iterable[_Union[SectionState, _Mapping]]] = ..., layers: _Optional[_Iterable[int]] = ..., pending: _Optional[_Union[StepDone, _Mapping]] = ..., save: bool = ..., kept: _Optional[_Iterable[_Union[Kept, _Mapping]]] = ..., unsent: _Optional[_Iterable[float]] = ..., moved: _Optional[float] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("step", "view", "norm", "moved")
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    step: int
    view: int
    norm: float
    moved: float
    def __init__(self, step: _Optional[int] = ..., view: _Optional[int] = ..., norm: _Optional[float] = ..., moved: _Optional[float] = ...) -> None: ...

class SectionState(_message.Message):
    __slots__ = ("section", "round", "chain")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    chain: int
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("view", "fingerprints", "bases")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    view: int
    fingerprints: _containers.RepeatedCompositeFieldContainer[Fingerprint]
    bases: _containers.RepeatedCompositeFieldContainer[Base]
    def __init__(self, view: _Optional[int] = ..., fingerprints: _Optional[_Iterable[_Union[Fingerprint, _Mapping]]] = ..., bases: _Optional[_Iterable[_Union[Base, _Mapping]]] = ...) -> None: ...

class Unreadable(_message.Message):
    __slots__ = ("view", "step", "file", "why")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    file: str
    why: str
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., file: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Waits(_message.Message):
    __slots__ = ("view", "peers", "moves")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    view: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    moves: bool
    def __init__(self, view: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ..., moves: bool = ...) -> None: ...

class TrialFailed(_message.Message):
    __slots__ = ("view", "step", "why")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    why: str
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Base(_message.Message):
    __slots__ = ("layer", "content")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    layer: int
    content: int
    def __init__(self, layer: _Optional[int] = ..., content: _Optional[int] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("section", "round", "content")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    content: int
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., content: _Optional[int] = ...) -> None: ...

class StepDone(_message.Message):
    __slots__ = ("view", "step", "loss_sum", "tokens", "samples", "seconds", "compute_seconds", "bytes_updates", "bytes_activations", "bytes_other", "bytes_dense", "bytes_dense_updates", "notes", "codec_seconds", "wire_seconds", "waiting_seconds", "sent", "peak_bytes")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UPDATES_FIELD_NUMBER: _ClassVar[int]
    BYTES_ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_OTHER_FIELD_NUMBER: _ClassVar[int]
    BYTES_DENSE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DENSE_UPDATES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    CODEC_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WIRE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    loss_sum: float
    tokens: int
    samples: int
    seconds: float
    compute_seconds: float
    bytes_updates: int
    bytes_activations: int
    bytes_other: int
    bytes_dense: int
    bytes_dense_updates: int
    notes: str
    codec_seconds: float
    wire_seconds: float
    waiting_seconds: float
    sent: _containers.RepeatedCompositeFieldContainer[Sent]
    peak_bytes: int
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., bytes_updates: _Optional[int] = ..., bytes_activations: _Optional[int] = ..., bytes_other: _Optional[int] = ..., bytes_dense: _Optional[int] = ..., bytes_dense_updates: _Optional[int] = ..., notes: _Optional[str] = ..., codec_seconds: _Optional[float] = ..., wire_seconds: _Optional[float] = ..., waiting_seconds: _Optional[float] = ..., sent: _Optional[_Iterable[_Union[Sent, _Mapping]]] = ..., peak_bytes: _Optional[int] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("peer", "bytes", "rate_bps", "beside", "arrived_beside")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RATE_BPS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_BESIDE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    bytes: int
    rate_bps: float
    beside: float
    arrived_beside: float
    def __init__(self, peer: _Optional[str] = ..., bytes: _Optional[int] = ..., rate_bps: _Optional[float] = ..., beside: _Optional[float] = ..., arrived_beside: _Optional[float] = ...) -> None: ...

class EvalDone(_message.Message):
    __slots__ = ("view", "step", "loss_sum", "tokens", "correct", "predictions", "sets")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    loss_sum: float
    tokens: int
    correct: float
    predictions: int
    sets: _containers.RepeatedCompositeFieldContainer[SetDone]
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., correct: _Optional[float] = ..., predictions: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[SetDone, _Mapping]]] = ...) -> None: ...

class SetDone(_message.Message):
    __slots__ = ("number", "loss_sum", "tokens", "correct")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    number: int
    loss_sum: float
    tokens: int
    correct: float
    def __init__(self, number: _Optional[int] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., correct: _Optional[float] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("peer", "why", "diverged", "mended")
    PEER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    MENDED_FIELD_NUMBER: _ClassVar[int]
    peer: str
    why: str
    diverged: bool
    mended: bool
    def __init__(self, peer: _Optional[str] = ..., why: _Optional[str] = ..., diverged: bool = ..., mended: bool = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("message", "node", "refused")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    message: str
    node: str
    refused: int
    def __init__(self, message: _Optional[str] = ..., node: _Optional[str] = ..., refused: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("view", "step", "fingerprints")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    fingerprints: _containers.RepeatedCompositeFieldContainer[Fingerprint]
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., fingerprints: _Optional[_Iterable[_Union[Fingerprint, _Mapping]]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("why", "stays", "asked")
    WHY_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    why: str
    stays: bool
    asked: bool
    def __init__(self, why: _Optional[str] = ..., stays: bool = ..., asked: bool = ...) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ("view", "failed")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    view: int
    failed: str
    def __init__(self, view: _Optional[int] = ..., failed: _Optional[str] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("number", "token", "step", "round", "failed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    number: int
    token: int
    step: int
    round: int
    failed: str
    def __init__(self, number: _Optional[int] = ..., token: _Optional[int] = ..., step: _Optional[int] = ..., round: _Optional[int] = ..., failed: _Optional[str] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("view", "round", "scores")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    view: int
    round: int
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    def __init__(self, view: _Optional[int] = ..., round: _Optional[int] = ..., scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("node", "own", "held")
    NODE_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    node: str
    own: float
    held: float
    def __init__(self, node: _Optional[str] = ..., own: _Optional[float] = ..., held: _Optional[float] = ...) -> None: ...

class Back(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Renew(_message.Message):
    __slots__ = ("certificate_request",)
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    certificate_request: bytes
    def __init__(self, certificate_request: _Optional[bytes] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("term", "measure", "flush", "view", "start", "stop", "notice", "leave", "revoked", "certificate", "trace", "clock", "write", "packed", "complete", "judge", "ledger")
    TERM_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    JUDGE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    term: int
    measure: Measure
    flush: Flush
    view: View
    start: Start
    stop: Stop
    notice: Notice
    leave: Leave
    revoked: Revoked
    certificate: Certificate
    trace: Trace
    clock: ClockAsk
    write: Write
    packed: PackedView
    complete: Kept
    judge: Judge
    ledger: Ledger
    def __init__(self, term: _Optional[int] = ..., measure: _Optional[_Union[Measure, _Mapping]] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., clock: _Optional[_Union[ClockAsk, _Mapping]] = ..., write: _Optional[_Union[Write, _Mapping]] = ..., packed: _Optional[_Union[PackedView, _Mapping]] = ..., complete: _Optional[_Union[Kept, _Mapping]] = ..., judge: _Optional[_Union[Judge, _Mapping]] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("view", "step", "eval")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    view: int
    step: int
    eval: int
    def __init__(self, view: _Optional[int] = ..., step: _Optional[int] = ..., eval: _Optional[int] = ...) -> None: ...

class Measure(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, peers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ("view", "why")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    view: int
    why: str
    def __init__(self, view: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: int
    def __init__(self, view: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("why", "failed", "refused", "again")
    WHY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    why: str
    failed: bool
    refused: bool
    again: bool
    def __init__(self, why: _Optional[str] = ..., failed: bool = ..., refused: bool = ..., again: bool = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("number", "view", "prompt", "tokens", "temperature", "seed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    number: int
    view: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    temperature: float
    seed: int
    def __init__(self, number: _Optional[int] = ..., view: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class Judge(_message.Message):
    __slots__ = ("view", "node", "rounds")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    view: int
    node: str
    rounds: int
    def __init__(self, view: _Optional[int] = ..., node: _Optional[str] = ..., rounds: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("why", "stays")
    WHY_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    why: str
    stays: bool
    def __init__(self, why: _Optional[str] = ..., stays: bool = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate", "life")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    life: float
    def __init__(self, certificate: _Optional[bytes] = ..., life: _Optional[float] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("id", "first", "steps", "seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    first: int
    steps: int
    seconds: float
    def __init__(self, id: _Optional[str] = ..., first: _Optional[int] = ..., steps: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ClockAsk(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ClockAnswer(_message.Message):
    __slots__ = ("number", "monotonic")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_FIELD_NUMBER: _ClassVar[int]
    number: int
    monotonic: float
    def __init__(self, number: _Optional[int] = ..., monotonic: _Optional[float] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("message", "advice")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    message: str
    advice: Advice
    def __init__(self, message: _Optional[str] = ..., advice: _Optional[_Union[Advice, _Mapping]] = ...) -> None: ...

class Advice(_message.Message):
    __slots__ = ("doing", "use", "better")
    DOING_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    BETTER_FIELD_NUMBER: _ClassVar[int]
    doing: str
    use: str
    better: str
    def __init__(self, doing: _Optional[str] = ..., use: _Optional[str] = ..., better: _Optional[str] = ...) -> None: ...

class PackedView(_message.Message):
    __slots__ = ("number", "base", "edits", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    base: int
    edits: bytes
    digest: bytes
    def __init__(self, number: _Optional[int] = ..., base: _Optional[int] = ..., edits: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "session", "address", "dials_out")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DIALS_OUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    session: str
    address: str
    dials_out: bool
    def __init__(self, name: _Optional[str] = ..., session: _Optional[str] = ..., address: _Optional[str] = ..., dials_out: bool = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("number", "plan", "members", "step", "cursor", "redo", "sections", "holders", "checkpoint", "norm", "why", "job", "save", "shadows", "evaluate", "restores", "redo_runs", "kept_in", "handovers")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    REDO_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    REDO_RUNS_FIELD_NUMBER: _ClassVar[int]
    KEPT_IN_FIELD_NUMBER: _ClassVar[int]
    HANDOVERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    plan: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    step: int
    cursor: int
    redo: _containers.RepeatedScalarFieldContainer[int]
    sections: _containers.RepeatedCompositeFieldContainer[SectionState]
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    checkpoint: int
    norm: float
    why: str
    job: str
    save: bool
    shadows: _containers.RepeatedCompositeFieldContainer[Shadow]
    evaluate: bool
    restores: _containers.RepeatedScalarFieldContainer[str]
    redo_runs: _containers.RepeatedScalarFieldContainer[int]
    kept_in: int
    handovers: _containers.RepeatedCompositeFieldContainer[Handover]
    def __init__(self, number: _Optional[int] = ..., plan: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., step: _Optional[int] = ..., cursor: _Optional[int] = ..., redo: _Optional[_Iterable[int]] = ..., sections: _Optional[_Iterable[_Union[SectionState, _Mapping]]] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., checkpoint: _Optional[int] = ..., norm: _Optional[float] = ..., why: _Optional[str] = ..., job: _Optional[str] = ..., save: bool = ..., shadows: _Optional[_Iterable[_Union[Shadow, _Mapping]]] = ..., evaluate: bool = ..., restores: _Optional[_Iterable[str]] = ..., redo_runs: _Optional[_Iterable[int]] = ..., kept_in: _Optional[int] = ..., handovers: _Optional[_Iterable[_Union[Handover, _Mapping]]] = ...) -> None: ...

class Handover(_message.Message):
    __slots__ = ("giver", "taker", "layers", "ends")
    GIVER_FIELD_NUMBER: _ClassVar[int]
    TAKER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    giver: str
    taker: str
    layers: _containers.RepeatedScalarFieldContainer[int]
    ends: bool
    def __init__(self, giver: _Optional[str] = ..., taker: _Optional[str] = ..., layers: _Optional[_Iterable[int]] = ..., ends: bool = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("node", "like", "fetch")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    node: str
    like: str
    fetch: bool
    def __init__(self, node: _Optional[str] = ..., like: _Optional[str] = ..., fetch: bool = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("layer", "nodes")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    layer: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, layer: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class ArtifactName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("name", "size", "piece_size", "piece_digests", "digest", "described")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PIECE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIECE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    piece_size: int
    piece_digests: _containers.RepeatedScalarFieldContainer[bytes]
    digest: bytes
    described: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., piece_size: _Optional[int] = ..., piece_digests: _Optional[_Iterable[bytes]] = ..., digest: _Optional[bytes] = ..., described: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("name", "offset", "length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    length: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("step", "file", "offset", "data", "last", "digest", "files", "meta", "view")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    step: int
    file: str
    offset: int
    data: bytes
    last: bool
    digest: bytes
    files: int
    meta: str
    view: int
    def __init__(self, step: _Optional[int] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: bool = ..., digest: _Optional[bytes] = ..., files: _Optional[int] = ..., meta: _Optional[str] = ..., view: _Optional[int] = ...) -> None: ...

class StoreReply(_message.Message):
    __slots__ = ("refused", "complete")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    refused: str
    complete: bool
    def __init__(self, refused: _Optional[str] = ..., complete: bool = ...) -> None: ...

class ShardName(_message.Message):
    __slots__ = ("step", "file", "view", "size")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    step: int
    file: str
    view: int
    size: int
    def __init__(self, step: _Optional[int] = ..., file: _Optional[str] = ..., view: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ShardHeld(_message.Message):
    __slots__ = ("offset", "refused", "complete")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    refused: str
    complete: bool
    def __init__(self, offset: _Optional[int] = ..., refused: _Optional[str] = ..., complete: bool = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("run", "ticket")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    run: str
    ticket: str
    def __init__(self, run: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status", "refused")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    status: str
    refused: str
    def __init__(self, status: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class CommandRequest(_message.Message):
    __slots__ = ("run", "ticket", "command", "node", "argument", "by", "why")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    run: str
    ticket: str
    command: str
    node: str
    argument: str
    by: str
    why: str
    def __init__(self, run: _Optional[str] = ..., ticket: _Optional[str] = ..., command: _Optional[str] = ..., node: _Optional[str] = ..., argument: _Optional[str] = ..., by: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class CommandReply(_message.Message):
    __slots__ = ("answer", "refused")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    answer: str
    refused: str
    def __init__(self, answer: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("run", "ticket", "steps")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    run: str
    ticket: str
    steps: int
    def __init__(self, run: _Optional[str] = ..., ticket: _Optional[str] = ..., steps: _Optional[int] = ...) -> None: ...

class ProfilePart(_message.Message):
    __slots__ = ("refused", "told", "node", "missing", "trace", "offset", "error")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    refused: str
    told: str
    node: str
    missing: str
    trace: bytes
    offset: float
    error: float
    def __init__(self, refused: _Optional[str] = ..., told: _Optional[str] = ..., node: _Optional[str] = ..., missing: _Optional[str] = ..., trace: _Optional[bytes] = ..., offset: _Optional[float] = ..., error: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("run", "ticket", "prompt", "tokens", "temperature", "seed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    run: str
    ticket: str
    prompt: str
    tokens: int
    temperature: float
    seed: int
    def __init__(self, run: _Optional[str] = ..., ticket: _Optional[str] = ..., prompt: _Optional[str] = ..., tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("text", "nodes", "step", "round", "refused")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    text: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    step: int
    round: int
    refused: str
    def __init__(self, text: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., round: _Optional[int] = ..., refused: _Optional[str] = ...) -> None: ...
