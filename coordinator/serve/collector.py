"""Python's garbage collector, set for a process that holds a thousand nodes for weeks.

A collection visits every live object. By default one runs after 700 new objects, which is about a second's heartbeats
of 700 nodes, and it frees nothing, because the event loop's garbage has no cycles.
"""

from __future__ import annotations

import gc

NEW = 20_000
"""New objects between two collections of the young ones."""


def calm() -> None:
    """Exempt the objects loaded so far from collections, and make other collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW, 20, 20)
