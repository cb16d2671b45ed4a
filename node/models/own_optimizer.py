"""An optimiser of torch.optim, made by a user's function (``train.optimizer = "package.module:function"``): how the
function is called, and what state the optimiser keeps. node/state/optimizers/called.py steps it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...proto.errors import OWN, FarflungError

COUNT = "step"
"""The key of the number of steps in the state of torch's optimisers."""


def called(
    spec: str, make: Callable[..., Any], parameters: dict[str, nn.Parameter], rate: float, decay: float
) -> torch.optim.Optimizer:
    """The optimiser that ``make`` of the job's ``spec`` makes for ``parameters``. Each of its groups has "of_rate", the
    ratio of its learning rate to ``rate``. FarflungError: it fails, or its optimiser can't be used."""
    groups: list[dict[str, Any]] = []
    for matrices in (True, False):
        names = [name for name, one in parameters.items() if (one.dim() > 1) == matrices]
        params = [parameters[name] for name in names]
        if names:
            groups.append({"params": params, "names": names, "lr": rate, "weight_decay": decay if matrices else 0.0})
    try:
        made = make(groups)
    except OWN as error:  # a person's function may fail in any way
        raise FarflungError(
            f"train.optimizer: {spec} failed: {type(error).__name__}: {error}",
            "it is called with a list of groups, as torch.optim takes them",
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise FarflungError(
            f"train.optimizer: {spec} gave {type(made).__name__}, no torch.optim.Optimizer",
            "return one of the groups that the function is given",
        )
    moved = {id(one) for group in made.param_groups for one in group["params"]}
    if moved != {id(one) for one in parameters.values()}:
        raise FarflungError(
            f"train.optimizer: that of {spec} moves {len(moved)} of {len(parameters)} parameters",
            "give it all groups that the function is given, and nothing else",
        )
    for group in made.param_groups:
        group["of_rate"] = float(group["lr"]) / rate
    return made


def trial(spec: str, make: Callable[..., Any], rate: float, decay: float) -> tuple[tuple[str, ...], bool]:
    """`state_of` the optimiser that ``make`` makes for a matrix and a vector. FarflungError: it can't be used."""
    tiny = {"0.weight": nn.Parameter(torch.zeros(2, 2)), "0.bias": nn.Parameter(torch.zeros(2))}
    return state_of(called(spec, make, tiny, rate, decay))


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
