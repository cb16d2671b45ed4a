"""Dropout whose masks are a function of (seed, step, layer, sample) and of nothing else.

A layer calls ``torch.nn.functional.dropout`` as usual; while a stage trains, this module replaces that function. The
mask of each sample is an integer hash of the sample's key and the element's index. So a microbatch that is computed
again drops the same elements, and so does a step that is trained again, on any nodes and with any division into stages
and microbatches. Integer operations give the same bits on every device.

Each dropout of a layer has masks of its own, by its number in the order of computing. torch's random generators are not
used.
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

_KEPT = 24  # bits of the hash that are compared with the rate
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
    """The key of dropout masks: the run's seed, the step, and the ids of a microbatch's samples in order."""

    seed: int
    step: int
    samples: tuple[int, ...]

    def part(self, begin: int, end: int) -> Draw:
        """The draw of samples [begin, end)."""
        return Draw(self.seed, self.step, self.samples[begin:end])


class KeyedDropout(TorchFunctionMode):
    """Computes the dropouts of one layer's pass. ``layer``: its number in the whole model. 0 stands for all modules
    outside of the blocks, before and after them, so that the numbers do not depend on the cut."""

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
    """Observes whether a model calls a dropout (``seen``) while it is computed."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            self.seen = self.seen or float(args[1] if len(args) > 1 else kwargs.get("p", 0.5)) > 0
        return func(*args, **kwargs)


def no_dropout(kind: str) -> FarflungError:
    """The error for a family that has no dropout, whatever its configuration says."""
    return FarflungError(
        f"model.dropout: the model family {kind!r} has no dropout", hint="write dropout = 0.0 under [model]"
    )


def _rate(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """The rate of a scaled_dot_product_attention(query, key, value, mask, rate)."""
    return float(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))


def keep_mask(draw: Draw, layer: int, count: int, like: Tensor, rate: float) -> Tensor:
    """0 where an element is dropped, else 1 / (1 - rate), in the shape and dtype of ``like``. The first dimension of
    ``like`` is the number of samples or a multiple of it (samples x heads). ``count``: the number of this dropout."""
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
    """An unsigned 64-bit number as the int64 with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def keyed(layer: Callable[..., Any], draw: Draw, number: int) -> Callable[..., Any]:
    """A function that computes ``layer`` with the dropout masks of layer ``number``."""

    def compute(*args: Any, **keywords: Any) -> Any:
        with KeyedDropout(draw, number):
            return layer(*args, **keywords)

    return compute


def drops(module: nn.Module) -> bool:
    """Whether any of its modules is an ``nn.Dropout`` with a rate above 0."""
    return any(isinstance(one, nn.Dropout) and one.p > 0 for one in module.modules())


RATES = ("dropout", "pdrop")
"""A key of a `transformers` configuration that contains one of these is a dropout rate."""
_NEVER = ("layerdrop", "layer_dropout", "classifier", "summary", "jitter_noise")
"""Rates whose key contains one of these are set to 0: dropping of whole layers, heads of other tasks, router noise."""


def set_rates(config: Any, rate: float) -> int:
    """Set every dropout rate of a configuration to ``rate``, and all other randomness to 0. Returns how many dropout
    rates there are."""
    count = 0
    for own, key, sets in list(_rates(config)):
        wanted = rate if sets else 0.0
        if getattr(own, key) != wanted:
            try:
                setattr(own, key, wanted)
            except Exception:  # MPT declares its attention's rate an integer, so it is 0 in every file
                continue
        count += sets
    return count


def has_rates(config: Any) -> bool:
    """Whether any rate of a configuration is above 0."""
    return any(getattr(own, key) > 0 for own, key, _ in _rates(config))


def _rates(config: Any) -> Iterator[tuple[Any, str, bool]]:
    """(configuration, key, whether a job sets it) of every key that makes a model draw random numbers."""
    for key, value in list(vars(config).items()):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if any(word in key for word in _NEVER):
                yield config, key, False
            elif any(word in key for word in RATES) or (isinstance(value, float) and "drop" in key):
                yield config, key, True
        elif hasattr(value, "to_dict") and "config" in key:
            yield from _rates(value)
