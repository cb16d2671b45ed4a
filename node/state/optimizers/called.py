"""An optimiser of torch.optim, made by a user's function (``train.optimizer = "package.module:function"``).

Its state lies in the section's vectors, as for the built-in optimisers, so snapshots, rests and joiners contain it. The
learning rate is the schedule's; if the function changes the rate of a group, the group keeps that ratio to the
schedule.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ....proto.errors import OWN, FarflungError
from ...models.own_optimizer import COUNT, called, trial
from ..sections.section import Section
from .optimizers import OfGradients


class CalledOptimizer(OfGradients):
    """Steps a section by the optimiser that ``make(groups)`` returns. ``groups``: parameter groups of torch.optim, one
    of matrices and one of vectors, with "lr" and "weight_decay"; "names" are the parameters' names in the model.

    Raises:
        FarflungError: the function fails, returns no optimiser, or one whose state cannot be shared by members.
    """

    def __init__(self, spec: str, make: Callable[..., Any], rate: float, weight_decay: float) -> None:
        self._spec, self._make, self._rate, self._decay = spec, make, rate, weight_decay
        self._made: weakref.WeakKeyDictionary[Section, tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]]
        self._made = weakref.WeakKeyDictionary()
        self.moments, self._counts = trial(spec, make, rate, weight_decay)

    def step(self, section: Section, count: int, rate: float) -> None:
        layout = section.layout
        views = dict(layout.views(section.x))
        if section not in self._made:
            parameters = {name: nn.Parameter(values) for name, values in views.items()}
            self._made[section] = called(self._spec, self._make, parameters, self._rate, self._decay), parameters
        optimizer, parameters = self._made[section]
        for name, values in views.items():
            parameters[name].data = values
        for name, values in layout.views(section.grad):
            parameters[name].grad = values
        for moment, vector in section.moments.items():
            for name, values in layout.views(vector):
                optimizer.state[parameters[name]][moment] = values
        for one in parameters.values() if self._counts else ():
            optimizer.state[one][COUNT] = torch.tensor(float(count - 1))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["of_rate"]
        try:
            optimizer.step()
        except OWN as error:  # an optimiser of a person's own may fail in any way
            raise FarflungError(
                f"train.optimizer: that of {self._spec} failed at step {count}: {type(error).__name__}: {error}",
                "correct its step; the run's last checkpoint is in its state folder",
            ) from error
        for name, values in views.items():
            if parameters[name].data_ptr() != values.data_ptr():
                values.copy_(parameters[name].detach())
            parameters[name].grad = None
