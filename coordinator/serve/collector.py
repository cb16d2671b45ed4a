"""Python's garbage collector, set for a process that holds a thousand nodes for weeks.

A collection looks at everything that is alive. With Python's own numbers there is one for every 700 new objects, a
second's heartbeats of as many nodes, and it finds nothing: what the event loop leaves behind holds no cycles.
"""

from __future__ import annotations

import gc

NEW = 20_000
"""New objects between two collections of the young ones."""


def calm() -> None:
    """What was loaded for the start stays, and is not looked at again; other collections become rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW, 20, 20)
