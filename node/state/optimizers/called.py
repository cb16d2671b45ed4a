"""An optimiser of torch.optim, made by a user's function (``train.optimizer = "package.module:function"``).

Its state lies in the section's vectors, as for the built-in optimisers, so snapshots, rests and joiners contain it. The
learning rate is the schedule's; if the function changes the rate of a group, the group keeps that ratio to the
schedule.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ....proto.errors import OWN, FarflungError
from ..sections.section import Section
from .optimizers import OfGradients

COUNT = "step"
"""The key of the number of steps in the state of torch's optimisers."""


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
        trial = {"0.weight": nn.Parameter(torch.zeros(2, 2)), "0.bias": nn.Parameter(torch.zeros(2))}
        self.moments, self._counts = state_of(self._optimizer(trial))

    def step(self, section: Section, count: int, rate: float) -> None:
        layout = section.layout
        views = dict(layout.views(section.x))
        if section not in self._made:
            parameters = {name: nn.Parameter(values) for name, values in views.items()}
            self._made[section] = self._optimizer(parameters), parameters
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

    def _optimizer(self, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = []
        for matrices in (True, False):
            names = [name for name, one in parameters.items() if (one.dim() > 1) == matrices]
            decay = self._decay if matrices else 0.0
            params = [parameters[name] for name in names]
            if names:
                groups.append({"params": params, "names": names, "lr": self._rate, "weight_decay": decay})
        try:
            made = self._make(groups)
        except OWN as error:  # a person's function may fail in any way
            raise FarflungError(
                f"train.optimizer: {self._spec} failed: {type(error).__name__}: {error}",
                "it is called with a list of groups, as torch.optim takes them",
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise FarflungError(
                f"train.optimizer: {self._spec} gave {type(made).__name__}, no torch.optim.Optimizer",
                "return one of the groups that the function is given",
            )
        moved = {id(one) for group in made.param_groups for one in group["params"]}
        if moved != {id(one) for one in parameters.values()}:
            raise FarflungError(
                f"train.optimizer: that of {self._spec} moves {len(moved)} of {len(parameters)} parameters",
                "give it all groups that the function is given, and nothing else",
            )
        for group in made.param_groups:
            group["of_rate"] = float(group["lr"]) / self._rate
        return made


def state_of(optimizer: torch.optim.Optimizer) -> tuple[tuple[str, ...], bool]:
    """(names of the tensors in its state, whether it counts steps), found by a step of a copy with tiny parameters."""
    tiny: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for one in group["params"]:
            small = nn.Parameter(torch.zeros([2] * one.ndim))
            small.grad = torch.zeros_like(small)
            tiny[id(one)] = small
    trial = copy.deepcopy(optimizer, dict(tiny))
    trial.state.clear()
    kind = type(optimizer).__name__
    before = _numbers(trial)
    try:
        trial.step()
    except OWN as error:  # an optimiser of a person's own may fail in any way, and LBFGS wants a closure
        hint = "take one that steps on gradients alone, such as torch.optim.AdamW"
        raise FarflungError(f"{kind} takes no step by itself: {type(error).__name__}: {error}", hint) from error
    names: set[str] = set()
    counts = False
    for parameter, state in trial.state.items():
        for name, value in state.items():
            if name == COUNT:
                counts = True
            elif isinstance(value, Tensor) and value.shape == parameter.shape:
                names.add(name)
            elif value is not None:
                hint = "take one whose state has the parameters' shapes, such as torch.optim.AdamW or SGD"
                raise FarflungError(f"{kind} keeps {name!r}, which no member can be given", hint)
    if changed := sorted(name for name, value in _numbers(trial).items() if before.get(name) != value):
        hint = "take one that counts its steps as 'step' in the parameters' state, and changes nothing else"
        raise FarflungError(f"{kind} changes its {', '.join(changed)} at a step, which no member can be given", hint)
    _check_beginning(optimizer, trial, tiny, names, counts)
    return tuple(sorted(names)), counts


def _check_beginning(
    optimizer: torch.optim.Optimizer, trial: torch.optim.Optimizer, tiny: dict[int, Any], names: set[str], counts: bool
) -> None:
    """FarflungError where the state that ``trial`` made for itself did not begin with zeros, as a section's does:
    another one from zeros is not where it is after a step without gradients."""
    other = copy.deepcopy(optimizer, dict(tiny))
    other.state.clear()
    for one in trial.state:
        other.state[one].update({name: torch.zeros_like(one) for name in names})
        if counts:
            other.state[one][COUNT] = torch.tensor(0.0)
    other.step()
    for one, state in trial.state.items():
        for name in sorted(names):
            if name in state and not torch.equal(torch.as_tensor(state[name]), other.state[one][name]):
                hint = "take one whose state begins with zeros, such as torch.optim.AdamW or SGD"
                raise FarflungError(f"{type(trial).__name__} begins with {name!r} that is not 0", hint)


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser keeps in numbers and words of its own or of its groups, by name; the rate is the schedule's."""
    kept = {f"{name!r}": value for name, value in vars(optimizer).items() if not name.startswith("_")}
    for number, group in enumerate(optimizer.param_groups):
        kept.update({f"{name!r} of group {number}": value for name, value in group.items() if name != "lr"})
    return {name: value for name, value in kept.items() if isinstance(value, (bool, int, float, str, tuple))}
