"""Messages about values that a job may not have: the key, the allowed values, and the nearest word.

The sentences come from the tables' fields: a field's description is what is allowed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from .schema import Job

Key = tuple[str, ...]


Mistake = tuple[Key, str]


_LATER = {
    ("model", "untie"): "model.untie; write tie = false",
    ("run", "database"): "a database server",
}


def schema_mistakes(error: ValidationError, raw: dict[str, Any]) -> Iterator[Mistake]:
    """(key, sentence) for each value that the tables do not allow; ``raw``: the job file as tomllib read it."""
    told: set[Key] = set()
    for item in error.errors():
        parts = [str(part) for part in item["loc"] if isinstance(part, str)]
        length = 1
        while length < len(parts) and _table(parts[:length]).model_fields:
            length += 1
        key = tuple(parts[:length])
        if key not in told:  # a value that may have two types gives an error for each
            told.add(key)
            yield key, _schema_sentence(key, item, raw)


def _schema_sentence(key: Key, item: Any, raw: dict[str, Any]) -> str:
    name = ".".join(key)
    if item["type"] == "extra_forbidden":
        if key in _LATER:
            return f"{name}: not yet: {_LATER[key]}"
        if len(key) == 1:
            return f"unknown table [{name}]{nearest(key[0], Job.model_fields)}; allowed: {_words(Job.model_fields)}"
        known = _table(key[:-1]).model_fields
        elsewhere = [f"[{other}]" for other in Job.model_fields if key[-1] in _table([other]).model_fields]
        near = f"; it belongs into {' or '.join(elsewhere)}" if elsewhere else nearest(key[-1], known)
        return f"unknown key {name}{near}; allowed in [{'.'.join(key[:-1])}]: {_words(known)}"
    if item["type"] == "missing":
        return f"the table [{name}] is missing" if len(key) == 1 else f"{name} is missing; allowed: {allowed(key)}"
    if item["type"] in ("not_yet", "choice"):
        return f"{name}: {item['msg']}"
    if len(key) == 1:
        return f"[{name}] must be a table"
    return f"{name} = {shown(item.get('input'))} is wrong: allowed is {allowed(key)}"


def allowed(key: Key) -> str:
    """The allowed values of a key: the description of its field."""
    field = _table(key[:-1]).model_fields.get(key[-1])
    return field.description or "see docs/reference.md" if field else "see docs/reference.md"


def _table(path: Sequence[str]) -> type[BaseModel]:
    """The table ``[a.b]`` of the path ("a", "b"); one without keys where there is none."""
    kind: type[BaseModel] = Job
    for name in path:
        field = kind.model_fields.get(name)
        kinds = _parts_of(field.annotation) if field else []
        kind = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), BaseModel)
    return kind


def _parts_of(kind: Any) -> list[Any]:
    """A type and the types inside it: for ``list[Mixed] | None`` also ``Mixed``."""
    return [kind, *(part for inner in get_args(kind) for part in _parts_of(inner))]


def _words(known: Any) -> str:
    return ", ".join(known)


def nearest(word: str, known: Any) -> str:
    """ "; did you mean X?", or nothing where no known word is near."""
    american = {"optimiser": "optimizer", "tokeniser": "tokenizer"}.get(word, word)
    near = difflib.get_close_matches(american, list(known), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: Any) -> str:
    """A value for a message: as JSON, at most 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
