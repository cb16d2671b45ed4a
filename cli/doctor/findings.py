"""The result of a check, and how results are shown."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..screen.output import DONE, WRONG, Output


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``ok``, what was found, and what to do next where it is not ok."""

    check: str
    ok: bool
    found: str
    hint: str = ""
    better: str = ""
    """What would improve it, where it suffices for joining."""


def show(output: Output, findings: Iterator[Finding]) -> int:
    """Write the findings as they come; the exit status is 2 when something would stop a join."""
    good = True
    for finding in findings:
        good = good and finding.ok
        if output.json:
            output.record(asdict(finding))
        else:
            output.say("\n".join(found_lines(finding, shutil.get_terminal_size().columns if output.rich else 0)))
            if not finding.ok and finding.hint:
                output.say(f"{'':16} next: {finding.hint}")
            if finding.better:
                output.say(f"{'':16} faster over long ways: {finding.better}")
    return DONE if good else WRONG


def found_lines(finding: Finding, columns: int) -> list[str]:
    """The findings as lines of at most this many columns, with hanging indents; 0: one line each."""
    head = f"{'ok ' if finding.ok else 'NO '} {finding.check:<12} "
    if columns <= len(head) + 20:
        return [head + finding.found]
    return textwrap.wrap(head + finding.found, columns, subsequent_indent=" " * len(head), break_long_words=False)
