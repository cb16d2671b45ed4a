"""Decisions about which nodes have to go. The functions that decide do not remove nodes: a departure may change any
phase."""

from __future__ import annotations

from dataclasses import dataclass

from .. import signals as s
from ..state import State


@dataclass(frozen=True)
class Out:
    """A node that has to leave the run: ``why``, and the effects (messages to it and about it) that come first."""

    name: str
    why: str
    said: tuple[s.Effect, ...]


@dataclass(frozen=True)
class PutOut:
    """These nodes are removed, one after the other."""

    outs: tuple[Out, ...]

    def __bool__(self) -> bool:
        return bool(self.outs)


@dataclass(frozen=True)
class SetAside:
    """A node that held the others up gets no place for some time."""

    name: str
    why: str


Found = tuple[State, list[s.Effect] | PutOut | SetAside]
"""Either (the next state, effects), or the departures that departures.py has to carry out first."""
