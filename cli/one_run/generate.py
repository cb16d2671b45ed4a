"""``farflung generate --through nodes``: a text that the nodes of a run generate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...proto.control_pb2 import GenerateReply
from ...proto.errors import FarflungError, Refused, RunFailed
from ...proto.words.fields import checked
from ..screen.output import Output

WAYS = ("nodes", "model", "layers")


def way_of(through: str | None, state: str, step: int | None) -> str | None:
    """The way to generate: ``through`` if given; else "nodes" where several stages train now; None: from a
    checkpoint."""
    from ...coordinator.observe.status import read_status
    from ...coordinator.store.engines.sqlite import FILE

    if through not in (None, *WAYS):
        raise FarflungError(f"--through {through}: there are {', '.join(WAYS)}", "leave it out: farflung then chooses")
    is_link = state.startswith(("farflung:", "@"))
    if through == "nodes" and step is not None:
        raise FarflungError("--step is of a checkpoint, and nodes have the newest weights", "leave out one of the two")
    if through != "nodes" and (through is not None or step is not None):
        return through
    if is_link:
        return "nodes"
    if "://" in state or not (Path(state) / FILE).is_file():
        return through
    status = read_status(state)
    if through == "nodes":
        if not status["running"]:
            raise Refused(f"nothing trains in {state}, so no node can write", "--through model takes a checkpoint")
        return through
    trains = status["running"] and status["phase"] == "training" and status["view"]
    return "nodes" if trains and len(status["view"]["stages"]) > 1 else None


def collect(output: Output, parts: Iterable[GenerateReply]) -> dict[str, Any]:
    """The text, and the nodes and step of its weights. Refused, or RunFailed where the text broke off."""
    found: dict[str, Any] = {}
    text = ""
    for part in parts:
        if checked(part).refused:
            raise (RunFailed if found else Refused).of(part.refused)
        if not found:
            found = {"nodes": list(part.nodes), "step": part.step, "round": part.round}
            output.note(f"{' -> '.join(part.nodes)} write with the weights of step {part.step}, round {part.round}")
        text += part.text
    if not found:
        raise RunFailed("there is no text: the coordinator sent nothing", "farflung status says what the nodes do")
    return {"text": text, "through": "nodes", **found}
