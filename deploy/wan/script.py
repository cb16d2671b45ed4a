"""Plays the timed changes of a topology on a running lab.

python -m farflung.deploy.wan.script LAB     plays until it is ended (`wan up --play` starts it, `wan down` ends it)
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

from ...cli import quantities
from . import lab as labs
from .lab import Lab
from .topology import RATES, Change, timeline

FOREVER = 7 * 86400.0


def play(lab: Lab, stop: threading.Event, say: Callable[[float, Change, int], None], until: float = FOREVER) -> None:
    """Make each change at its time, in seconds from now. `say` gets (seconds, change, how many hosts and links
    changed)."""
    start = time.monotonic()
    for at, change in timeline(lab.topology.script, until):
        if stop.wait(max(0.0, at - (time.monotonic() - start))):
            return
        say(time.monotonic() - start, change, len(lab.change(change)))


def words(change: Change) -> str:
    """A change as a person would type it."""
    values = " ".join(f"{k}={quantities.rate_word(v) if k in RATES else f'{v:g}'}" for k, v in change.values.items())
    return f"{change.action} {change.target} {values}".rstrip()


def _log(at: float, change: Change, count: int) -> None:
    sys.stderr.write(json.dumps({"at": round(at, 3), "change": words(change), "changed": count}) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    play(labs.load(sys.argv[1]), threading.Event(), _log)
