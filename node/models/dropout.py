"""Dropout whose masks are a function of (seed, step, layer, sample) and of nothing else.

A layer's module draws as it always does, through ``torch.nn.functional.dropout``; while a stage trains, that is
answered here: the mask of each sample comes from an integer hash of its own key and the element's place. So a
microbatch that is computed again drops what it dropped before, and so does a step that is trained again, by whatever
nodes, cut into whatever stages and microbatches. Integer operations give the same bits on every device.

The n-th dropout of a layer has masks of its own. torch's random generators are not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...proto.errors import FarflungError

_KEPT = 24  # bits that are compared with the rate
_RANDOM = {
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.rrelu,
    functional.gumbel_softmax,
}


@dataclass(frozen=True)
class Draw:
    """What masks come from: the run's seed, the step, and the ids of a microbatch's samples in their order."""

    seed: int
    step: int
    samples: tuple[int, ...]

    def part(self, begin: int, end: int) -> Draw:
        """Of a part of the samples."""
        return Draw(self.seed, self.step, self.samples[begin:end])


class KeyedDropout(TorchFunctionMode):
    """Answers the dropouts of one layer's pass. ``layer``: its number in the whole model; 0 also for what is computed
    behind the blocks, which every stage counts alike."""

    def __init__(self, draw: Draw, layer: int) -> None:
        super().__init__()
        self._draw, self._layer, self._count = draw, layer, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return self._dropped(*args, **kwargs)
        if func in _RANDOM or (func is functional.scaled_dot_product_attention and _rate(args, kwargs)):
            raise FarflungError(
                f"not yet: this model draws random numbers in {func.__name__}, and a step that is computed again would "
                "draw others",
                hint="write dropout = 0.0 under [model]",
            )
        return func(*args, **kwargs)

    def _dropped(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not p:
            return input
        self._count += 1
        return input * keep_mask(self._draw, self._layer, self._count, input, p)


class Dropouts(TorchFunctionMode):
    """Whether anything is dropped (``seen``) while a model is computed."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            self.seen = self.seen or float(args[1] if len(args) > 1 else kwargs.get("p", 0.5)) > 0
        return func(*args, **kwargs)


def no_dropout(kind: str) -> FarflungError:
    """The error for a family that drops nothing, whatever its configuration says."""
    return FarflungError(
        f"model.dropout: the model family {kind!r} has no dropout", hint="write dropout = 0.0 under [model]"
    )


def _rate(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """The rate of a scaled_dot_product_attention(query, key, value, mask, rate)."""
    return float(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))


def keep_mask(draw: Draw, layer: int, count: int, like: Tensor, rate: float) -> Tensor:
    """0 where an element is dropped, else 1 / (1 - rate), in the shape and dtype of ``like``, whose first dimension
    counts the samples, or the samples and what each has several of (heads)."""
    samples = len(draw.samples)
    if like.dim() < 2 or len(like) % samples:
        raise FarflungError(
            f"not yet: a dropout of shape {tuple(like.shape)}, which does not say which sample its elements are of",
            hint="write dropout = 0.0 under [model]",
        )
    words = [f"{draw.seed}/{draw.step}/{layer}/{count}/{sample}".encode() for sample in draw.samples]
    raw = [int.from_bytes(hashlib.blake2b(one, digest_size=8).digest(), "little", signed=True) for one in words]
    keys = torch.tensor(raw, dtype=torch.int64, device=like.device)
    places = torch.arange(like.numel() // samples, dtype=torch.int64, device=like.device)
    mixed = _mixed(places[None] * _signed(0x9E3779B97F4A7C15) + keys[:, None])
    kept = (mixed & ((1 << _KEPT) - 1)) >= round(rate * (1 << _KEPT))
    return kept.view(like.shape).to(like.dtype) / (1.0 - rate)


def _mixed(values: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of ``values`` (int64): the finaliser of MurmurHash3."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ ((values >> 33) & 0x7FFFFFFF)) * _signed(factor)
    return values ^ ((values >> 33) & 0x7FFFFFFF)


def _signed(number: int) -> int:
    """An unsigned number of 64 bits as int64 has it."""
    return number - (1 << 64) if number >> 63 else number


def keyed(layer: Callable[..., Any], draw: Draw, number: int) -> Callable[..., Any]:
    """``layer`` with the dropouts of a layer of that number, each time it is computed."""

    def compute(*args: Any, **keywords: Any) -> Any:
        with KeyedDropout(draw, number):
            return layer(*args, **keywords)

    return compute


def drops(module: nn.Module) -> bool:
    """Whether any module in it is a dropout with a rate."""
    return any(isinstance(one, nn.Dropout) and one.p > 0 for one in module.modules())


RATES = ("dropout", "pdrop")
"""What the names of rates have in them in a configuration of `transformers`."""
_NEVER = ("layerdrop", "layer_dropout", "classifier", "summary", "jitter_noise")
"""Names of what stays 0: whole layers that are left out, heads of other tasks, noise in routers."""


def set_rates(config: Any, rate: float) -> int:
    """Set every rate of a configuration to ``rate``, and what else is random to 0; how many rates there were."""
    count = 0
    for own, key, sets in list(_rates(config)):
        wanted = rate if sets else 0.0
        if getattr(own, key) != wanted:
            try:
                setattr(own, key, wanted)
            except Exception:  # MPT declares that of attention a whole number, so no file can have another than 0
                continue
        count += sets
    return count


def has_rates(config: Any) -> bool:
    """Whether any rate of a configuration is above 0."""
    return any(getattr(own, key) > 0 for own, key, _ in _rates(config))


def _rates(config: Any) -> Iterator[tuple[Any, str, bool]]:
    """(configuration, key, whether it is a rate that a job sets) of what makes a model draw random numbers."""
    for key, value in list(vars(config).items()):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if any(word in key for word in _NEVER):
                yield config, key, False
            elif any(word in key for word in RATES) or (isinstance(value, float) and "drop" in key):
                yield config, key, True
        elif hasattr(value, "to_dict") and "config" in key:
            yield from _rates(value)
