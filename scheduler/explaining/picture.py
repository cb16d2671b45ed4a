"""Pictures of a plan as SVG: regions, devices, pipelines and the bottleneck; and the timeline of a step."""

from __future__ import annotations

import math
from html import escape

from ..networks.network import Network
from ..plans import Plan
from ..timing.transport import Trace
from .predict import Prediction

COLOURS = ("#3366cc", "#dc7a1e", "#2e8b57", "#8e4bb8", "#b8860b", "#c2477f", "#2b9aa8", "#6b6b6b")
FORWARD, BACKWARD, SEND, WAIT = "#5b8def", "#f2994a", "#8bc79a", "#eeeeee"
STYLE = "font-family:system-ui,sans-serif"


def draw(network: Network, plan: Plan, prediction: Prediction, trace: Trace | None = None) -> str:
    """One SVG document: the map above, the timeline of `trace` (if there is one) below."""
    width = 1100
    body, height = _map(network, plan, prediction, width)
    if trace is not None and trace.spans:
        lines, more = _timeline(network, plan, trace, width, height + 20)
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
    """Regions on a circle, their devices around each, a line for every hop, the bottleneck in red."""
    regions: dict[str, list[int]] = {}
    for index, member in enumerate(network.devices):
        regions.setdefault(member.region or "devices", []).append(index)
    centre, radius, top = width / 2, 270.0, 90.0
    middle = top + radius + 60
    at: dict[int, tuple[float, float]] = {}
    body = [
        _text(20, 28, plan.why, 15),
        _text(20, 48, f"bottleneck: {prediction.bottleneck}", 12, colour="#c0262d"),
        _text(20, 66, f"would help most: {prediction.helps}", 12),
    ]
    for number, (name, members) in enumerate(regions.items()):
        turn = 2 * math.pi * number / len(regions) - math.pi / 2
        far = radius if len(regions) > 1 else 0.0
        x, y = centre + 1.5 * far * math.cos(turn), middle + far * math.sin(turn)
        size = 14 + 9 * math.sqrt(len(members))
        if len(regions) == 1:
            size = 230.0
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size + 12:.1f}" fill="#f4f6fa" stroke="#c7cede"/>')
        body.append(_text(x, y - size - 16, f"{name} ({len(members)})", 12, "middle"))
        for place, device in enumerate(members):
            # A sunflower spreads any number of devices evenly over the disc.
            reach = size * math.sqrt((place + 0.5) / len(members)) * 0.95
            angle = place * 2.399963
            at[device] = (x + reach * math.cos(angle), y + reach * math.sin(angle))
    stage_of: dict[int, tuple[int, int]] = {}
    for pipeline, row in enumerate(plan.pipelines):
        colour = COLOURS[pipeline % len(COLOURS)]
        for stage, node in enumerate(row):
            device = network.index[node]
            stage_of.setdefault(device, (pipeline, stage))
            if stage + 1 < len(row) and row[stage + 1] != node:
                other = network.index[row[stage + 1]]
                slow = node in prediction.bottleneck and row[stage + 1] in prediction.bottleneck
                body.append(_line(at[device], at[other], "#c0262d" if slow else colour, 4 if slow else 1.4))
    for device, (x, y) in at.items():
        where = stage_of.get(device)
        colour = "#ffffff" if where is None else COLOURS[where[0] % len(COLOURS)]
        what = "spare" if where is None else f"pipeline {where[0]}, stage {where[1]}"
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}" stroke="#555">'
            f"<title>{escape(network.names[device])}: {what}</title></circle>"
        )
        if where is not None:
            body.append(_text(x, y + 3.5, str(where[1]), 9, "middle", "#fff"))
    height = middle + radius + 110
    body.append(
        _text(20, height - 12, "a colour is a pipeline, the number in a device is its stage, white is a spare", 11)
    )
    return body, height


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}" stroke-opacity="0.65"/>'
    )


def _timeline(network: Network, plan: Plan, trace: Trace, width: int, top: float) -> tuple[list[str], float]:
    """A row for each device of up to two pipelines (the slowest one first): computes, sends, waits."""
    done = [max(float(trace.done[network.index[node]]) for node in row) for row in plan.pipelines]
    shown = sorted(range(len(done)), key=lambda pipeline: -done[pipeline])[:2]
    rows = [network.index[node] for pipeline in shown for node in dict.fromkeys(plan.pipelines[pipeline])]
    left, row_height = 170.0, 26.0
    scale = (width - left - 20) / max(trace.seconds, 1e-12)
    body = [_text(20, top + 16, f"timeline of the simulated step, {trace.seconds:.3g} s", 14)]
    line = {device: top + 30 + number * row_height for number, device in enumerate(rows)}
    for device, y in line.items():
        body.append(_text(20, y + 14, network.names[device], 11))
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
