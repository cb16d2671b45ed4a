"""Runs a recording again: the same events, in the same order, have to give the same transitions, effects and reasons.

What differs is a fault of farflung, or the recording is of another version. Either way the first difference says where.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...proto.errors import FarflungError
from ..membership.machine import Membership
from ..membership.state import Known, State
from ..membership.transitions import named
from ..records import Unreadable
from .kinds import VALUES, effect_text, event_of
from .recorder import FOLDER, VERSION


class Differs(Exception):
    """The first difference, in words."""


@dataclass
class Replayed:
    """How much was the same."""

    files: int = 0
    events: int = 0
    effects: int = 0
    transitions: int = 0
    lives: int = 0


class _Readings:
    """Measurements as they were read."""

    def __init__(self) -> None:
        self.left: list[tuple[str, float]] = []

    def known(self) -> Known:
        return Known(
            lambda name: self._next("round trip"),
            lambda name: self._next("rate"),
            lambda plan: self._next("step"),
            lambda name: self._next("slowest"),
        )

    def fetch_s(self, name: str, plan: Any) -> float:
        return self._next("fetch")

    def _next(self, what: str) -> float:
        if not self.left or self.left[0][0] != what:
            raise Differs(f"the machine reads a measurement ({what}) that it did not read then")
        return self.left.pop(0)[1]


def replay(folder: Path) -> Replayed:
    """Everything that is recorded of a run in this state folder, or in one of its files.

    FarflungError: nothing is, or it cannot be read, or something differs.
    """
    files = sorted((folder / FOLDER).glob("*.z")) if folder.is_dir() else [folder]
    if not files or not files[0].is_file():
        hint = "give the state folder of a run, or one of the files in its events/"
        raise FarflungError(f"no events are recorded in {folder}", hint)
    done = Replayed()
    last: tuple[str, int, State] | None = None
    for file in files:
        life, _, number = file.stem.partition("-")
        at = int(number) if number.isdigit() else 0
        follows = last is not None and (life, at - 1) == last[:2]
        done.lives += last is None or last[0] != life
        last = (life, at, _run_again(file, last[2] if last is not None and follows else None, done))
    return done


def _run_again(file: Path, before: State | None, done: Replayed) -> State:
    lines = _lines(file)
    number = 0
    try:
        head = json.loads(next(lines, ""))
        if head.get("version") != VERSION:
            raise Unreadable(f"version {head.get('version')}, this is {VERSION}")
        state: State = VALUES.value({**head["state"], "events": head["events"]})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        hint = "it is of another version of farflung, or damaged"
        raise FarflungError(f"{file} cannot be read: {error}", hint) from None
    readings = _Readings()
    machine = Membership(None, readings.fetch_s, bool(head["follow"]), readings.known())
    try:
        if before is not None and (other := _other_state(before, state)):
            raise Differs(f"the file begins with another state than the one before ended with: {other}")
        for text in lines:
            number += 1
            line = json.loads(text)
            state = _again(machine, readings, state, line, done)
    except Differs as difference:
        hint = "what decides has changed, or is not decided by events alone: report it with this file"
        raise FarflungError(f"{file}, line {number + 1}: {difference}", hint) from None
    except (ValueError, TypeError, KeyError) as error:
        hint = "it is of another version of farflung, or damaged"
        raise FarflungError(f"{file}, line {number + 1}: {error}", hint) from None
    done.files += 1
    return state


def _again(machine: Membership, readings: _Readings, state: State, line: dict[str, Any], done: Replayed) -> State:
    event = event_of(line["is"])
    name = named(state.events + 1, event)
    readings.left = [(str(what), float(value)) for what, value in line.get("read", ())]
    done.events += 1
    try:
        after, effects, why = machine.apply(state, event, line["at"])
    except Differs:
        raise
    except Exception as error:
        if type(error).__name__ != line.get("broke"):
            raise Differs(f"{name} breaks: {error}") from None
        return state
    if "broke" in line:
        raise Differs(f"{name} broke with {line['broke']}, and does not any more")
    if readings.left:
        raise Differs(f"{name}: the machine does not read a measurement ({readings.left[0][0]}) that it read then")
    changed = [after.phase, after.number] if (after.phase, after.number) != (state.phase, state.number) else None
    _same(name, "leads to", line.get("to"), changed)
    _same(name, "has the reason", line.get("why", ""), why)
    then, now = line.get("made", []), [effect_text(effect) for effect in effects]
    for index in range(max(len(then), len(now))):
        found = [made[index] if index < len(made) else "nothing" for made in (then, now)]
        _same(name, f"has as effect {index + 1}", *found)
    done.effects += len(now)
    done.transitions += changed is not None
    return after


def _same(name: str, what: str, then: object, now: object) -> None:
    if then != now:
        raise Differs(f"{name} {what}\n  now:  {now}\n  then: {then}")


def _other_state(one: State, other: State) -> str:
    for name in vars(one):
        if (now := VALUES.plain(getattr(one, name))) != (then := VALUES.plain(getattr(other, name))):
            return f"{name}\n  now:  {str(now)[:400]}\n  then: {str(then)[:400]}"
    return ""


def _lines(file: Path) -> Iterator[str]:
    """Whole lines; the last moment of a coordinator that was killed may be missing."""
    unpacker, rest = zlib.decompressobj(), b""
    with file.open("rb") as packed:
        while data := packed.read(1 << 16):
            try:
                rest += unpacker.decompress(data)
            except zlib.error as error:
                raise FarflungError(f"{file} is damaged: {error}", "give another of the files") from None
            *whole, rest = rest.split(b"\n")
            yield from (line.decode() for line in whole)
