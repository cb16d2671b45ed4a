"""Each event of a run as a sentence. Pure: no terminal, no clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..units import bytes_text, count_text, seconds_text
from .event import Event
from .view_lines import plan_lines, view_text

_MOST_RESULTS = 6
"""Most numbers of an ``eval.command`` in its line."""


def sentence(event: Event) -> str:
    """One event as a plain line."""
    words = _SENTENCES.get(str(event.get("event")))
    return words(event) if words else ""


def amount_text(event: Event) -> str:
    """How much is done: 12.3 M tokens, 40 MB, 40 MB of 2.1 GB."""
    is_bytes = event.get("unit") == "bytes"
    parts = [float(event[key]) for key in ("done", "of") if event.get(key)] or [0.0]
    shown = " of ".join(bytes_text(part) if is_bytes else count_text(part) for part in parts)
    return shown if is_bytes else f"{shown} {event.get('unit')}"


def advice_lines(event: Event) -> list[str]:
    """For a node's own screen: its role, how much the run gains by it, and what would make it more useful."""
    lines = [f"this node {event.get('doing')}", f"of use: {event.get('use')}"]
    return [*lines, f"would help: {event['better']}"] if event.get("better") else lines


def why_text(event: Event) -> str:
    """': ' and the reason, where there is one."""
    return f": {event['why']}" if event.get("why") else ""


def _came_or_went(event: Event) -> str:
    """The reason, if it already is a sentence about the node (or one without its name); else "NODE joined: reason"."""
    node, why = str(event.get("node")), str(event.get("why") or "")
    if why.startswith(f"{event.get('event')} "):
        return f"{node} {why}"
    return why if why.startswith(node) else f"{node} {event.get('event')}{why_text(event)}"


def _listening(event: Event) -> str:
    page = f"\nsee it: farflung status {event['state']}" if event.get("state") else ""
    page += f"\npage: {event['page']}" if event.get("page") else ""
    page += f"\nto look only: {event['viewer']}" if event.get("viewer") else ""
    link = str(event.get("link"))
    admits = f"\n{admits_text(int(event['uses']), float(event['expires']))}\n" if event.get("uses") else ""
    return (
        "listening. To join from another terminal or machine, where `ps` shows the link to nobody:\n\n"
        f"  {hidden_join_line(link)}\n  farflung join @FILE    (a file with the next line)\n\n"
        f"or, on a machine that is yours alone:\n\n  {join_line(link)}\n{admits}{page}"
    )


def admits_text(uses: int, expires: float) -> str:
    """How many nodes a link admits, and until when."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires))
    return f"the link admits {uses} node{'s' if uses != 1 else ''} for the first time, until {until}"


def hidden_join_line(link: str) -> str:
    """The line to paste on a machine with other users, who can see a command's arguments but not its environment."""
    return f"FARFLUNG_LINK={link} farflung join"


def join_line(link: str) -> str:
    """The line to paste. A # inside a word begins no comment, so the link needs no quotes."""
    return f"farflung join {link}"


def _view(event: Event) -> str:
    return "\n".join([f"view {event.get('view')}: {view_text(event)}", *("  " + line for line in plan_lines(event))])


def _step(event: Event) -> str:
    loss = event.get("loss")
    shown = "-" if loss is None else f"{loss:.4f}"
    speed = count_text(float(event.get("tokens_per_second") or 0.0))
    return (
        f"step {event.get('step')}: loss {shown}, {speed} tokens/s, {seconds_text(float(event.get('seconds') or 0.0))}"
    )


def _done(event: Event) -> str:
    loss = event.get("eval_loss")
    ended = "" if loss is None else f", validation loss {loss:.4f} nats per token"
    views = event.get("views")
    counted = "" if not views else f", {views} view{'s' if views != 1 else ''}"
    bytes_sent = int(event.get("bytes_updates") or 0) + int(event.get("bytes_activations") or 0)
    sent = f", {bytes_text(bytes_sent)} of updates and activations" if bytes_sent else ""
    kept = f"\ncheckpoint: {event['checkpoint']}" if event.get("checkpoint") else ""
    took = seconds_text(float(event.get("seconds") or 0.0))
    return f"done: {event.get('steps')} steps in {took}{ended}{counted}{sent}{kept}"


def _eval(event: Event) -> str:
    loss = event.get("loss")
    accuracy = event.get("accuracy")
    correct = f", accuracy {accuracy:.1%}" if accuracy is not None else ""
    sets = sets_text(event.get("sets"))
    return f"step {event.get('step')}: validation loss {'-' if loss is None else f'{loss:.4f}'}{correct}{sets}"


def sets_text(sets: Any) -> str:
    """The results of an evaluation on each of ``eval.sets``, shown after its loss."""
    said = [
        f"{name} {found['loss']:.4f}" + (f" (perplexity {found['perplexity']:.4g})" if found["perplexity"] else "")
        for name, found in (sets or {}).items()
    ]
    return f"; {', '.join(said)}" if said else ""


def _evaluated(event: Event) -> str:
    results = event.get("results") or {}
    said = ", ".join(f"{name} {value:.4g}" for name, value in list(results.items())[:_MOST_RESULTS])
    more = f" and {len(results) - _MOST_RESULTS} more" if len(results) > _MOST_RESULTS else ""
    took = f"{event.get('folder')}, {seconds_text(float(event.get('seconds') or 0.0))}"
    return f"step {event.get('step')}: evaluated{f': {said}{more}' if said else ''} ({took})"


def _warning(event: Event) -> str:
    node = f" ({event['node']})" if event.get("node") else ""
    return f"warning{node}: {event.get('message')}"


_SENTENCES: dict[str, Callable[[Event], str]] = {
    "listening": _listening,
    "joined": _came_or_went,
    "left": _came_or_went,
    "view": _view,
    "step": _step,
    "eval": _eval,
    "evaluated": _evaluated,
    "checkpoint": lambda event: f"step {event.get('step')}: checkpoint {event.get('path')}",
    "warning": _warning,
    "notice": lambda event: str(event.get("message")),
    "terms": lambda event: "\n".join(["this node", *(f"  {line}" for line in event.get("terms") or ())]),
    "progress": lambda event: f"{event.get('what')}: {amount_text(event)}",
    "advice": lambda event: "; ".join(advice_lines(event)),
    "done": _done,
    "error": lambda event: f"error: {event.get('message')}" + (f"\nhint: {event['hint']}" if event.get("hint") else ""),
}
