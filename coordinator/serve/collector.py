"""Python's garbage collector, set for a process that holds a thousand nodes for weeks.

A collection visits every live object. By default one runs for every 700 new objects, about one second's heartbeats of
700 nodes, and frees nothing: the event loop's garbage has no cycles.
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
