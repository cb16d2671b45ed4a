"""Converts between the tensors of files and the parameters of `transformers` models, where the two differ.

Files have a mixture of experts as one tensor per expert, the model has one tensor per layer; some families' files have
other names. `transformers` describes both (conversion_mapping.py); here its description is applied to single
parameters, so that a node reads only the tensors of its own layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....proto.errors import FarflungError


@dataclass(frozen=True)
class Made:
    """Parameters that are made together from some tensors of the files.

    sources: (name in the files, the pattern of the converter that it matches). parameters: full names.
    """

    sources: tuple[tuple[str, str], ...]
    parameters: tuple[str, ...]
    target: str
    converter: Any | None
    renamings: tuple[Any, ...]
    model: Any

    def read(self, source: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The parameters by name, made from the files' tensors; ``source(name)`` reads one of these."""
        return _converted(self.converter, self.sources, self.target, source, self.model)

    def written(self, parameter: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The files' tensors by name, made from the parameters; ``parameter(name)`` reads one of these."""
        if self.converter is None:
            return {self.sources[0][0]: parameter(self.target)}
        reverse = self.converter.reverse_transform()
        renamed = [reverse.rename_source_key(name) for name in self.parameters]
        given = [(name, str(pattern)) for name, (_, pattern) in zip(self.parameters, renamed, strict=True)]
        found = _converted(reverse, given, renamed[0][0], parameter, self.model)
        named = {}
        for name, values in found.items():
            for renaming in self.renamings:
                name, _ = renaming.rename_source_key(name)
            named[name] = values
        wanted = {name for name, _ in self.sources}
        prefix = f"{self.model.base_model_prefix}."
        if not wanted <= named.keys():
            named = {name.removeprefix(prefix): values for name, values in named.items()}
        if wanted - named.keys():
            raise FarflungError(
                f"{self.target} can't be written as the model folder has it: {min(wanted)} does not come out",
                hint="export with the version of transformers that the run was started with",
            )
        return {name: named[name].contiguous() for name in wanted}


def conversions(
    model: Any, wanted: Iterable[str], stored: Iterable[str], shape: Callable[[str], tuple[int, ...]]
) -> dict[str, Made]:
    """For each ``wanted`` parameter that files have in another form: how it is made from the ``stored`` tensors.

    Args:
        model: the `transformers` model, on the meta device. shape: gives the shape of a stored tensor.
    """
    from transformers import core_model_loading as loading
    from transformers.conversion_mapping import get_model_conversion_mapping

    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, loading.WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    names = dict.fromkeys(wanted, True)
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(stored, key=loading.dot_natural_key):
        target, pattern = loading.rename_source_key(name, renamings, converters, model.base_model_prefix, names)
        if target in names:
            groups.setdefault(target, []).append((name, pattern or ""))
    own = get_model_conversion_mapping(model, add_legacy=False)  # without old formats: never written
    backwards = tuple(one.reverse_transform() for one in reversed(own) if isinstance(one, loading.WeightRenaming))
    found = {}
    for target, sources in groups.items():
        converter = by_pattern.get(sources[0][1])
        given = [(name, pattern or name) for name, pattern in sources]
        try:
            made = _converted(converter, given, target, lambda name: torch.empty(shape(name), device="meta"), model)
        except Exception:
            continue
        whole = Made(tuple(given), tuple(made), target, converter, backwards, model)
        found.update(dict.fromkeys(made, whole))
    return found


def _converted(
    converter: Any | None,
    sources: Iterable[tuple[str, str]],
    target: str,
    read: Callable[[str], Tensor],
    model: Any,
) -> dict[str, Tensor]:
    if converter is None:
        ((name, _),) = sources
        return {target: read(name)}
    one = copy.deepcopy(converter)
    for name, pattern in sources:
        one.add_tensor(target, name, pattern, read(name))
    values: Mapping[str, Any] = one.convert(target, model=model, config=model.config)
    return {name: value[0] if isinstance(value, list) else value for name, value in values.items()}
