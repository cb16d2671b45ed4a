"""``farflung status`` and ``farflung runs`` for a person: the nodes, what each does, and why anything waits.

Both show the record that the coordinator keeps (docs/reference.md): from a running coordinator or from a state folder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...coordinator.observe.advice import for_others
from ...coordinator.observe.savings import compared
from ...proto.process.rates import rate_text
from ..screen.events.sentences import sets_text
from ..screen.events.view_lines import stage_text, view_text
from ..screen.output import Output
from ..screen.tables import table
from ..screen.units import count_text, seconds_text

Record = Mapping[str, Any]
_WARNINGS = 5
_ENDED = "its coordinator has "


def show(output: Output, record: Record) -> None:
    """Write the whole status."""
    output.say(headline(record))
    if record.get("why"):
        output.say(f"why: {record['why']}")
    for line in numbers(record):
        output.say(line)
    view = record.get("view")
    if view:
        output.say(f"view {view['view']}: {view_text(view) or 'begun'}")
        for line in plan_lines(view):
            output.say("  " + line)
        if ";" in str(view.get("why")):
            output.say(f"  details: {view['why']}")
    if record.get("nodes"):
        output.say()
        now = float(record.get("time") or time.time())
        table(output, ("node", "does", "device", "heard", "address"), [node_row(node, now) for node in record["nodes"]])
    for node in record.get("nodes") or ():
        if advice_of(node):
            output.say(f"{node['node']}: {advice_of(node)}")
    gone = {str(node.get("node")) for node in record.get("nodes") or () if not node.get("in", True)}
    links = [link for link in record.get("links") or () if not gone & {link["from"], link["to"]}]
    for line in (judged(record.get("ledger") or ()), held_up(record), slowest_link(links)):
        if line:
            output.say(line)
    for remark in record.get("data") or ():
        output.say(str(remark))
    for warning in list(record.get("warnings") or ())[-_WARNINGS:]:
        node = f" ({warning['node']})" if warning.get("node") else ""
        output.say(f"warning{node}: {warning['message']}")


def headline(record: Record) -> str:
    """The run's name, its phase and its step."""
    phase = phase_text(record)
    of = f" of {record['steps']}" if record.get("steps") else ""
    step = f", step {record['step']}{of}" if record.get("step") else ""
    paused = " (paused)" if record.get("paused") else ""
    return f"{record.get('name') or record.get('run')}: {phase}{paused}{step}"


def phase_text(record: Record) -> str:
    """What the run is doing, or how it ended."""
    phase = str(record.get("phase") or "unknown").replace("preparing_start", "preparing its data")
    if record.get("running") or phase in ("done", "failed", "interrupted"):
        return phase
    return f"{_ENDED}ended while {phase}"


def held_up(record: Record) -> str:
    """The bottleneck as a line; empty while there is none."""
    held = record.get("bottleneck")
    return f"held up by {held['text']}" if held else ""


def judged(ledger: Sequence[Record]) -> str:
    """The judges' scores of the nodes' contributions, as a line; empty without scores."""
    known = [f"{one['node']} {one['score']:.2f}" for one in ledger if one.get("score") is not None]
    return f"judged by the others (1 is usual): {', '.join(known)}" if known else ""


def advice_of(node: Record) -> str:
    """What would make a node more useful; for a spare the reason is shown with the plan."""
    advice = node.get("advice") or {}
    return for_others(str(advice.get("better") or "")) if node.get("stage") is not None else ""


