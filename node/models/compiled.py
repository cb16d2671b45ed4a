"""Layers through ``torch.compile`` (``train.compile``): one by one, so that those that are alike are compiled once."""

from __future__ import annotations

from torch import nn

from ...proto.errors import FarflungError, RunFailed
from .stage import StageModel

_COMPILERS = ("torch._dynamo.", "torch._inductor.")


def compile_layers(model: StageModel) -> None:
    """Compile the layers between embedding and head, each when it first computes. Parameters and their names stay, and
    so does everything that uses them.

    Raises:
        FarflungError: a layer has dropout.
    """
    for layer in model.inner:
        if any(isinstance(module, nn.Dropout) and module.p for module in layer.modules()):
            raise FarflungError(
                "not yet: train.compile of a model with dropout, whose masks are drawn by sample",
                "write compile = false under [train], or leave nn.Dropout out of the model",
            )
        layer.compile()


def not_compiled(problem: BaseException) -> RunFailed | None:
    """The error for a person if ``problem`` comes from the compiler, else None."""
    if not type(problem).__module__.startswith(_COMPILERS):
        return None
    first = " ".join(str(problem).split())[:300]
    return RunFailed(
        f"torch.compile does not compile this model on this node: {first or type(problem).__name__}",
        "install a C++ compiler (g++), or write compile = false under [train]",
    )
