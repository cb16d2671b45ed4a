"""Converts frozen values to JSON and back, for data that the same version of farflung reads again.

Tuples are lists; mappings, frozen sets and dataclasses are objects with their kind under the key "". Fields that have
their default are left out. Reading makes only the kinds that were given, because the text may come from anywhere.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

_KIND = ""


class Unreadable(ValueError):
    """The text was written by another version, or is damaged."""


class Records:
    """``kinds``: the dataclasses that may be written and read."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {name: {one.name: one for one in dataclasses.fields(kind)} for name, kind in self._kinds.items()}

    def text(self, value: Any) -> str:
        """One line of JSON. TypeError: the value has a part that can't be written."""
        return json.dumps(self.plain(value), separators=(",", ":"))

    def read(self, text: str) -> Any:
        """The value again. Unreadable."""
        try:
            return self.value(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise Unreadable(str(error)) from None

    def plain(self, value: Any) -> Any:
        """The value as lists, objects, texts and numbers."""
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if isinstance(value, tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, frozenset):
            return {_KIND: "set", "of": sorted((self.plain(one) for one in value), key=json.dumps)}
        if isinstance(value, Mapping):
            return {_KIND: "map", "of": [[self.plain(key), self.plain(one)] for key, one in value.items()]}
        kind = type(value).__name__
        if kind not in self._kinds:
            raise TypeError(f"a {kind} cannot be written")
        found = {_KIND: kind}
        for name, field in self._fields[kind].items():
            if field.init and not _is_default(field, one := getattr(value, name)):
                found[name] = self.plain(one)
        return found

    def value(self, plain: Any) -> Any:
        """The value from which ``plain`` was made. Unreadable or TypeError where ``plain`` was not made here."""
        if isinstance(plain, list):
            return tuple(self.value(one) for one in plain)
        if not isinstance(plain, dict):
            return plain
        kind = plain.get(_KIND)
        if kind == "set":
            return frozenset(self.value(one) for one in plain["of"])
        if kind == "map":
            return {self.value(key): self.value(one) for key, one in plain["of"]}
        if kind not in self._kinds:
            raise Unreadable(f"there is no {str(kind)[:80]!r}")
        fields = {name: self.value(one) for name, one in plain.items() if name != _KIND}
        return self._kinds[kind](**fields)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(type(value) is type(made := field.default_factory()) and value == made)
    return type(value) is type(field.default) and bool(value == field.default)
