"""Pictures of a plan as SVG: regions, devices, pipelines and the bottleneck; and the timeline of a step."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from html import escape

from ..networks.network import Network
from ..plans import Plan
from ..timing.transport import Trace
from .places import centres
from .predict import Prediction

COLOURS = ("#3366cc", "#dc7a1e", "#2e8b57", "#8e4bb8", "#b8860b", "#c2477f", "#2b9aa8", "#6b6b6b")
FORWARD, BACKWARD, SEND, WAIT = "#5b8def", "#f2994a", "#8bc79a", "#eeeeee"
RED = "#c0262d"
NAMED, ROUNDS_SHOWN = 40, 16
"""Most devices that are labelled with their names, and most pipelines whose rounds are drawn."""
SHOWN = 12
"""Most microbatches of a pipeline that the timeline shows."""
LONGEST = 130
"""Most letters of the picture's first line."""
ROOM = 34.0
"""Pixels around a region's devices, where the name and the rates of its links are written."""
STYLE = "font-family:system-ui,sans-serif"


def draw(network: Network, plan: Plan, prediction: Prediction, trace: Trace | None = None) -> str:
    """One SVG document: the map above, the timeline of `trace` (if there is one) below."""
    width = 1100
    body, height = _map(network, plan, prediction, width)
    if trace is not None and trace.spans:
        lines, more = _timeline(network, plan, prediction, trace, width, height + 20)
        body += lines
        height += 20 + more
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" style="{STYLE}">'
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>' + "".join(body) + "</svg>\n"
    )


def _text(x: float, y: float, words: str, size: int = 12, anchor: str = "start", colour: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(words)}</text>'


def _map(network: Network, plan: Plan, prediction: Prediction, width: int) -> tuple[list[str], float]:
    """The regions where they are, their devices in each with names where they are few, a line for every hop, dashes for
    rounds, what the links between regions carry, and the bottleneck in red."""
    regions: dict[str, list[int]] = {}
    for index, member in enumerate(network.devices):
        regions.setdefault(member.region or "devices", []).append(index)
    named = len(network) <= NAMED
    wide = 26.0 if named else 9.0
    sizes = {name: 14 + wide * math.sqrt(len(members)) for name, members in regions.items()}
    if len(regions) == 1:
        sizes = dict.fromkeys(sizes, 230.0)
    middles, below = centres({name: size + ROOM for name, size in sizes.items()}, width, 80.0)
    at: dict[int, tuple[float, float]] = {}
    body = [
        _text(20, 28, plan.why if len(plan.why) <= LONGEST else f"{plan.why[:LONGEST]} ...", 15),
        _text(20, 48, f"bottleneck: {prediction.bottleneck}", 12, colour=RED),
        _text(20, 66, f"would help most: {prediction.helps}", 12),
    ]
    for name, members in regions.items():
        x, y = middles[name]
        size = sizes[name]
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size + 12:.1f}" fill="#f4f6fa" stroke="#c7cede"/>')
        body.append(_text(x, y - size - 18, f"{name} ({len(members)})", 12, "middle"))
        for place, device in enumerate(members):
            # A sunflower spreads any number of devices evenly over the disc.
            reach = size * math.sqrt((place + 0.5) / len(members)) * 0.9
            angle = place * 2.399963
            at[device] = (x + reach * math.cos(angle), y + reach * math.sin(angle))
    told = _named_in(prediction.bottleneck, network.names)
    stage_of: dict[int, tuple[int, int]] = {}
    crossed: dict[tuple[str, str], tuple[int, int]] = {}
    lines: list[str] = []
    for pipeline, row in enumerate(plan.pipelines):
        for stage, node in enumerate(row):
            stage_of.setdefault(network.index[node], (pipeline, stage))
    for one, other, colour, dashed in _connections(network, plan):
        pair = sorted((network.devices[one].region or "devices", network.devices[other].region or "devices"))
        key = (pair[0], pair[1])
        if key not in crossed or network.rate[one, other] < network.rate[crossed[key]]:
            crossed[key] = (one, other)
        slow = {network.names[one], network.names[other]} <= told
        style = ' stroke-dasharray="3 4"' if dashed else ""
        lines.append(_line(at[one], at[other], RED if slow else colour, 4 if slow else 1.0 if dashed else 1.6, style))
    body += lines
    for (first, second), (one, other) in crossed.items():
        x, y = ((a + b) / 2 for a, b in zip(middles[first], middles[second], strict=True))
        if first == second:
            y += sizes[first] + 28
        body.append(_text(x, y - 5, _carries(network, one, other), 11, "middle", "#444"))
    for device, (x, y) in at.items():
        where = stage_of.get(device)
        colour = "#ffffff" if where is None else COLOURS[where[0] % len(COLOURS)]
        what = "spare" if where is None else f"pipeline {where[0]}, stage {where[1]}"
        edge = f'stroke="{RED}" stroke-width="3"' if network.names[device] in told else 'stroke="#555"'
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}" {edge}>'
            f"<title>{escape(network.names[device])}: {what}</title></circle>"
        )
        if where is not None:
            body.append(_text(x, y + 3.5, str(where[1]), 9, "middle", "#fff"))
        if named:
            body.append(_text(x, y + 17, network.names[device].rpartition("/")[2], 9, "middle"))
    height = below + 40
    legend = "a colour is a pipeline, the number in a device its stage, white is a spare, dashes are rounds"
    body.append(_text(20, height - 12, f"{legend}, red is the bottleneck; of links the slowest used is named", 11))
    return body, height


