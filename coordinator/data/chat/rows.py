"""Reads rows of conversations in the published formats into one form: messages, or a prompt and its completion.

A row has ``messages`` (``role`` and ``content``), ``conversations`` as ShareGPT has them (``from`` and ``value``),
``prompt`` and ``completion`` (texts, or messages), or ``input_ids`` with ``labels``. Any other row is an error with its
file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....proto.errors import JobError
from ..files.records import whole_text
from ..files.sources import compression_of, opened
from ..files.tables import rows_of

COLUMNS = (
    "messages", "conversations", "conversation", "prompt", "completion", "tools", "system", "input_ids", "labels",
    "attention_mask",
)  # fmt: skip
"""The keys of a row that are read; others are ignored."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's names of the speakers -> roles."""
FORMS = 'rows need "messages", "conversations" (ShareGPT), or "prompt" and "completion": docs/how-to/chat.md'


@dataclass(frozen=True)
class Conversation:
    """One row. ``messages``, of which the assistant's turns from message ``begin`` on are learnt; or ``texts``, a
    prompt and its completion; or ``tokens`` with, for each, whether it trains."""

    where: str
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] | None = None
    begin: int = 0
    texts: tuple[str, str] | None = None
    tokens: tuple[Sequence[int], Sequence[bool]] | None = None


def conversations(name: str) -> Iterator[Conversation]:
    """The rows of a file, by its content: jsonl, one JSON list, or parquet. JobError with file and line."""
    with opened(name, compression_of(name)) as file:
        for where, row in rows_of(name, file, "chat", FORMS, COLUMNS):
            yield conversation(where, row)


def first_row(name: str) -> Mapping[str, Any]:
    """The first row of a file, with all its columns. JobError: there is no row, or it is no JSON object."""
    with opened(name, compression_of(name)) as file:
        where, row = next(rows_of(name, file, "chat", FORMS), (name, None))
    if not isinstance(row, Mapping):
        raise JobError(f"{where}: no JSON object", FORMS)
    return row


def conversation(where: str, row: Any) -> Conversation:
    """A row normalised to messages. JobError: it is no conversation."""
    if not isinstance(row, Mapping):
        raise JobError(f"{where}: no JSON object, but {type(row).__name__}", FORMS)
    row = {key: _clean(value) for key, value in row.items() if value is not None}
    tools = _tools(where, row.get("tools"))
    for key in ("messages", "conversations", "conversation"):
        if key in row:
            found = _messages(f"{where}: {key}", row[key])
            if isinstance(row.get("system"), str) and row["system"] and found and found[0]["role"] != "system":
                found = [{"role": "system", "content": row["system"]}, *found]
            return Conversation(where, found, tools)
    if "prompt" in row and "completion" in row:
        prompt, completion = row["prompt"], row["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            return Conversation(where, texts=(prompt, completion))
        before = _messages(f"{where}: prompt", prompt)
        return Conversation(where, [*before, *_messages(f"{where}: completion", completion)], tools, len(before))
    if "input_ids" in row:
        return Conversation(where, tokens=_tokens(where, row))
    keys = ", ".join(map(str, row)) or "nothing"
    more = "; rows of instruction and output: write them as prompt and completion" if "instruction" in row else ""
    raise JobError(f"{where} has {keys}", FORMS + more)


def _messages(where: str, value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):  # a list as JSON in a string, as tables have it
        try:
            value = json.loads(value)
        except ValueError:
            raise JobError(f"{where} holds text, not a list of messages", FORMS) from None
    if not isinstance(value, list):
        raise JobError(f"{where} holds {type(value).__name__}, not a list of messages", FORMS)
    return [_message(f"{where}: message {number}", one) for number, one in enumerate(value, 1)]


def _message(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise JobError(f"{where} is {type(value).__name__}, not an object with role and content", FORMS)
    found = dict(value)
    if "role" not in found and "from" in found:
        speaker = found.pop("from")
        if speaker not in _SPEAKERS:
            raise JobError(f"{where} is from {str(speaker)!r:.80}", f"allowed: {', '.join(_SPEAKERS)}")
        found = {"role": _SPEAKERS[speaker], "content": found.pop("value", ""), **found}
    role = found.get("role")
    if role not in ROLES:
        raise JobError(f"{where} has the role {str(role)!r:.80}", f"allowed: {', '.join(ROLES)}")
    found["content"] = _content(where, found.get("content"))
    if calls := found.get("tool_calls"):
        found["tool_calls"] = [_call(where, one) for one in (calls if isinstance(calls, list) else [calls])]
    else:
        found.pop("tool_calls", None)
    return found


def _content(where: str, value: Any) -> str:
    """A message's text. Parts of type text are joined, because not every template can render parts."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or (isinstance(part, Mapping) and part.get("type", "text") != "text"):
            kind = part.get("type", "?") if isinstance(part, Mapping) else type(part).__name__
            raise JobError(f"{where} has a part of the type {str(kind)!r:.80}", "only parts of text can be trained on")
        texts.append(text)
    return "".join(texts)


def _call(where: str, call: Any) -> Any:
    """A tool call whose arguments are an object; OpenAI's format has them as a string of JSON."""
    if not isinstance(call, Mapping):
        raise JobError(f"{where} has a tool call that is {type(call).__name__}, not an object")
    inner = call.get("function", call)
    if isinstance(inner, Mapping) and isinstance(inner.get("arguments"), str):
        try:
            arguments = json.loads(inner["arguments"])
        except ValueError:
            return dict(call)
        inner = {**inner, "arguments": arguments}
        return {**call, "function": inner} if "function" in call else inner
    return dict(call)


def _tools(where: str, value: Any) -> list[Any] | None:
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise JobError(f"{where}: tools hold text that is no JSON") from None
    if not value:
        return None
    if not isinstance(value, list):
        raise JobError(f"{where}: tools hold {type(value).__name__}, not a list")
    return value


def _tokens(where: str, row: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
    ids, labels = row["input_ids"], row.get("labels", row["input_ids"])
    mask = row.get("attention_mask", [1] * len(ids) if isinstance(ids, list) else 0)
    lists = all(isinstance(one, list) and all(isinstance(each, int) for each in one) for one in (ids, labels, mask))
    if not lists or not len(ids) == len(labels) == len(mask) or any(one < 0 for one in ids):
        raise JobError(f"{where}: input_ids, labels and attention_mask are not lists of whole numbers of one length")
    kept = [(one, label) for one, label, here in zip(ids, labels, mask, strict=True) if here]
    if any(label not in (-100, one) for one, label in kept):
        raise JobError(
            f"{where} has labels that are neither its input_ids nor -100",
            "a language model learns what follows: labels only say which tokens train (-100: not)",
        )
    return [one for one, _ in kept], [label != -100 for _, label in kept]


def _clean(value: Any) -> Any:
    """The value without None entries (tables fill in None for missing keys) and without halves of surrogate pairs."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(one) for key, one in value.items() if one is not None}
    return [_clean(one) for one in value] if isinstance(value, list) else value
