"""The matrix of a check as an SVG: one cell for each ordered pair, set above measured, coloured by how far apart.

Own code, no library: a string of rectangles and words. Readable without colour too: a missed cell has a thick border.
"""

from __future__ import annotations

from html import escape

from .check import Report, Row

_CELL_W, _CELL_H, _TOP = 132, 62, 92
_FINE, _NEAR, _FAR, _NONE = "#d7efdb", "#fff1c2", "#f7cfc9", "#eeeeee"


def svg(report: Report) -> str:
    """The picture of a check."""
    hosts = list(dict.fromkeys([r.source for r in report.rows] + [r.target for r in report.rows]))
    rows = {(r.source, r.target): r for r in report.rows}
    left = 32 + 7 * max(map(len, hosts), default=0)
    width, height = left + _CELL_W * len(hosts) + 16, _TOP + _CELL_H * len(hosts) + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, f"{report.name}: set and measured", size=16, bold=True),
        _text(
            16,
            46,
            f"backend {report.backend}. From the row to the column: round trip in ms, TCP goodput in Mbit/s, loss.",
        ),
    ]
    for k, host in enumerate(hosts):
        parts.append(_text(left + _CELL_W * k + _CELL_W / 2, _TOP - 10, host, anchor="middle", bold=True))
        parts.append(_text(left - 8, _TOP + _CELL_H * k + _CELL_H / 2 + 4, host, anchor="end", bold=True))
    for i, source in enumerate(hosts):
        for j, target in enumerate(hosts):
            parts += _cell(rows.get((source, target)), left + _CELL_W * j, _TOP + _CELL_H * i)
    bottom = _TOP + _CELL_H * len(hosts)
    parts.append(_text(16, bottom + 24, ("As set. " if report.ok else "Not as set. ") + report.why, bold=not report.ok))
    for k, (colour, words) in enumerate(
        ((_FINE, "within 2 %"), (_NEAR, "within 5 %"), (_FAR, "missed"), (_NONE, "not measured"))
    ):
        parts.append(
            f'<rect x="{16 + 120 * k}" y="{bottom + 36}" width="12" height="12" fill="{colour}" stroke="#999"/>'
        )
        parts.append(_text(34 + 120 * k, bottom + 46, words))
    return "\n".join([*parts, "</svg>", ""])


def _cell(row: Row | None, x: float, y: float) -> list[str]:
    box = f'x="{x + 2}" y="{y + 2}" width="{_CELL_W - 4}" height="{_CELL_H - 4}" rx="4"'
    if row is None:
        return [f'<rect {box} fill="#fafafa" stroke="#dddddd"/>']
    missed = bool(row.misses)
    words = [
        f"{row.set_rtt:.1f} ms → {'–' if row.rtt is None else f'{row.rtt:.1f}'}",
        f"{_mbit(row.set_goodput)} Mbit/s → {_mbit(row.goodput)}",
        f"loss {row.set_loss:.2%} → {'–' if row.loss is None else f'{row.loss:.2%}'}",
    ]
    if row.set_loss in (0, 1) and row.loss is None:
        words[2] = "cut" if row.set_loss else "" if row.dialled else "cannot be dialled"
    title = escape(f"{row.source} to {row.target}: " + ("; ".join(row.misses) if missed else "as set"))
    stroke = 'stroke="#b3261e" stroke-width="2.5"' if missed else 'stroke="#999999"'
    shape = f'<g><title>{title}</title><rect {box} fill="{colour(row)}" {stroke}/>'
    return [shape, *(_text(x + 10, y + 20 + 15 * k, w) for k, w in enumerate(words) if w), "</g>"]


def colour(row: Row) -> str:
    """The fill of a cell: by its worst figure, relative to what was set."""
    if row.misses:
        return _FAR
    parts = []
    if row.rtt is not None:
        parts.append(max(0.0, abs(row.rtt - row.set_rtt) - 1.0) / max(row.set_rtt, 1.0))
    if row.goodput is not None and row.set_goodput:
        parts.append(abs(row.goodput / row.set_goodput - 1))
    if not parts:
        return _NONE
    return _FINE if max(parts) <= 0.02 else _NEAR


def _mbit(bits: float | None) -> str:
    return "–" if bits is None else f"{bits / 1e6:.4g}"


def _text(x: float, y: float, words: str, anchor: str = "start", bold: bool = False, size: int = 0) -> str:
    more = (' font-weight="600"' if bold else "") + (f' font-size="{size}"' if size else "")
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(words)}</text>'
