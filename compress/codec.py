"""The codec protocol, and the public functions ``make``, ``decode``, ``add`` and ``norm``."""

from __future__ import annotations

import abc
import importlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from .blobs.pieces import Piece, Staged, to_device, to_host
from .blobs.wire import Buffer, Header, Reader, open_blob
from .errors import CodecError
from .exchange.requests import Context, Gather, Program
from .primitives.key import Key, mix
from .specs import registry
from .specs.spec import Spec, parse, traits_of
from .specs.traits import Traits

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Codec(abc.ABC):
    """Turns a float tensor of any shape into bytes, losing some of it.

    A codec has no state: the same (x, seed, step, rank, members) give the same bytes. Subclasses implement ``write``
    and ``read`` on flat fp32 vectors; a sparse codec also implements ``accumulate``.
    """

    reductions = 0
    """How many reductions ``rounds`` asks for, if it asks only for these; 0 if blobs are gathered."""
    keyed = False
    """Whether the decoder needs the seed and the step (a rotation, a random mask): then they are in the blob."""
    sparse = False
    """Whether ``accumulate`` touches few elements, so that adding to a vector of zeros is faster than ``read``."""
    refuses = False
    """Whether ``write`` itself refuses values that are not finite, within a pass that it makes in any case."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.traits: Traits = traits_of(spec)

    def __repr__(self) -> str:
        return f"make({str(self.spec)!r})"

    def encode(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0, members: int = 1) -> bytes:
        """The blob of ``x`` (any shape; fp16, bf16, fp32 or fp64; any device), which is not changed.

        seed: u64 of the run and the tensor, the same on all workers. step: u32. rank: the worker's number; it must
        differ between workers, so that their rounding (and, for a codec whose seed is private, their rotation) is
        independent and the errors average out. members: the number of workers, with ranks 0 to members - 1, whose blobs
        will be summed: their random numbers for rounding are then evenly spread, so that errors cancel; the sum stays
        unbiased, also if some workers are absent. CodecError for a value that is not finite.
        """
        return b"".join(self.pieces(x, seed, step, rank, members))

    def pieces(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0, members: int = 1) -> list[Buffer]:
        """The blob as pieces that ``encode`` joins. They may be views of ``x``, so they are valid until ``x``
        changes."""
        return self.stage(x, seed, step, rank, members).pieces()

    def stage(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0, members: int = 1) -> Staged:
        """The blob before its bytes are on the host. For a tensor on a device, codecs with kernels only start the work
        here, and refuse values that are not finite when ``pieces`` is called. Valid until ``x`` changes."""
        if not 0 <= seed < 1 << 64 or not 0 <= step < 1 << 32:
            raise CodecError(f"seed must be below 2^64 and step below 2^32, got {seed} and {step}")
        looks = isinstance(x, torch.Tensor) and x.dtype is not torch.float64 and self.looks(x.device)
        flat, dtype = flatten(x, finite=not looks)
        if rank and self.traits.seed == "private":
            seed = mix(seed, rank)
        with torch.no_grad():
            body: Sequence[Piece] = self.write(flat, Key(seed, step, rank, members)) if flat.numel() else []
        known = (seed, step) if self.keyed else (None, None)
        return Staged(self.spec, dtype, tuple(x.shape), body, *known)

    def looks(self, device: torch.device) -> bool:
        """Whether ``write`` refuses values that are not finite, for a vector on this device; by default ``refuses``."""
        return self.refuses

    @abc.abstractmethod
    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        """The body for a flat, contiguous, finite, non-empty vector (fp32; its own dtype where ``exact``)."""

    @abc.abstractmethod
    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        """The flat vector of a body, fp32 or the header's dtype. Checks every size before it allocates."""

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        """Add weight * decoded to each of ``outs``, which are on one device. The product is rounded before the sum (no
        fused multiply-add)."""
        decoded = self.read(reader, header, outs[0].device).to(torch.float32)
        reader.end()
        for out in outs:
            out += decoded if weight == 1.0 else decoded * weight

    def write_to(self, reader: Reader, header: Header, out: torch.Tensor) -> None:
        """out = decoded."""
        if self.sparse and out.dtype == torch.float32:
            self.accumulate(reader, header, (out.zero_(),), 1.0)
        else:
            out.copy_(self.read(reader, header, out.device))

    def decoded_norm(self, reader: Reader, header: Header, device: torch.device) -> float | torch.Tensor:
        """The Euclidean norm of the decoded vector; not finite if a value is not. Sparse codecs read few values. A
        tensor of one number if it is computed on a device, for which the host has not waited."""
        decoded = self.read(reader, header, device)
        reader.end()
        length = torch.linalg.vector_norm(decoded)
        return float(length) if device.type == "cpu" else length

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        """A whole exchange (see exchange/phases.py); returns the weighted sum. By default each worker gathers the blobs
        of all."""
        return gather(self, x, context)

    def _key(self, header: Header) -> Key:
        return Key(header.seed, header.step)


