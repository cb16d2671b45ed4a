"""The trainer's view of a model and an optimiser that a user's own process brings to a run (``farflung.group``).

The run has one layer, with the parameters that the optimiser moves. The process computes with its own copy of the
weights; the trainer has the run's weights, and each step copies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ....proto.errors import FarflungError
from ...data.dataset import Dataset
from ...models.builds import check_norms
from ...models.definition import ModelDefinition
from ...models.own_optimizer import COUNT, state_of
from ...models.stage import StageModel
from ...state.sections.section import Section


class OwnModel(ModelDefinition):
    """The parameters that ``optimizer`` moves, under their names in ``model``.

    Raises FarflungError for parameters that are not float32, lie on several devices, or do not belong to the model, and
    for layers that compute statistics over the batch.
    """

    family = "own"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
        self.parameters = {name: one for name, one in model.named_parameters() if id(one) in moved}
        if len(self.parameters) != len(moved) or not moved:
            raise FarflungError(
                f"the optimizer moves {len(moved)} tensors, of which {len(self.parameters)} are the model's parameters",
                "give the optimizer parameters of the model, and nothing else",
            )
        for name, one in self.parameters.items():
            if one.dtype != torch.float32:
                hint = "keep parameters in float32, and compute under torch.autocast"
                raise FarflungError(f"the parameter {name} is {one.dtype}, not torch.float32", hint)
        devices = {str(one.device) for one in self.parameters.values()}
        if len(devices) > 1:
            raise FarflungError(f"the model is spread over {', '.join(sorted(devices))}", "put it on one device")
        check_norms(model, "the model")
        (self.device,) = {one.device for one in self.parameters.values()}
        super().__init__(["model"], [list(self.parameters)], recompute=False)
        self.shapes = {name: tuple(one.shape) for name, one in self.parameters.items()}
        self._initial = {name: one.detach().cpu().clone() for name, one in self.parameters.items()}

    @property
    def count(self) -> int:
        """Elements of all parameters."""
        return sum(one.numel() for one in self.parameters.values())

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> StageModel:
        return _Weights(self.shapes, torch.device(device))

    def initial(self, name: str, seed: int) -> Tensor:
        return self._initial[name]


class _Weights(StageModel):
    """A module with the parameters' names, whose values are views of the trainer's flat vectors. It computes
    nothing."""

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        super().__init__(0, 0, 1)
        for name in names:
            *way, leaf = name.split(".")
            module: nn.Module = self
            for step in way:
                if step not in dict(module.named_children()):
                    module.add_module(step, nn.Module())
                module = module.get_submodule(step)
            # No values: StageState sets views of its own vectors.
            module.register_parameter(leaf, nn.Parameter(torch.empty(0, device=device)))

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> NoReturn:
        raise TypeError("the model's own process computes")

    def loss_sum(self, logits: Tensor, targets: Tensor) -> NoReturn:
        raise TypeError("the model's own process computes")


class OwnOptimizer:
    """A user's ``torch.optim`` optimiser, whose state lies in the section's vectors, so that joiners can get it.

    Its own learning rates and weight decay are used, not the job's. Raises FarflungError for an optimiser that has
    taken steps already, or whose state is more than tensors of the parameters' shapes and a step count.
    """

    factored = False

    def __init__(self, model: OwnModel, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        if any(float(value.abs().max()) for state in optimizer.state.values() for value in _tensors(state).values()):
            raise FarflungError("the optimizer has taken steps already", "make a new one for the group")
        self.moments, self._counts = state_of(optimizer)

    def offer(self, section: Section, count: int, share: float) -> None:
        """The group sums the gradient itself."""

    def clips(self, count: int) -> bool:
        return True

    def step(self, section: Section, count: int, rate: float) -> None:
        """``rate`` is the job's, and not used."""
        layout, parameters = section.layout, self._model.parameters
        with torch.no_grad():
            for name, values in layout.views(section.x):
                parameters[name].copy_(values)
        for name, values in layout.views(section.grad):
            parameters[name].grad = values
        for moment, vector in section.moments.items():
            for name, values in layout.views(vector):
                self._optimizer.state[parameters[name]][moment] = values
        for name in parameters if self._counts else ():
            self._optimizer.state[parameters[name]][COUNT] = torch.tensor(float(count - 1))
        self._optimizer.step()
        with torch.no_grad():
            for name, values in layout.views(section.x):
                values.copy_(parameters[name])
        self._optimizer.zero_grad()


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and value.numel()}


class Samples(Dataset):
    """Replaces data that only the members have: a sample is its own id."""

    def __init__(self, samples: int) -> None:
        self.samples, self.validation_samples = samples, 0

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        numbers = torch.tensor(list(ids))
        return numbers, numbers
