"""A decoder whose blocks write into a few coordinates of the hidden state: ``model.subspace`` of the job.

The hidden state of a token has ``width`` coordinates. Blocks read all of them and add only to the first ``rank``; the
others keep the values that the embeddings of the token and its position set, fixed random signs that every node can
generate. So a stage sends [b, t, rank], and the next stage restores the whole hidden state exactly: forward and back
the links carry width / rank times fewer values, before any codec.

This is the subspace of Ramasinghe et al. 2025 ("Protocol Models": weights that write into the residual stream are held
in a low-rank subspace, and the embedding has a fixed part beside a trained one) with the subspace aligned to
coordinates. Matrices that read the hidden state can rotate it, so no other subspace could express more, up to the gains
of the norms; and no basis, projection or constraint in the optimiser is needed: weights that would write outside of the
subspace do not exist. A sign takes one bit where a normal value takes 32, so that a stage keeps
rows x (width - rank) / 8 bytes of them.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...job.tables.model import SUBSPACE_FAMILIES
from ...proto.errors import FarflungError
from .definition import LanguageModel, generator
from .stage import LanguageStage

WRITERS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3"), ("self_attn.o_proj", "mlp.down_proj")),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
}
"""For each family, the matrices whose outputs are added directly to the hidden state. With a norm between the two, the
sum would leave the subspace (tests/node/models/test_subspace.py checks this)."""


class Fixed:
    """The fixed coordinates of an embedding table's rows: random signs times ``scale``, stored as a bit each."""

    def __init__(self, seed: int, name: str, rows: int, width: int, scale: float) -> None:
        random = generator(seed, f"{name}/fixed")
        self._bits = torch.from_numpy(random.integers(0, 256, (rows, -(-width // 8)), dtype=np.uint8))
        self._shifts = torch.arange(8, dtype=torch.uint8)
        self._width, self._scale = width, scale

    def to(self, device: torch.device) -> Fixed:
        """The same with its bits on ``device``."""
        moved = copy.copy(self)
        moved._bits, moved._shifts = self._bits.to(device), self._shifts.to(device)
        return moved

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows ``ids``, int64 of any shape: float32, with one dimension more."""
        bits = self._bits[ids].unsqueeze(-1).bitwise_right_shift(self._shifts).bitwise_and_(1)
        return bits.flatten(-2)[..., : self._width].float().mul_(2 * self._scale).sub_(self._scale)


class SplitEmbedding(nn.Embedding):
    """An embedding table whose first coordinates train; the others are ``fixed``."""

    fixed: Fixed | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.fixed is None:
            raise RuntimeError("an embedding without its fixed part")
        return torch.cat([super().forward(input), self.fixed(input)], dim=-1)


class _Narrow:
    """Mixin for linear layers that write ``weight``'s outputs into the first of ``width`` coordinates, zeros after
    them."""

    width: int

    def forward(self, values: Tensor) -> Tensor:
        written: Tensor = super().forward(values)  # type: ignore[misc]
        return functional.pad(written, (0, self.width - written.shape[-1]))


class Coordinates:
    """The border between stages: the hidden state [b, t, width] to [b, t, rank] and back."""

    def __init__(self, rank: int, tokens: Fixed, places: Fixed | None) -> None:
        self._rank, self._tokens, self._places = rank, tokens, places

    def shrunk(self, hidden: Tensor) -> Tensor:
        """The coordinates of the hidden state that the stage after needs, [b, t, rank]."""
        return hidden[..., : self._rank].contiguous()

    def grown(self, received: Tensor, tokens: Tensor, places: Tensor | None) -> Tensor:
        """The hidden state, from what the stage before sent for ``tokens`` (int64 [b, t])."""
        if received.shape[-1] != self._rank or received.shape[:-1] != tokens.shape:
            raise RuntimeError(f"{tuple(received.shape)} came for tokens {tuple(tokens.shape)} and rank {self._rank}")
        fixed = self._tokens(tokens)
        if self._places is not None:
            there = torch.arange(tokens.shape[1], device=tokens.device) if places is None else places
            fixed = fixed + self._places(there)
        return torch.cat([received, fixed.to(received.dtype)], dim=-1)


class SubspaceModel(LanguageModel):
    """A language model that begins with random weights and whose blocks write into ``rank`` coordinates."""

    needs_tokens = True

    def __init__(self, config: Any, rank: int, seed: int, recompute: bool = False) -> None:
        self.rank, self._seed = rank, seed
        self._width = int(config.hidden_size)
        if config.model_type not in WRITERS:
            raise FarflungError(
                f"model.subspace: what writes into the hidden state of {config.model_type} is not known",
                hint=f"use one of the families {', '.join(SUBSPACE_FAMILIES)}",
            )
        super().__init__(config, recompute, functools.partial(_narrow, rank=rank))
        self._tables = [
            (path, module) for path, module in self.skeleton.named_modules() if isinstance(module, SplitEmbedding)
        ]

    @property
    def stored(self) -> dict[str, tuple[int, ...]]:
        empty = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        return {name: tuple(self.exported(name, values).shape) for name, values in empty.items()}

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> LanguageStage:
        stage = super().build(first, last, device)
        fixed = {path: one.to(torch.device(device)) for path, one in self._fixed.items()}
        if stage.is_first:
            for path, _ in self._tables:
                table = stage.outside(path)
                assert isinstance(table, SplitEmbedding)
                table.fixed = fixed[path]
        tokens, *places = fixed.values()
        stage.border = Coordinates(self.rank, tokens, places[0] if places else None)
        return stage

    def exported(self, name: str, values: Tensor) -> Tensor:
        """The parameter in full width: zeros where the matrix writes nothing, the fixed part of an embedding."""
        path, _, kind = self.inner(name).rpartition(".")
        module = self.skeleton.get_submodule(path) if name in self.shapes else None
        if isinstance(module, SplitEmbedding):
            if values.is_meta:
                return values.new_empty(len(values), self._width)
            return torch.cat([values, self._fixed[path].to(values.device)(torch.arange(len(values)))], dim=1)
        if not isinstance(module, _Narrow):
            return values
        rows = kind == "bias" or isinstance(module, nn.Linear)
        beyond = self._width - self.rank
        return functional.pad(values, (0, 0) * (values.dim() - 1) + (0, beyond) if rows else (0, beyond))

    @functools.cached_property
    def _fixed(self) -> dict[str, Fixed]:
        """The fixed part of each embedding table, on the CPU, by its path; the token embedding comes first."""
        scale = float(getattr(self.config, "initializer_range", 0.02))
        return {
            path: Fixed(self._seed, path, module.num_embeddings, self._width - self.rank, scale)
            for path, module in self._tables
        }


def _narrow(model: Any, rank: int) -> None:
    """Makes the matrices of a `transformers` model on the meta device that write into the hidden state, and its
    embeddings, narrower."""
    writers = _writers()
    endings = WRITERS[model.config.model_type]
    with torch.device("meta"):
        for path, module in list(model.named_modules()):
            if path.endswith(endings):
                if isinstance(module, nn.Linear):
                    made = writers[nn.Linear](module.in_features, rank, module.bias is not None)
                else:
                    made = writers[type(module)](rank, module.nx)
                made.width = int(model.config.hidden_size)
                model.set_submodule(path, made)
            elif isinstance(module, nn.Embedding):
                model.set_submodule(path, SplitEmbedding(module.num_embeddings, rank))


@functools.cache
def _writers() -> dict[type, Any]:
    import transformers

    conv = transformers.pytorch_utils.Conv1D
    return {kind: type(f"Narrow{kind.__name__}", (_Narrow, kind), {}) for kind in (nn.Linear, conv)}
