from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Kind]
    ACTIVATION: _ClassVar[Kind]
    ACTIVATION_GRADIENT: _ClassVar[Kind]
    NACK: _ClassVar[Kind]
    CONTRIBUTION: _ClassVar[Kind]
    RESULT: _ClassVar[Kind]
    RESULT_HELD: _ClassVar[Kind]
    RESULT_REQUEST: _ClassVar[Kind]
    READY: _ClassVar[Kind]
    COMMIT: _ClassVar[Kind]
    STATE_REQUEST: _ClassVar[Kind]
    STATE: _ClassVar[Kind]
    PROBE: _ClassVar[Kind]
    CONTRIBUTION_REQUEST: _ClassVar[Kind]
    EVALUATION: _ClassVar[Kind]
    DIFFERENCE: _ClassVar[Kind]
    WEIGHTS_REQUEST: _ClassVar[Kind]
    WEIGHTS: _ClassVar[Kind]
    AUDIT: _ClassVar[Kind]
    ROUND_REQUEST: _ClassVar[Kind]
    ROUND_END: _ClassVar[Kind]
    TEXT_BEGIN: _ClassVar[Kind]
    TEXT: _ClassVar[Kind]
    TEXT_TOKEN: _ClassVar[Kind]
    TEXT_END: _ClassVar[Kind]
    KEY: _ClassVar[Kind]
    STATE_COMING: _ClassVar[Kind]
    EQUIVOCATION: _ClassVar[Kind]
    RECEIPTS: _ClassVar[Kind]
UNKNOWN: Kind
ACTIVATION: Kind
ACTIVATION_GRADIENT: Kind
NACK: Kind
CONTRIBUTION: Kind
RESULT: Kind
RESULT_HELD: Kind
RESULT_REQUEST: Kind
READY: Kind
COMMIT: Kind
STATE_REQUEST: Kind
STATE: Kind
PROBE: Kind
CONTRIBUTION_REQUEST: Kind
EVALUATION: Kind
DIFFERENCE: Kind
WEIGHTS_REQUEST: Kind
WEIGHTS: Kind
AUDIT: Kind
ROUND_REQUEST: Kind
ROUND_END: Kind
TEXT_BEGIN: Kind
TEXT: Kind
TEXT_TOKEN: Kind
TEXT_END: Kind
KEY: Kind
STATE_COMING: Kind
EQUIVOCATION: Kind
RECEIPTS: Kind