def _connections(network: Network, plan: Plan) -> Iterator[tuple[int, int, str, bool]]:
    """(device, device, colour, whether it carries rounds) of each line to draw: the hops of the pipelines, and for each
    group its members one after another."""
    for pipeline, row in enumerate(plan.pipelines):
        for one, other in itertools.pairwise(row):
            if one != other:
                yield network.index[one], network.index[other], COLOURS[pipeline % len(COLOURS)], False
    if 1 < len(plan.pipelines) <= ROUNDS_SHOWN:
        for stage in range(len(set(plan.pipelines[0]))):
            for one, other in itertools.pairwise(plan.group(stage)):
                yield network.index[one], network.index[other], "#777", True


def _named_in(words: str, names: Sequence[str]) -> set[str]:
    """The names that occur in the words as whole names: "n10" does not contain n1."""
    return {name for name in names if re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w/.-])", words)}


def _carries(network: Network, one: int, other: int) -> str:
    rate, latency = float(network.rate[one, other]), float(network.latency[one, other])
    shown = f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"
    return f"{shown}, {latency * 1e3:.3g} ms"


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float, style: str = "") -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}" stroke-opacity="0.65"{style}/>'
    )


def _timeline(
    network: Network, plan: Plan, prediction: Prediction, trace: Trace, width: int, top: float
) -> tuple[list[str], float]:
    """A row for each device of up to two pipelines, the slowest pipeline first: when it computes, sends and waits. The
    title has the seconds of the slowest round."""
    done = [max(float(trace.done[network.index[node]]) for node in row) for row in plan.pipelines]
    shown = sorted(range(len(done)), key=lambda pipeline: -done[pipeline])[:2]
    rows = [network.index[node] for pipeline in shown for node in dict.fromkeys(plan.pipelines[pipeline])]
    left, row_height = 170.0, 26.0
    scale = (width - left - 20) / max(trace.seconds, 1e-12)
    rounds = f"; the slowest round takes {prediction.round_s:.3g} s" if prediction.round_s else ""
    told = _named_in(prediction.bottleneck, network.names)
    whole = f"a step takes {prediction.step_s:.3g} s{rounds}"
    few = min(max(plan.microbatches), SHOWN)
    many = f"{few} microbatch{'es' if few > 1 else ''}"
    words = f"timeline of the simulated step, {many} of a pipeline in {trace.seconds:.3g} s ({whole})"
    body = [_text(20, top + 16, words, 14)]
    line = {device: top + 30 + number * row_height for number, device in enumerate(rows)}
    for device, y in line.items():
        name = network.names[device]
        body.append(_text(20, y + 14, name, 11, colour=RED if name in told else "#222"))
        body.append(f'<rect x="{left}" y="{y}" width="{width - left - 20}" height="{row_height - 6}" fill="{WAIT}"/>')
    colours = {"F": FORWARD, "B": BACKWARD, "send": SEND}
    for span in trace.spans:
        if span.device not in line or span.kind not in colours:
            continue
        y, thick = line[span.device], row_height - 6
        if span.kind == "send":
            y, thick = y + thick - 4, 4.0
        long = max((span.end - span.start) * scale, 0.3)
        body.append(
            f'<rect x="{left + span.start * scale:.2f}" y="{y:.1f}" width="{long:.2f}" height="{thick:.1f}" '
            f'fill="{colours[span.kind]}"><title>{escape(span.label)} {span.start:.4g} s</title></rect>'
        )
    below = top + 30 + len(rows) * row_height
    for number in range(6):
        x = left + (width - left - 20) * number / 5
        body.append(_text(x, below + 14, f"{trace.seconds * number / 5:.3g} s", 10, "middle"))
    names = (("forward", FORWARD), ("backward", BACKWARD), ("sending", SEND), ("waiting", WAIT))
    for number, (name, colour) in enumerate(names):
        x = left + 110 * number
        body.append(f'<rect x="{x}" y="{below + 24}" width="12" height="12" fill="{colour}" stroke="#999"/>')
        body.append(_text(x + 18, below + 34, name, 11))
    return body, below + 48 - top
