"""Weights of a model folder (config.json and *.safetensors), read tensor by tensor.

A node reads through `Wire.fetch`, so only its own stage's tensors travel; the coordinator's machine reads the folder
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....job.data.facts import Facts
from ....job.schema import Job
from ....proto.errors import FarflungError
from ..definition import LanguageModel, ModelDefinition
from .conversion import Made, conversions
from .fetch import Fetch
from .safetensors_range import DTYPES, Slot, Source

_BLOCK = 64 << 20  # bytes compared at a time
PREFIX = "model/"  # prefix of the artifacts' names
CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_BEFORE = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}


class Weights:
    """The tensors of a model folder, found by parameter name. Reads each file's header when it is first needed."""

    def __init__(self, fetch: Fetch, files: Iterable[str]) -> None:
        self._source = _model_folder(fetch)
        self._headers: dict[str, dict[str, Slot]] = {}
        self._made: tuple[LanguageModel, dict[str, Made]] | None = None
        names = {name.removeprefix(PREFIX) for name in files}
        if SINGLE in names:  # if there is an index too, transformers reads the single file
            self.file_of: dict[str, str] = dict.fromkeys(self._header(SINGLE), SINGLE)
        elif INDEX in names:
            listed = self._source.json(fetch(PREFIX + INDEX), INDEX).get("weight_map")
            if not isinstance(listed, dict):
                raise FarflungError(f"{INDEX} of the model folder has no weight_map", hint="save the model again")
            self.file_of = {str(name): str(file) for name, file in listed.items()}
            if absent := sorted(set(self.file_of.values()) - names):
                raise FarflungError(f"the model folder lacks {absent[0]}, which {INDEX} names", hint="copy it there")
        else:
            raise FarflungError(
                f"the model folder has neither {SINGLE} nor {INDEX}",
                hint="load the model with transformers and save it with save_pretrained(folder)",
            )

    def stored_name(self, definition: LanguageModel, name: str) -> str | None:
        """The name under which the folder has a parameter; None when it lacks it.

        A folder saved from the base model lacks the prefix ("h.0.ln_1.weight"); heads have had two names; a tied
        parameter may be stored under the head's name.
        """
        prefix = definition.skeleton.base_model_prefix
        candidates = [name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"]
        for now, before in _BEFORE.items():  # TensorFlow's names, as in the first files of BERT
            candidates += [one.removesuffix(now) + before for one in candidates if one.endswith(now)]
        if name in (definition.tied, definition.head_name):
            candidates += definition.head_names
        return next((candidate for candidate in candidates if candidate in self.file_of), None)

    def made(self, definition: LanguageModel, name: str) -> Made | None:
        """How to make a parameter that has no stored tensor of its own from stored tensors; None if impossible."""
        if self._made is None or self._made[0] is not definition:
            wanted = [definition.inner(one) for one in definition.stored]
            shape = {stored: self.slot(stored).shape for stored in self.file_of}.__getitem__
            self._made = definition, conversions(definition.skeleton, wanted, self.file_of, shape)
        return self._made[1].get(definition.inner(name))

    def has(self, definition: LanguageModel, name: str) -> bool:
        """Whether the folder has a parameter, as one tensor or to be made from several."""
        return self.stored_name(definition, name) is not None or self.made(definition, name) is not None

    def parameter(self, definition: LanguageModel, name: str) -> Tensor:
        """A parameter in its file's dtype, on the CPU. Only for parameters in which ``problems`` found no mistake."""
        stored = self.stored_name(definition, name)
        if stored is not None:
            return self.read(stored)
        made = self.made(definition, name)
        assert made is not None
        return made.read(self.read)[definition.inner(name)]

    def shape_of(self, definition: LanguageModel, name: str) -> tuple[int, ...]:
        """The shape of a parameter that is made of several tensors."""
        made = self.made(definition, name)
        assert made is not None
        whole = made.read(lambda stored: torch.empty(self.slot(stored).shape, device="meta"))
        return tuple(whole[definition.inner(name)].shape)

    def slot(self, stored: str) -> Slot:
        """Where a stored tensor is."""
        file = self.file_of[stored]
        slots = self._header(file)
        if stored not in slots:
            raise FarflungError(
                f"{file} of the model folder lacks the tensor {stored}, which {INDEX} names there",
                hint="copy or download both files again, or load the model with transformers and save it again",
            )
        return slots[stored]

    def heads(self, definition: LanguageModel) -> list[str]:
        """The names under which the folder stores a separate head."""
        return [name for name in definition.head_names if name in self.file_of]

    def ends(self) -> dict[str, int]:
        """The size in bytes of each file, according to its header."""
        found: dict[str, int] = {}
        for file in sorted(set(self.file_of.values())):
            found[file] = max((slot.end for slot in self._header(file).values()), default=0)
        return found

    def equal(self, one: str, other: str) -> bool:
        """Whether two stored tensors have the same values, compared in blocks to save memory."""
        slots = self.slot(one), self.slot(other)
        if slots[0].shape != slots[1].shape:
            return False
        if slots[0].dtype != slots[1].dtype:
            return bool(torch.equal(self.read(one).float(), self.read(other).float()))
        size = slots[0].end - slots[0].start
        for at in range(0, size, _BLOCK):
            parts = (
                replace(slot, dtype="U8", shape=(), start=slot.start + at, end=min(slot.start + at + _BLOCK, slot.end))
                for slot in slots
            )
            first, second = (self._source.raw(part, name) for part, name in zip(parts, (one, other), strict=True))
            if first != second:
                return False
        return True

    def read(self, stored: str) -> Tensor:
        """A stored tensor in its own dtype, on the CPU."""
        return self._source.read(self.slot(stored), stored)

    def _header(self, file: str) -> dict[str, Slot]:
        if file not in self._headers:
            self._headers[file] = self._source.slots(file)
        return self._headers[file]


def problems(definition: LanguageModel, weights: Weights, names: Iterable[str] | None = None) -> list[str]:
    """The mistakes in the folder's tensors for this model, a sentence each. ``names``: the parameters to check; None:
    all."""
    found, shapes = [], definition.stored
    for name in shapes if names is None else names:
        stored, made = weights.stored_name(definition, name), None
        if stored is None and (made := weights.made(definition, name)) is None:
            if definition.begins_anew(name):
                continue
            found.append(f"the tensor {name} is missing")
            continue
        sources = [stored] if stored else [source for source, _ in made.sources] if made else []
        bad = [wrong for source in sources if (wrong := _wrong(weights, source))]
        shape = weights.slot(stored).shape if stored else weights.shape_of(definition, name)
        if shape != shapes[name] and not bad:
            bad = [f"{sources[0]} has the shape {list(shape)}, the configuration says {list(shapes[name])}"]
        found += bad[:1]
    return found


def _wrong(weights: Weights, stored: str) -> str | None:
    slot = weights.slot(stored)
    if slot.dtype not in DTYPES:
        return f"{stored} has the type {slot.dtype}, not one of {', '.join(DTYPES)}"
    if slot.end - slot.start != math.prod(slot.shape) * DTYPES[slot.dtype].itemsize:
        return f"{stored} has {slot.end - slot.start} bytes in {slot.file}, too few or too many"
    return None


def check(definition: LanguageModel, weights: Weights, where: str) -> None:
    """FarflungError if the folder ``where`` does not fit the model; it names at most three mistakes."""
    for file, wanted in weights.ends().items():
        if (size := (Path(where) / file).stat().st_size) != wanted:
            how = "is cut off" if size < wanted else "has something behind its end"
            raise FarflungError(
                f"{where}: {file} {how}: it has {size} bytes, its header says {wanted}",
                hint="copy or download that file again",
            )
    _check_tied(definition, weights, where)
    if found := problems(definition, weights):
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        hint = "config.json and the weights must belong together: save the model again with save_pretrained"
        if not problems(definition, weights, [name for name in definition.stored if not definition.begins_anew(name)]):
            hint = "that is a classifier's head: name as many classes in data.classes, or take it out of the folder"
        raise FarflungError(f"{where}: {'; '.join(found[:3])}{more}", hint)


def _check_tied(definition: LanguageModel, weights: Weights, where: str) -> None:
    """FarflungError if the configuration ties the head to the embedding but the files have a different head: then
    transformers does not tie them, and training one tied parameter would lose the other."""
    embedding = weights.stored_name(definition, definition.tied) if definition.tied else None
    for head in weights.heads(definition) if embedding else ():
        if embedding != head and not weights.equal(str(embedding), head):
            raise FarflungError(
                f"{where}: config.json ties the head to the embedding, but {head} and {embedding} differ",
                hint=f'write "tie_word_embeddings": false into {Path(where) / CONFIG}: transformers, too, takes '
                "the two for two then",
            )


def initial_weights(
    definition: ModelDefinition, names: Sequence[str], seed: int, weights: Weights | None = None
) -> dict[str, Tensor]:
    """Initial values of the parameters ``names``, float32 on the CPU: from the model folder if there is one, else from
    the seed."""
    if weights is None:
        return {name: definition.initial(name, seed) for name in names}
    assert isinstance(definition, LanguageModel)
    if found := problems(definition, weights, names):
        raise FarflungError(f"the pretrained model: {found[0]}", hint="start the coordinator again with a whole folder")
    return {
        name: weights.parameter(definition, name).float()
        if weights.has(definition, name)
        else definition.initial(name, seed)
        for name in names
    }


def weights_of(job: Job, facts: Facts | None, fetch: Fetch | None = None) -> Weights | None:
    """The pretrained weights of a job, read by ``fetch`` (None: from the job's folder); None if the job starts from
    random weights."""
    if job.model.pretrained is None:
        return None
    if fetch is not None and facts is not None:
        files = [name for name in facts.artifacts if name.startswith(PREFIX)]
    else:
        folder = Path(job.model.pretrained)
        fetch, files = folder_fetch(folder), [path.name for path in folder.iterdir()]
    return Weights(fetch, files)


def read_config(fetch: Fetch | None, folder: str) -> dict[str, Any]:
    """config.json of a pretrained model, from the artifacts or (without ``fetch``) from its folder."""
    fetch = fetch or folder_fetch(Path(folder))
    return _model_folder(fetch).json(fetch(PREFIX + CONFIG), CONFIG)


def folder_fetch(folder: Path) -> Fetch:
    """Reads the artifacts "model/FILE" from a folder."""

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = folder / name.removeprefix(PREFIX)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise FarflungError(
                f"{path} can't be read: {error.strerror}", hint="model.pretrained names a folder"
            ) from error

    return fetch


def _model_folder(fetch: Fetch) -> Source:
    return Source(fetch, PREFIX, "the model folder", "save the model again")
