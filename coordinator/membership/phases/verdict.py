"""Who has to go, as decisions say it. Those that decide this do not carry it out: a departure may change anything."""

from __future__ import annotations

from dataclasses import dataclass

from .. import signals as s
from ..state import State


@dataclass(frozen=True)
class Out:
    """A node that has to leave the run: ``why``, and what is said to it and of it first."""

    name: str
    why: str
    said: tuple[s.Effect, ...]


@dataclass(frozen=True)
class PutOut:
    """These leave, one after the other."""

    outs: tuple[Out, ...]

    def __bool__(self) -> bool:
        return bool(self.outs)


@dataclass(frozen=True)
class SetAside:
    """A node that held the others up has no place for some time."""

    name: str
    why: str


Found = tuple[State, list[s.Effect] | PutOut | SetAside]
"""The next state and what to do; or who is to go first, which departures.py carries out."""
