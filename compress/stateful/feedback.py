"""Error feedback: the error of an encoding is kept and added next time; a step that fails changes nothing.

    feedback = Feedback("sign")
    step = feedback.begin({"layer.weight": gradient}, seed, step)   # encodes gradient + error
    step.blobs["layer.weight"]                                     # send these
    feedback.commit(step)      # every worker had it, all finite: now the errors are those of this step
    feedback.abort(step)       # or: as if it had never been asked

Errors are kept by (parameter name, range), never by position in a bucket, so that they survive rebuilt buckets and
other
partitions: ``state_dict`` has the ranges, and later ranges may be cut differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..codec import decode, make
from ..errors import CodecError
from ..primitives.key import mix
from ..specs.spec import Spec, check_contracts


@dataclass
class Pending:
    """A step between begin and commit. blobs: the blobs to send; decoded: their decoded values (fp32, flat)."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    decoded: dict[str, torch.Tensor] = field(default_factory=dict)
    errors: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Name -> reason, for inputs that were not finite: all workers must then drop the whole step."""


class Memory:
    """Errors by (name, first element): flat fp32 pieces that do not overlap."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, torch.Tensor]] = {}

    def get(self, name: str, start: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """The error of a range: a new tensor, zero where no error is kept."""
        out = torch.zeros(count, device=device)
        for at, piece in self._pieces.get(name, {}).items():
            low, high = max(at, start), min(at + piece.numel(), start + count)
            if low < high:
                out[low - start : high - start] = piece[low - at : high - at].to(device)
        return out

    def put(self, name: str, start: int, error: torch.Tensor) -> None:
        """Keep a range's error; it replaces the parts of other pieces that overlap the range."""
        pieces, end = self._pieces.setdefault(name, {}), start + error.numel()
        for at, piece in list(pieces.items()):
            stop = at + piece.numel()
            if at < end and stop > start:
                del pieces[at]
                if at < start:
                    pieces[at] = piece[: start - at].clone()
                if stop > end:
                    pieces[end] = piece[end - at :].clone()
        pieces[start] = error

    def total(self, name: str) -> float:
        """The sum of a name's kept errors."""
        return float(sum(piece.double().sum() for piece in self._pieces.get(name, {}).values()))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {f"{name}@{at}": piece.clone() for name, pieces in self._pieces.items() for at, piece in pieces.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], merge: bool = False) -> None:
        """Load the errors of a state; with ``merge``, in addition to those that are kept (to join several ranks'
        states)."""
        if not merge:
            self._pieces.clear()
        for key, piece in state.items():
            name, _, at = key.rpartition("@")
            if not at.isdigit():
                raise CodecError(f"error feedback has no key {key!r}: NAME@FIRST is expected")
            if not bool(torch.isfinite(piece).all()):
                raise CodecError(f"the kept error of {name!r} is not finite")
            self.put(name, int(at), piece.detach().clone().to(torch.float32))


class Feedback:
    """Error feedback around a codec, for named tensors. decay: the fraction of the error that is kept (1: all of it).

    CodecError for a codec whose error may be larger than its input: the kept error would grow without bound."""

    def __init__(self, spec: str | Spec, decay: float = 1.0) -> None:
        self.codec = make(spec)
        check_contracts(self.codec.spec)
        self.decay = decay
        self.memory = Memory()
        self._pending: Pending | None = None

    def begin(
        self, tensors: Mapping[str, torch.Tensor], seed: int = 0, step: int = 0, starts: Mapping[str, int] | None = None
    ) -> Pending:
        """Encode tensor + error of each. starts: the first element of each name's range (0). A begin that was neither
        committed nor aborted is aborted. Inputs that are not finite are listed in ``refused``."""
        pending = Pending()
        for index, (name, x) in enumerate(tensors.items()):
            start = 0 if starts is None else starts.get(name, 0)
            flat = x.detach().reshape(-1).to(torch.float32)
            total = flat + self.memory.get(name, start, flat.numel(), flat.device)
            try:
                blob = self.codec.encode(total, mix(seed, index), step)
            except CodecError as error:
                pending.refused[name] = str(error)
                continue
            decoded = decode(blob, total.device, total.numel())
            pending.blobs[name], pending.decoded[name] = blob, decoded
            pending.errors[name, start] = total - decoded if self.decay == 1.0 else (total - decoded) * self.decay
        self._pending = pending
        return pending

    def commit(self, pending: Pending) -> bool:
        """Keep the errors of a step that all workers have taken. False, and no error is kept, if one is not finite."""
        if pending is not self._pending:
            raise CodecError("this step is not the one that was begun last, or is over")
        self._pending = None
        if pending.refused or not all(bool(torch.isfinite(e).all()) for e in pending.errors.values()):
            return False
        for (name, start), error in pending.errors.items():
            self.memory.put(name, start, error)
        return True

    def abort(self, pending: Pending) -> None:
        """Drop a step: the errors stay as they were before it began."""
        if pending is self._pending:
            self._pending = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor], merge: bool = False) -> None:
        self._pending = None
        self.memory.load_state_dict(state, merge)
