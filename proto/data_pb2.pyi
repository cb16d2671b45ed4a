from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

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
    __slots__ = ("run", "view", "session", "kind", "step", "microbatch", "section", "round", "part", "chain", "codec", "shape", "dtype", "samples", "contributors", "digests", "value", "text", "sizes", "layer", "moments", "offset", "length", "error", "factors", "request", "signature", "certificate")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    run: str
    view: int
    session: str
    kind: Kind
    step: int
    microbatch: int
    section: str
    round: int
    part: int
    chain: int
    codec: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    samples: _containers.RepeatedScalarFieldContainer[int]
    contributors: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    value: float
    text: str
    sizes: _containers.RepeatedScalarFieldContainer[int]
    layer: int
    moments: bool
    offset: int
    length: int
    error: int
    factors: _containers.RepeatedScalarFieldContainer[float]
    request: int
    signature: bytes
    certificate: bytes
    def __init__(self, run: _Optional[str] = ..., view: _Optional[int] = ..., session: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., step: _Optional[int] = ..., microbatch: _Optional[int] = ..., section: _Optional[str] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., chain: _Optional[int] = ..., codec: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., samples: _Optional[_Iterable[int]] = ..., contributors: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ..., value: _Optional[float] = ..., text: _Optional[str] = ..., sizes: _Optional[_Iterable[int]] = ..., layer: _Optional[int] = ..., moments: bool = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., error: _Optional[int] = ..., factors: _Optional[_Iterable[float]] = ..., request: _Optional[int] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

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
