"""The process that renders conversations with a chat template (``python -m`` this module; template.py starts it).

It reads lines of JSON: first the template and the limits, then lists of conversations. It answers each conversation
with one line.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 4 << 20
"""Most characters of one rendered conversation."""
TODAY = "2025-01-01"
"""The time that ``strftime_now`` returns, a constant: a run that reads its data again has to get the same tokens."""

Span = tuple[int, int]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The text of a conversation and the spans of the assistant's turns in it; ``error``: why there is no text."""

    text: str = ""
    spans: tuple[Span, ...] = ()
    error: str = ""


class _Impossible(Exception):
    """The positions of the assistant's turns in the rendered text can't be determined."""


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
            """``{% generation %}...{% endgeneration %}``: puts the assistant's text between two marks."""

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
        """(the rendered text without marks, the spans between the marks)."""
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
        """The span that message ``number`` adds to the text after the prompt that asks for it."""
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
            return None  # the template reads the first message, and here there is none


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, _Impossible) else str(error)


def _serve(lines: Iterator[bytes], say: Any) -> None:
    import resource

    from jinja2.exceptions import SecurityError, TemplateError

    first = json.loads(next(lines))
    with contextlib.suppress(OSError, ValueError):  # where memory can't be limited, only the time is
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + first["memory"], now + first["memory"]))
    signal.setitimer(signal.ITIMER_PROF, first["seconds"])  # jinja evaluates constants when it parses a template
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
                made = Rendered(error=f"the chat template does something forbidden: {error}")
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