def flatten(x: torch.Tensor, exact: bool = False, finite: bool = True) -> tuple[torch.Tensor, str]:
    """(flat contiguous fp32 vector, name of the dtype); CodecError for a dtype or (``finite``) value that no codec
    takes."""
    check_tensor(x)
    flat = x.detach().reshape(-1).to(home(x.device))
    if not exact:
        flat = flat.to(torch.float32)
    flat = flat.contiguous()
    if finite:
        beyond = x.dtype == torch.float64 and not exact
        check_finite(flat, "beyond the range of fp32" if beyond and bool(torch.isfinite(x).all()) else "not finite")
    return flat, _NAMES[x.dtype]


def check_tensor(x: object) -> None:
    """CodecError, with a hint how to convert, if ``x`` is no float tensor."""
    if isinstance(x, torch.Tensor) and x.dtype in _NAMES:
        return
    kinds = f"float tensors of torch ({', '.join(DTYPES)})"
    if isinstance(x, torch.Tensor):
        raise CodecError(f"a codec takes {kinds}, not {x.dtype}: x.float() makes one")
    if type(x).__module__.partition(".")[0] == "numpy":
        raise CodecError(f"a codec takes {kinds}, not a numpy {type(x).__name__}: torch.from_numpy(x) makes one")
    made = "torch.tensor(x) makes one" if isinstance(x, (list, tuple, float)) else "it has no torch.Tensor"
    raise CodecError(f"a codec takes {kinds}, not a {type(x).__name__}: {made}")


def home(device: torch.device) -> torch.device:
    """The device on which codecs compute for tensors of ``device``: the same one for CPUs, CUDA and ROCm. For others
    (Metal) the CPU: Metal has no float64, and different bits on different devices would make a group's members
    diverge."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def check_finite(flat: torch.Tensor, what: str = "not finite") -> None:
    """CodecError, with their number, if values are not finite. Usually one pass: a finite sum shows that all values
    are; only otherwise (it may be an overflow) each value is tested."""
    if flat.numel() and not bool(torch.isfinite(flat.sum())) and not bool(torch.isfinite(flat).all()):
        raise CodecError(f"{int((~torch.isfinite(flat)).sum())} of {flat.numel()} values are {what}: not encoded")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.contiguous().view(-1)  # a single column counts as contiguous, with a stride that a byte view rejects
    array = to_host(flat).view(torch.uint8).numpy()
    return memoryview(array)  # type: ignore[arg-type,unused-ignore]


def piece(tensor: torch.Tensor) -> Piece:
    """The bytes of a tensor on the CPU; a tensor on a device itself, so that one copy fetches a blob's pieces."""
    return tensor_bytes(tensor) if tensor.device.type == "cpu" else tensor