class Header(_message.Message):
    __slots__ = ("run", "view", "session", "kind", "activation", "missing_samples", "contribution", "result", "held", "contribution_wanted", "ready", "commit", "state", "state_request", "mixing", "state_coming", "audit", "round_request", "round_end", "text_begin", "text", "text_token", "text_end", "mask_key", "equivocation", "receipts", "result_wanted")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_WANTED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MIXING_FIELD_NUMBER: _ClassVar[int]
    STATE_COMING_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    ROUND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_END_FIELD_NUMBER: _ClassVar[int]
    TEXT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_END_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    EQUIVOCATION_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_WANTED_FIELD_NUMBER: _ClassVar[int]
    run: str
    view: int
    session: str
    kind: Kind
    activation: Activation
    missing_samples: MissingSamples
    contribution: Contribution
    result: Result
    held: Held
    contribution_wanted: ContributionWanted
    ready: Ready
    commit: Commit
    state: State
    state_request: StateRequest
    mixing: Mixing
    state_coming: StateComing
    audit: Audit
    round_request: RoundRequest
    round_end: RoundEnd
    text_begin: TextBegin
    text: Text
    text_token: TextToken
    text_end: TextEnd
    mask_key: MaskKey
    equivocation: Equivocation
    receipts: Receipts
    result_wanted: ResultWanted
    def __init__(self, run: _Optional[str] = ..., view: _Optional[int] = ..., session: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., activation: _Optional[_Union[Activation, _Mapping]] = ..., missing_samples: _Optional[_Union[MissingSamples, _Mapping]] = ..., contribution: _Optional[_Union[Contribution, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., contribution_wanted: _Optional[_Union[ContributionWanted, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., state_request: _Optional[_Union[StateRequest, _Mapping]] = ..., mixing: _Optional[_Union[Mixing, _Mapping]] = ..., state_coming: _Optional[_Union[StateComing, _Mapping]] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ..., round_request: _Optional[_Union[RoundRequest, _Mapping]] = ..., round_end: _Optional[_Union[RoundEnd, _Mapping]] = ..., text_begin: _Optional[_Union[TextBegin, _Mapping]] = ..., text: _Optional[_Union[Text, _Mapping]] = ..., text_token: _Optional[_Union[TextToken, _Mapping]] = ..., text_end: _Optional[_Union[TextEnd, _Mapping]] = ..., mask_key: _Optional[_Union[MaskKey, _Mapping]] = ..., equivocation: _Optional[_Union[Equivocation, _Mapping]] = ..., receipts: _Optional[_Union[Receipts, _Mapping]] = ..., result_wanted: _Optional[_Union[ResultWanted, _Mapping]] = ...) -> None: ...

class Activation(_message.Message):
    __slots__ = ("step", "microbatch", "layer", "sizes", "shape", "loss_scale")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    step: int
    microbatch: int
    layer: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    loss_scale: float
    def __init__(self, step: _Optional[int] = ..., microbatch: _Optional[int] = ..., layer: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., loss_scale: _Optional[float] = ...) -> None: ...

class MissingSamples(_message.Message):
    __slots__ = ("step", "microbatch", "layer", "samples", "anew")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    step: int
    microbatch: int
    layer: int
    samples: _containers.RepeatedScalarFieldContainer[int]
    anew: bool
    def __init__(self, step: _Optional[int] = ..., microbatch: _Optional[int] = ..., layer: _Optional[int] = ..., samples: _Optional[_Iterable[int]] = ..., anew: bool = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("section", "round", "part", "chain", "sizes", "of", "request", "signature", "certificate")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    chain: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    of: int
    request: int
    signature: bytes
    certificate: bytes
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., chain: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., of: _Optional[int] = ..., request: _Optional[int] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("section", "round", "part", "chain", "sizes", "contributors", "digests", "error", "factors", "request", "signature", "certificate")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    chain: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    contributors: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    error: int
    factors: _containers.RepeatedScalarFieldContainer[float]
    request: int
    signature: bytes
    certificate: bytes
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., chain: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., contributors: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ..., error: _Optional[int] = ..., factors: _Optional[_Iterable[float]] = ..., request: _Optional[int] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("section", "round", "part", "chain", "show")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SHOW_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    chain: int
    show: bool
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., chain: _Optional[int] = ..., show: bool = ...) -> None: ...

class ResultWanted(_message.Message):
    __slots__ = ("section", "round", "part")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class ContributionWanted(_message.Message):
    __slots__ = ("section", "round", "part", "of", "certificate")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    of: int
    certificate: bool
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., of: _Optional[int] = ..., certificate: bool = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("step", "square")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARE_FIELD_NUMBER: _ClassVar[int]
    step: int
    square: float
    def __init__(self, step: _Optional[int] = ..., square: _Optional[float] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("step", "norm")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    step: int
    norm: float
    def __init__(self, step: _Optional[int] = ..., norm: _Optional[float] = ...) -> None: ...

class Mixing(_message.Message):
    __slots__ = ("section", "epoch", "number", "sizes")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    section: str
    epoch: int
    number: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, section: _Optional[str] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("section", "round", "part", "sizes")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class MaskKey(_message.Message):
    __slots__ = ("section", "round", "wanted")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    wanted: bool
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., wanted: bool = ...) -> None: ...

class Equivocation(_message.Message):
    __slots__ = ("section", "round", "part", "of", "digests", "sizes", "certificate")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    part: int
    of: int
    digests: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    certificate: bytes
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., of: _Optional[int] = ..., digests: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Receipts(_message.Message):
    __slots__ = ("section", "round")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    section: str
    round: int
    def __init__(self, section: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class RoundRequest(_message.Message):
    __slots__ = ("round", "request")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    request: int
    def __init__(self, round: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class RoundEnd(_message.Message):
    __slots__ = ("round", "messages", "applied", "norm", "request")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    messages: int
    applied: int
    norm: float
    request: int
    def __init__(self, round: _Optional[int] = ..., messages: _Optional[int] = ..., applied: _Optional[int] = ..., norm: _Optional[float] = ..., request: _Optional[int] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("name", "offset", "length", "moments", "snapshot", "request")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    length: int
    moments: bool
    snapshot: int
    request: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., moments: bool = ..., snapshot: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("name", "offset", "digest", "request", "loss_scale", "good_steps", "dropped_steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    GOOD_STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    digest: int
    request: int
    loss_scale: float
    good_steps: int
    dropped_steps: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., digest: _Optional[int] = ..., request: _Optional[int] = ..., loss_scale: _Optional[float] = ..., good_steps: _Optional[int] = ..., dropped_steps: _Optional[int] = ...) -> None: ...

class StateComing(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class TextBegin(_message.Message):
    __slots__ = ("number", "layer", "step", "temperature", "seed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    number: int
    layer: int
    step: int
    temperature: float
    seed: int
    def __init__(self, number: _Optional[int] = ..., layer: _Optional[int] = ..., step: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class Text(_message.Message):
    __slots__ = ("number", "layer", "done", "shape")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    number: int
    layer: int
    done: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., layer: _Optional[int] = ..., done: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class TextToken(_message.Message):
    __slots__ = ("number", "done", "token")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    done: int
    token: int
    def __init__(self, number: _Optional[int] = ..., done: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class TextEnd(_message.Message):
    __slots__ = ("number", "layer")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    number: int
    layer: int
    def __init__(self, number: _Optional[int] = ..., layer: _Optional[int] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("protocol", "run", "name", "session", "to", "to_session", "you_send", "lane", "link")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TO_SESSION_FIELD_NUMBER: _ClassVar[int]
    YOU_SEND_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    name: str
    session: str
    to: str
    to_session: str
    you_send: bool
    lane: int
    link: int
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., name: _Optional[str] = ..., session: _Optional[str] = ..., to: _Optional[str] = ..., to_session: _Optional[str] = ..., you_send: bool = ..., lane: _Optional[int] = ..., link: _Optional[int] = ...) -> None: ...