def numbers(record: Record) -> list[str]:
    """Loss, speed, bytes, checkpoint: a line each where there is something to say."""
    lines = []
    if record.get("loss") is not None:
        speed = record.get("tokens_per_second")
        fast = f", {count_text(speed)} tokens/s" if speed else ""
        fast += f", {seconds_text(float(record['step_s']))} a step" if record.get("step_s") else ""
        lines.append(f"loss {record['loss']:.4f}{fast}")
    tested = record.get("eval")
    if tested and tested.get("loss") is not None:
        accuracy = tested.get("accuracy")
        correct = f", accuracy {accuracy:.1%}" if accuracy is not None else ""
        sets = sets_text(tested.get("sets"))
        lines.append(f"validation loss {tested['loss']:.4f}{correct} (step {tested['step']}){sets}")
    if saved := record.get("savings") or compared(
        record.get("times_fewer_bytes"), "fewer bytes than fp16", "the bytes of fp16"
    ):  # an older coordinator sends only the number
        lines.append(str(saved))
    if record.get("checkpoints"):
        lines.append(f"newest checkpoint: {record['checkpoints'][-1]['path']}")
    if (record.get("target") or {}).get("why"):
        lines.append(f"checkpoints stay here for now: {record['target']['why']}")
    if record.get("leader"):
        others = ", ".join(record.get("standbys") or ()) or "nobody"
        lines.append(f"led by {record['leader']}; stands by: {others}")
    return lines


def plan_lines(view: Record) -> list[str]:
    """Pipelines with their stages, then the spares and why they are spare."""
    stages, shares = view.get("stages") or [], view.get("microbatches") or []
    lines = []
    for at, names in enumerate(view.get("pipelines") or []):
        held = [f"{name} ({stage_text(stages[stage])})" for stage, name in enumerate(names) if stage < len(stages)]
        share = f", {shares[at]} microbatch{'es' if shares[at] != 1 else ''} a step" if at < len(shares) else ""
        lines.append(f"pipeline {at}: {' -> '.join(held)}{share}")
    spares = view.get("spares") or {}
    return lines + [f"spare: {name}: {why}" for name, why in spares.items()]


def node_row(node: Record, now: float) -> tuple[object, ...]:
    """(name, what it does, device, last heard, address) of a node."""
    does = str(node.get("role") or "").partition(":")[0]  # a spare's reason is shown with the plan
    if node.get("stage") is not None:
        does = f"stage {node['stage']} of pipeline {int(node.get('pipeline') or 0)}"
    if node.get("doing"):
        does += f": {node['doing']}"
    if node.get("held"):
        does += f" ({node['held']})"
    if not node.get("in", True):
        why = str(node.get("why") or "left")
        does = why.removeprefix(f"{node.get('node')} ")
    heard = node.get("heard_s")
    if heard is None and node.get("left"):
        ago = f"{seconds_text(max(0.0, now - float(node['left'])))} ago"
    else:
        ago = "-" if heard is None else f"{seconds_text(float(heard))} ago"
    rate = f", {node['tflops']:.3g} Tflop/s" if node.get("tflops") else ""
    address = "dials the others" if node.get("dials_out") else node.get("address")
    return node.get("node"), does, f"{node.get('device') or '-'}{rate}", ago, address


def slowest_link(links: Sequence[Record]) -> str:
    """The measured link with the least bandwidth, as a line; empty when none was measured."""
    known = [link for link in links if link.get("bandwidth_bps")]
    if not known:
        return ""
    slow = min(known, key=lambda link: float(link["bandwidth_bps"]))
    latency = seconds_text(float(slow["latency_s"]))
    return f"slowest link: {slow['from']} -> {slow['to']}, {rate_text(float(slow['bandwidth_bps']))}, {latency} one way"


def show_runs(output: Output, records: Sequence[Record], folder: object) -> None:
    """One line for each run."""
    if not records:
        output.say(f"no run in {folder}; farflung run JOB starts one there")
        return
    rows = []
    for record in records:
        tested = record.get("eval") or {}
        loss = tested.get("loss")
        of = f" of {record['steps']}" if record.get("steps") else ""
        step = f"{record.get('step') or 0}{of}"
        phase, tested_loss = phase_text(record), None if loss is None else f"{loss:.4f}"
        rows.append((record.get("state"), phase.removeprefix(_ENDED), step, tested_loss, record.get("why")))
    table(output, ("folder", "phase", "step", "validation", "why"), rows)
