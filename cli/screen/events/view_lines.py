"""A view and its plan in lines: pipelines, spares, codecs, and why it began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .event import Event


def stage_text(stage: Any) -> str:
    """[0, 2] as 'layers 0-2'."""
    first, last = stage
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def plan_lines(event: Event) -> list[str]:
    """The plan of a view: one line a pipeline, then the spares and the codecs."""
    stages = event.get("stages") or []
    lines = []
    for number, pipeline in enumerate(event.get("pipelines") or []):
        names = pipeline if isinstance(pipeline, list) else list(pipeline)
        held = [f"{name} ({stage_text(stages[at])})" if at < len(stages) else name for at, name in enumerate(names)]
        lines.append(f"pipeline {number}: " + " -> ".join(held))
    return lines + plan_notes(event)


def plan_notes(event: Event) -> list[str]:
    """What a plan says beside its pipelines: spares and codecs."""
    lines = [f"spares: {', '.join(event['spares'])}"] if event.get("spares") else []
    codecs = event.get("codecs")
    if isinstance(codecs, Mapping) and len(event.get("stages") or ()) == 1:  # nothing goes from stage to stage
        codecs = {link: codec for link, codec in codecs.items() if link == "updates"}
    codecs = codecs_text(codecs)
    return [*lines, f"codecs: {codecs}"] if codecs else lines


def codecs_text(codecs: Any) -> str:
    """The codecs of a view in one line, whatever their shape: a mapping, a list or a word."""
    if not codecs:
        return ""
    if isinstance(codecs, Mapping):
        return ", ".join(f"{link} {codec}" for link, codec in codecs.items())
    return ", ".join(map(str, codecs)) if isinstance(codecs, (list, tuple)) else str(codecs)


def view_text(event: Event) -> str:
    """A view in a sentence of cause and effect; ``farflung status`` has the whole reason."""
    clauses = [one.strip() for one in str(event.get("why") or "").split(";")]
    said = [clauses[0], *(one for one in clauses[1:] if "from the checkpoint" in one)]
    pipelines, stages, spares = (event.get(key) or [] for key in ("pipelines", "stages", "spares"))
    shape = f"now {many(len(pipelines), 'pipeline')} of {many(len(stages), 'stage')}" if pipelines else ""
    if spares:
        shape += f", {many(len(spares), 'spare')}"
    return "; ".join(one for one in [*said, shape] if one)


def many(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"
