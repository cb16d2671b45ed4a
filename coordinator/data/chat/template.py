"""Chat templates: a separate process renders conversations and gives the spans of the assistant's turns in the text.

A template is a program that comes with a model folder. It runs in jinja's sandbox, without attributes that lead to
Python's insides, in a process with a limit of memory and, for each conversation, of processor time and of characters;
whatever the template does, the coordinator gets either texts or an error in one sentence.

An assistant's turn is what the template marks with ``{% generation %}``. If it marks nothing, the conversation is
rendered up to the turn and up to its end. Both texts must be prefixes of the whole text: what lies between is the turn.
If they are not, the template renders a turn differently when others follow; that is refused, never guessed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....proto.errors import JobError
from ....proto.process import python
from .rendering import Message, Rendered

SECONDS = 5.0
"""Seconds of processor time for one conversation."""
MEMORY = 512 << 20
"""Bytes of address space that the process may take beyond those at its start."""


@dataclass(frozen=True)
class Asked:
    """A conversation to render. ``turns``: whether "all" of the assistant's turns are learnt or only the "last". Turns
    before message number ``begin`` are not learnt."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    turns: str = "all"
    begin: int = 0


@dataclass(frozen=True)
class Template:
    """The chat template of a tokenizer folder. ``words``: bos_token, eos_token and so on, which it may use."""

    source: str
    words: Mapping[str, str]
    where: str

    @property
    def identity(self) -> str:
        """A digest that changes whenever conversations might be rendered differently."""
        return hashlib.sha256(json.dumps([self.source, self.words], sort_keys=True).encode()).hexdigest()


def find_template(folder: Path) -> Template | None:
    """The chat template of a tokenizer folder; None where it has none. JobError: it cannot be read."""
    words: dict[str, str] = {}
    found: Any = None
    where = folder / "tokenizer_config.json"
    try:
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            path = folder / name
            config = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
            for key, value in config.items() if isinstance(config, dict) else ():
                word = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(word, str):
                    words[key] = word
            found = config.get("chat_template", found) if isinstance(config, dict) else found
        if (folder / "chat_template.jinja").is_file():
            where = folder / "chat_template.jinja"
            found = where.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise JobError(f"data.tokenizer: the chat template in {folder} cannot be read: {error}") from None
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default", next(iter(named.values()), None))
    return Template(found, words, str(where)) if isinstance(found, str) and found.strip() else None


class Templates:
    """A process that renders with one template. A context manager; ``render`` may be called often."""

    def __init__(self, template: Template, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._template, self._seconds, self._memory = template, seconds, memory
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Templates:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        process.kill()
        process.wait()

    def render(self, asked: Sequence[Asked]) -> list[Rendered]:
        """Render the conversations one by one. JobError: the template is faulty, or exceeds its limits."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        found: list[Rendered] = []
        try:
            process.stdin.write(json.dumps([vars(one) for one in asked]).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                found.append(Rendered(said["text"], tuple(map(tuple, said["spans"])), said["error"]))  # type: ignore[arg-type]
                if len(found) == len(asked):
                    return found
        except BrokenPipeError:
            pass
        raise self._ended()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            pipe = subprocess.PIPE
            command = python.module("farflung.coordinator.data.chat.rendering")
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
            words = {"source": self._template.source, "words": dict(self._template.words)}
            limits = {"seconds": self._seconds, "memory": self._memory}
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(words | limits).encode() + b"\n")
                self._process.stdin.flush()
            said = self._process.stdout.readline()
            if not said:
                raise self._ended()
            if error := json.loads(said)["error"]:
                self.close()
                raise JobError(f"data.chat: the chat template {self._template.where} is none: {error}", _OTHER)
        return self._process

    def _ended(self) -> JobError:
        """The error that says why the process has ended."""
        assert self._process is not None and self._process.stderr is not None
        errors = self._process.stderr.read()
        status = self._process.wait()
        self.close()
        where = f"data.chat: the chat template {self._template.where}"
        if status == -signal.SIGPROF:
            return JobError(f"{where} computes for more than {self._seconds:g} s on one conversation", _OTHER)
        last = (errors.decode(errors="replace").strip().splitlines() or [f"exit status {status}"])[-1]
        if "MemoryError" in last or status == -signal.SIGKILL:
            return JobError(f"{where} takes more than {self._memory >> 20} MiB of memory", _OTHER)
        return JobError(f"{where} cannot be run: {last}")


_OTHER = "use the template that the model's makers publish; put it into the tokenizer's folder as chat_template.jinja"
