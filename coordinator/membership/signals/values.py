"""What several inputs and effects are made of: sections, fingerprints, members, and the announcement of a view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from ....job.data.sampling import Position
from ....scheduler.plans import Plan


@dataclass(frozen=True)
class Section:
    """Where a section stands: last round applied, and the chain hash after it (of a view: 0 for not judged)."""

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
    """A node as its peers need to know it. ``dials_out``: it dials its peers, and nobody can dial it."""

    name: str
    session: str
    address: str
    dials_out: bool = False


@dataclass(frozen=True)
class Shadow:
    """A spare that follows the place of ``like``; ``fetch``: it has nothing of it yet. See control.proto."""

    node: str
    like: str
    fetch: bool


@dataclass(frozen=True)
class Handover:
    """What ``giver`` had learnt of layers that leave it, and not sent, goes to ``taker``. See control.proto."""

    giver: str
    taker: str
    layers: tuple[int, ...]
    ends: bool = False


@dataclass(frozen=True)
class Announcement:
    """A view, as it is announced. ``holders[layer]``: names; ``checkpoint`` >= 0: load that step's instead.

    ``job``: JSON, empty for the one that nodes got when they joined. ``save``: a checkpoint is wanted at its beginning.
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
    """Who contributes again what it kept beside ``checkpoint``, which was made in view ``kept_in``."""
    kept_in: int = 0
    handovers: tuple[Handover, ...] = ()

    @cached_property
    def sessions(self) -> Mapping[str, str]:
        """Name -> session of the members."""
        return {member.name: member.session for member in self.members}

    def session_of(self, name: str) -> str | None:
        """The session with which a name is in this view."""
        return self.sessions.get(name)
