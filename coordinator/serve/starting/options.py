"""The options of ``coordinator start``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....job.schema import CheckCodec, Job
from ... import events
from ...data.facts import PROFILE_COMMAND
from ...membership.members import Planner
from ...observe.takers.loggers import Make
from ...store.store import Store
from ...trust.authority import NODE_LIFE

DEFAULT_LISTEN = "0.0.0.0:7070"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options as given. ``profile_command`` and ``planner`` are for tests."""

    job: Path
    state: Path | None = None
    listen: str = DEFAULT_LISTEN
    advertise: str | None = None
    min_nodes: int | None = None
    insecure: bool = False
    check_codec: CheckCodec | None = None
    profile_command: Sequence[str] = PROFILE_COMMAND
    planner: Planner | None = None
    page: str | None = None
    """Where the web page listens, HOST:PORT; empty: the default; None: no page."""
    database: str | None = None
    loggers: Sequence[Make] = ()
    timing: dict[str, float] = field(default_factory=dict)
    """Fields of Rules (times) that differ from the defaults."""
    certificate_life: float = NODE_LIFE
    dial_back: Sequence[str] = ()
    """Networks in which nodes may be dialled back, in addition to the address from which a join comes."""
    give_up: bool = False
    """Whether the run ends without its last checkpoint where that does not arrive."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start: its options, and the store and events of the run. ``state``: the state folder.

    ``stop`` is set by the first SIGINT, ``at_once`` by the second.
    """

    options: Options
    job: Job
    state: Path
    store: Store
    emit: events.Emit
    stop: asyncio.Event
    at_once: asyncio.Event

    @property
    def place(self) -> str:
        """Where the run is, in words."""
        return self.store.name if self.store.server else str(self.state)
