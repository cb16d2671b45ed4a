"""Chat templates: a process of its own renders conversations, and says where in the text the assistant's turns are.

A template is a program that comes with a model folder. It runs in jinja's sandbox, without attributes that lead to
Python's insides, in a process with a limit of memory and, for each conversation, of processor time and of characters;
whatever it does, the coordinator gets texts or a sentence.

An assistant's turn is what the template marks with ``{% generation %}``. Where it marks nothing, the conversation is
rendered up to the turn and up to its end, and both must be beginnings of the whole: what lies between is the turn. A
template of which they are none shows turns otherwise when others follow; that is refused, and never guessed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....proto.errors import JobError
from ....proto.process import python

SECONDS = 5.0
"""Of processor time for one conversation."""
MEMORY = 512 << 20
"""Bytes of address space that the process may take beyond what it has as it begins."""
LONGEST = 4 << 20
"""Characters of one rendered conversation."""
TODAY = "2025-01-01"
"""What ``strftime_now`` says: a run that reads its data again has to get the same tokens."""

Span = tuple[int, int]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A conversation to render. ``turns``: "all" of the assistant's count, or the "last"; those before ``begin``, the
    number of a message, do not."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    turns: str = "all"
    begin: int = 0


@dataclass(frozen=True)
class Rendered:
    """The text of a conversation, and where in it the assistant's turns are; ``error``: why there is none."""

    text: str = ""
    spans: tuple[Span, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Template:
    """A chat template as a tokenizer folder has it. ``words``: bos_token, eos_token and so on."""

    source: str
    words: Mapping[str, str]
    where: str

    @property
    def identity(self) -> str:
        """Another one where it may show a conversation otherwise."""
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
            command = python.module("farflung.coordinator.data.chat.template")
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
        """Why the process is gone."""
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


# ---- in the process --------------------------------------------------------------------------------


class _Impossible(Exception):
    """A conversation of which nobody can say where the assistant's turns are."""


class _Renderer:
    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        import datetime

        from jinja2 import nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        mark = secrets.token_hex(8)
        self.begin, self.end = f"\ue000{mark}<", f"\ue000{mark}>"

        class Generation(Extension):
            """``{% generation %}...{% endgeneration %}``: what the assistant says, between two marks."""

            tags = frozenset({"generation"})  # type: ignore[assignment]

            def parse(inner, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.CallBlock(inner.call_method("_marked"), [], [], body).set_lineno(line)

            def _marked(inner, caller: Any) -> str:
                return f"{self.begin}{caller()}{self.end}"

        def fail(message: str) -> None:
            raise TemplateError(message)

        def to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, **how)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = fail
        environment.globals["strftime_now"] = datetime.date.fromisoformat(TODAY).strftime
        self.template, self.words = environment.from_string(source), dict(words)

    def whole(self, messages: Sequence[Message], tools: Any, prompt: bool = False) -> tuple[str, list[Span]]:
        """A text without marks, and where they were."""
        pieces, length = [], 0
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        for piece in self.template.generate(**{**self.words, **values}):
            length += len(piece)
            if length > LONGEST:
                raise _Impossible(f"the chat template makes more than {LONGEST:,} characters of it")
            pieces.append(piece)
        text, spans, at = "", [], 0
        for part in "".join(pieces).split(self.begin):
            inside, ended, rest = part.partition(self.end)
            if ended:
                spans.append((at, at + len(inside)))
            text += inside + rest
            at = len(text)
        return text, spans

    def render(self, messages: Sequence[Message], tools: Any, turns: str, begin: int) -> Rendered:
        text, spans = self.whole(messages, tools)
        own = [number for number, one in enumerate(messages) if one.get("role") == "assistant" and number >= begin]
        if turns == "last":
            own = own[-1:]
        if spans:
            if begin or turns == "last":
                before = [number for number, one in enumerate(messages) if one.get("role") == "assistant"]
                if len(before) != len(spans):
                    raise _Impossible(
                        f"the chat template marks {len(spans)} turns with {{% generation %}}, and the assistant has "
                        f"{len(before)}"
                    )
                spans = [span for number, span in zip(before, spans, strict=True) if number in own]
            return Rendered(text, tuple(spans))
        return Rendered(text, tuple(self._turn(messages, tools, number, text) for number in own))

    def _turn(self, messages: Sequence[Message], tools: Any, number: int, text: str) -> Span:
        """What message ``number`` adds to the text, behind the prompt that asks for it."""
        end = self.whole(messages[: number + 1], tools)[0]
        starts = [self._before(messages[:number], tools, prompt) for prompt in (True, False)]
        start = next((one for one in starts if one is not None and end.startswith(one)), None)
        if start is None or len(start) == len(end) or not text.startswith(end):
            raise _Impossible(
                f"the chat template shows message {number + 1} otherwise when others follow, or none before it: where "
                "the assistant's turn is cannot be told"
            )
        return len(start), len(end)

    def _before(self, messages: Sequence[Message], tools: Any, prompt: bool) -> str | None:
        from jinja2.exceptions import TemplateError

        try:
            return self.whole(messages, tools, prompt)[0]
        except TemplateError:
            if messages:
                raise
            return None  # it looks at the first message, and here there is none


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, _Impossible) else str(error)


def _serve(lines: Iterator[bytes], say: Any) -> None:
    import resource

    from jinja2.exceptions import SecurityError, TemplateError

    first = json.loads(next(lines))
    with contextlib.suppress(OSError, ValueError):  # a system that cannot limit it has the limit of time alone
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + first["memory"], now + first["memory"]))
    signal.setitimer(signal.ITIMER_PROF, first["seconds"])  # jinja computes constants as it reads a template
    try:
        renderer = _Renderer(first["source"], first["words"])
    except (TemplateError, RecursionError, ValueError) as error:
        say({"error": _sentence(error)})
        return
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    say({"error": ""})
    for line in lines:
        for one in json.loads(line):
            signal.setitimer(signal.ITIMER_PROF, first["seconds"])  # processor time: a busy machine changes nothing
            try:
                made = renderer.render(one["messages"], one["tools"], one["turns"], one["begin"])
            except MemoryError:
                raise
            except SecurityError as error:
                made = Rendered(error=f"the chat template does what it must not: {error}")
            except TemplateError as error:
                made = Rendered(error=f"the chat template refuses it: {error}")
            except Exception as error:  # a template may fail in any way
                made = Rendered(error=_sentence(error))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            say({"text": made.text, "spans": made.spans, "error": made.error})


def main() -> None:
    out = sys.stdout.buffer

    def say(words: Mapping[str, Any]) -> None:
        out.write(json.dumps(words).encode() + b"\n")
        out.flush()

    _serve(iter(sys.stdin.buffer.readline, b""), say)


if __name__ == "__main__":
    main()
