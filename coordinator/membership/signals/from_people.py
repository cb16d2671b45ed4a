"""Inputs: what people want of the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """A person wants the node to have no place: ``leaves`` (drained), or stays as a spare (paused). Until Release."""

    name: str
    why: str
    leaves: bool = False


@dataclass(frozen=True)
class Release:
    """The end of a Hold."""

    name: str
    why: str


@dataclass(frozen=True)
class Evict:
    """A person puts the node out, at once."""

    name: str
    why: str


@dataclass(frozen=True)
class Readmit:
    """A person readmits an evicted node; no node is planned apart from it any more."""

    name: str
    why: str


@dataclass(frozen=True)
class Pause:
    """A person stops all training after the step in work."""

    why: str


@dataclass(frozen=True)
class GoOn:
    """The end of a Pause."""

    why: str


@dataclass(frozen=True)
class Changed:
    """The job (JSON) that counts from the next view on."""

    job: str
    why: str


@dataclass(frozen=True)
class Save:
    """A checkpoint is wanted now."""

    why: str
