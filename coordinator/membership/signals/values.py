"""The values that inputs and effects share: sections, fingerprints, members, and the announcement of a view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from ....job.data.sampling import Position
from ....scheduler.plans import Plan


@dataclass(frozen=True)
class Section:
    """A section's last applied round, and its chain after it (in a view: 0 where chains were not compared)."""

    name: str
    round: int
    chain: int


@dataclass(frozen=True)
class Fingerprint:
    """A section's content after a round, as a hash."""

    section: str
    round: int
    content: int


@dataclass(frozen=True)
class Member:
    """The data of a node that its peers need. ``dials_out``: it dials its peers, because it can't be dialled."""

    name: str
    session: str
    address: str
    dials_out: bool = False


@dataclass(frozen=True)
class Shadow:
    """A spare that follows the place of the node ``like``; ``fetch``: it has none of that place's state yet. See
    control.proto."""

    node: str
    like: str
    fetch: bool


@dataclass(frozen=True)
class Handover:
    """The residual of layers that leave ``giver`` goes to ``taker``. See control.proto."""

    giver: str
    taker: str
    layers: tuple[int, ...]
    ends: bool = False


@dataclass(frozen=True)
class Announcement:
    """A view as it is announced. ``holders[layer]``: names of the nodes with the layer's reference; ``checkpoint`` >=
    0: all load the checkpoint of that step instead.

    ``job``: JSON; empty: the job that nodes got when they joined. ``save``: the view begins with making a checkpoint.
    """

    number: int
    plan: Plan
    members: tuple[Member, ...]
    position: Position
    sections: tuple[Section, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ()
    _: KW_ONLY
    checkpoint: int = -1
    norm: float = 0.0
    why: str = ""
    job: str = ""
    save: bool = False
    shadows: tuple[Shadow, ...] = ()
    restores: tuple[str, ...] = ()
    """The nodes that contribute the residual which they kept beside ``checkpoint``, made in view ``kept_in``."""
    kept_in: int = 0
    handovers: tuple[Handover, ...] = ()

    @cached_property
    def sessions(self) -> Mapping[str, str]:
        """Name -> session of the members."""
        return {member.name: member.session for member in self.members}

    def session_of(self, name: str) -> str | None:
        """The session with which a name is in this view."""
        return self.sessions.get(name)