def bytes_tensor(data: Buffer, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """A read-only tensor over the bytes of a blob (copied if they are not aligned, or go to another device)."""
    if not len(data):
        return torch.empty(0, dtype=dtype, device=device)
    if device is not None and device.type != "cpu":
        return to_device(data, device).view(dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)


@lru_cache(maxsize=256)
def _instance(spec: Spec) -> Codec:
    kind = registry.KINDS.get(spec.name)
    if kind is None:
        module, _, attribute = spec.declaration.target.partition(":")
        kind = getattr(importlib.import_module(f".{module}", __package__), attribute)
    codec: Any = kind(spec)
    assert isinstance(codec, Codec)
    return codec


registry.on_change(_instance.cache_clear)


def make(spec: str | Spec) -> Codec:
    """The codec of a spec such as ``"eden:bits=2"``. CodecError says what is wrong and suggests the nearest word."""
    return _instance(parse(spec) if isinstance(spec, str) else spec)


def decode(blob: Buffer, device: torch.device | str = "cpu", limit: int | None = None) -> torch.Tensor:
    """The tensor of a blob, in the shape and dtype of the encoded one. limit: the most elements to accept; None: 2^20
    plus 2^16 for each byte of the blob.

    CodecError for bytes that no encoder writes; no memory is allocated before the checks.
    """
    header, reader = open_blob(blob, limit)
    device = torch.device(device)
    if not header.elements:
        reader.end()
        return torch.zeros(header.shape, dtype=DTYPES[header.dtype], device=device)
    flat = make(header.spec).read(reader, header, home(device))
    reader.end()
    return flat.to(device, DTYPES[header.dtype]).view(header.shape)


def decode_into(blob: Buffer, out: torch.Tensor, known: bool = False) -> None:
    """Write the decoded values into ``out`` (same number of elements; contiguous). ``known``: as in ``add``."""
    check_tensor(out)
    if home(out.device) != out.device:
        here = torch.empty(out.numel(), dtype=out.dtype)
        decode_into(blob, here, known)
        out.view(-1).copy_(here)
        return
    header, reader = _expect(blob, out.numel(), known)
    if header.elements:
        make(header.spec).write_to(reader, header, out.view(-1))
    reader.end()


def add(blob: Buffer, out: torch.Tensor | Sequence[torch.Tensor], weight: float = 1.0, known: bool = False) -> None:
    """out += weight * decoded, for a contiguous fp32 ``out`` with as many elements, or several of these on one device.
    The same bits on every device.

    ``weight`` is rounded to fp32 once, and the product is rounded before the sum. ``known``: this process has made the
    blob or computed its ``norm``, so it is not checked again.
    """
    outs = (out,) if isinstance(out, torch.Tensor) else out
    if not len(outs) or not all(isinstance(one, torch.Tensor) for one in outs):
        raise CodecError(f"add adds to a tensor of torch, or to several, not to a {type(out).__name__}")
    if any(one.dtype != torch.float32 or not one.is_contiguous() or one.shape != outs[0].shape for one in outs):
        raise CodecError("add takes contiguous fp32 tensors of one shape")
    device = outs[0].device
    if home(device) != device:
        here = [one.to(home(device)) for one in outs]
        add(blob, here, weight, known)
        for one, changed in zip(outs, here, strict=True):
            one.copy_(changed)
        return
    header, reader = _expect(blob, outs[0].numel(), known)
    if header.elements:
        with torch.no_grad():
            make(header.spec).accumulate(reader, header, [one.view(-1) for one in outs], weight)
    reader.end()


def norm(blob: Buffer, elements: int, device: torch.device | str = "cpu") -> float:
    """The Euclidean norm of the decoded values, with about fp32's precision and range. CodecError as for ``decode``,
    for a number of elements other than ``elements``, and if the values or their norm are not finite."""
    return norms([(blob, elements)], device)[0]


def norms(blobs: Sequence[tuple[Buffer, int]], device: torch.device | str = "cpu") -> list[float]:
    """``norm`` of each (blob, elements). The host waits for a device once."""
    found: list[float | torch.Tensor] = []
    with torch.no_grad():
        for blob, elements in blobs:
            header, reader = _expect(blob, elements)
            empty = not header.elements
            found.append(0.0 if empty else make(header.spec).decoded_norm(reader, header, home(torch.device(device))))
    there = [one.to(torch.float64) for one in found if isinstance(one, torch.Tensor)]
    came = iter(torch.stack(there).tolist() if there else [])
    lengths = [next(came) if isinstance(one, torch.Tensor) else one for one in found]
    if not all(map(math.isfinite, lengths)):
        raise CodecError("values that are not finite, or whose norm is not")
    return lengths


def _expect(blob: Buffer, elements: int, known: bool = False) -> tuple[Header, Reader]:
    header, reader = open_blob(blob, elements, known)
    if header.elements != elements:
        raise CodecError(f"the blob has {header.elements} elements, {elements} are expected")
    return header, reader


def gather(codec: Codec, x: torch.Tensor, context: Context) -> Program:
    """The exchange program in which each worker decodes the blobs of all and sums them in the order of ranks."""
    blob = codec.encode(x, context.tensor_seed, context.step, context.rank, context.size)
    answers = yield Gather(blob, context.weight)
    context.own = add_all([(blob, context.weight)], x).view(-1)
    return add_all(answers, x)


def add_all(answers: list[tuple[bytes, float]], like: torch.Tensor) -> torch.Tensor:
    """The weighted sum of (blob, weight) pairs in their order: fp32, in the shape and on the device of ``like``."""
    out = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    for blob, weight in answers:
        add(blob, out, weight)
    return out.view(like.shape)
