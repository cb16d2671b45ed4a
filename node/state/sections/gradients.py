"""Collects the gradients of a stage's parameters in its sections' flat vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from .leaving import Leaving


class Gradients:
    """Knows where each parameter's gradient belongs, and which gradients are still to come in this step.

    The first backward pass of a step writes, further ones add: zeroing the vectors first would cost two more passes
    over memory as large as the model.
    """

    def __init__(self, parameters: Mapping[str, Tensor], places: Mapping[str, Tensor], apart: bool = False) -> None:
        """``places``: views of the sections' gradient vectors, in the parameters' shapes. ``apart``: they lie in main
        memory and the parameters on a device, which then has a gradient only until it is copied (leaving.py)."""
        self._parameters, self._places, self._apart = dict(parameters), dict(places), apart
        self._arrivals = _Arrivals()
        self._awaited = self._arrivals.awaited
        for name, parameter in parameters.items():
            watch: Callable[[Callable[[Tensor], None]], Any] = parameter.register_post_accumulate_grad_hook
            watch(partial(_goes if apart else _came, places[name], self._arrivals, name))
            if not apart:
                parameter.grad = places[name]

    @contextmanager
    def told(self, tell: Callable[[str], None]) -> Iterator[None]:
        """A context in which ``tell`` is called with the name of each parameter as a backward pass has added to its
        gradient, in the thread of that pass; ``apart``, when it is in main memory, of the last one at the end of the
        context. What ``tell`` raises ends the pass."""
        arrivals = self._arrivals
        arrivals.leaving.land()  # of passes before
        arrivals.tell = arrivals.leaving.tell = tell
        try:
            yield
            arrivals.leaving.land()
        finally:
            arrivals.tell = arrivals.leaving.tell = None

    def begin(self) -> None:
        """A step begins."""
        self._arrivals.leaving.drop()
        self._awaited.update(self._parameters)
        for parameter in self._parameters.values():
            parameter.grad = None

    def put(self, name: str, values: Tensor, scale: float) -> None:
        """Set the step's gradient of a parameter to ``scale`` times ``values``; for a model computed elsewhere."""
        self._places[name].copy_(values).mul_(scale)
        self._awaited.discard(name)

    def end(self) -> None:
        """All backward passes are done: set the gradients that did not come to 0."""
        self._arrivals.leaving.land()
        for name in self._awaited:
            self._places[name].zero_()
            if not self._apart:
                self._parameters[name].grad = self._places[name]
        self._awaited.clear()


class _Arrivals:
    """What the hooks of all parameters share."""

    def __init__(self) -> None:
        self.awaited: set[str] = set()
        """Parameters without a gradient in this step."""
        self.tell: Callable[[str], None] | None = None
        self.leaving = Leaving()


def _came(place: Tensor, arrivals: _Arrivals, name: str, parameter: Tensor) -> None:
    """Hook: a parameter has its gradient. Not a method, which would make the parameter keep all others alive."""
    if name in arrivals.awaited:
        assert parameter.grad is not None
        parameter.grad = place.copy_(parameter.grad)
        arrivals.awaited.discard(name)
    if arrivals.tell is not None:
        arrivals.tell(name)


def _goes(place: Tensor, arrivals: _Arrivals, name: str, parameter: Tensor) -> None:
    """Hook, as `_came`: the gradient goes to its place in main memory."""
    assert parameter.grad is not None
    gradient, parameter.grad = parameter.grad, None
    adds = name not in arrivals.awaited
    arrivals.awaited.discard(name)
    arrivals.leaving.send(name, gradient, place, adds)
