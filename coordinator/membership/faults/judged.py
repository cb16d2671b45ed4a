"""Collects the scores that judges give to contributions until they suffice for a decision. Pure.

Judges are members in some rounds, and spares that follow a stage in every round (node/rounds/checking/judge.py). A
score is about 1 for a node that trains its samples, about 0 for noise, copies or old updates, and below 0 for harmful
updates. A node whose newest scores are low is *looked at*: for some rounds every member judges it. It is put out when
more than half of the other members, each by its own scores, find it useless. Spares have no vote: a vote would cost a
stranger no work. A node whose alarms prove false twice can raise no more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean as mean
from statistics import median, median_high

LIMIT = 1 / 3
"""No honest member has a mean score below this."""
FINE = 0.6
"""A judge whose mean score of a member is at least this has no objection to it."""
ENOUGH = 5
"""Scores that one judge must have given before its vote counts."""
ALARM = 8
"""Number of newest scores, from any judges, on which an alarm is based."""
KEPT = 48
SURE, RATHER_SURE = 2.0, 1.0
"""How many standard errors below the limit a mean must be: to put a node out, and to look at it. Near the end of a run
most samples are learnt already, so a low score on a few of them may be chance."""
MOST = 2.0
"""The largest absolute value that a judge may report."""
LEAST_SPREAD = 0.75
"""The least standard deviation assumed of single scores: a few scores that happen to be equal are not more certain."""
APART = 0.5
"""A juror's mean score of a member must also be this much below the mean that it usually gives to others."""
LOOK_ROUNDS = 12
"""Rounds of a look: in these all members judge the accused."""
_LATE = 4
"""Rounds after a look in which its scores may still arrive. Only one node is looked at at a time."""
_FALSE_ALARMS = 2


@dataclass(frozen=True)
class Finding:
    """A decision, with a sentence. ``look``: the node that all members judge from now on. ``out``: the node to put
    out."""

    look: str = ""
    out: str = ""
    why: str = ""


@dataclass
class _Look:
    accused: str
    until: int
    accusers: frozenset[str]
    view: int


@dataclass
class Judged:
    """The scores of each node by judge, over all of its lives; the look under way; the judges whose alarms were
    false."""

    _scores: dict[str, dict[str, deque[float]]] = field(default_factory=dict)
    _newest: dict[str, deque[tuple[str, float]]] = field(default_factory=dict)
    _heard: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Judge -> the newest (view, round) that it has scored."""
    _false: dict[str, int] = field(default_factory=dict)
    _look: _Look | None = None
    _again: int = 0
    """The first round in which another look may begin."""

    def score(self, name: str) -> float | None:
        """The median over the judges of their mean scores of a node; None where no judge has scored it."""
        given = self._scores.get(name)
        return median(mean(some) for some in given.values()) if given else None

    def count(
        self,
        by: str,
        jury: Collection[str],
        which: tuple[int, int],
        now: int,
        said: Mapping[str, tuple[float, float]],
    ) -> list[Finding] | None:
        """Count the scores that ``by`` gives to a round's contributions, name -> (own, held). Returns the decisions;
        None where the scores are ignored.

        ``which``: (view, round). A judge's scores count once for each round and only in ascending order; scores of
        itself do not count. ``jury``: the names that train in the view. ``now``: the run's present round by the counted
        steps, which no single node can advance.
        """
        if which <= self._heard.get(by, (0, -1)):
            return None
        self._heard[by] = which
        found: list[Finding] = []
        if self._look is not None and which[0] > self._look.view and self._look.accused in jury:
            # Judges of a new view were not told of the look: the last view may have ended in the round of the alarm.
            accused = self._look.accused
            self._look = replace(self._look, view=which[0], until=now + LOOK_ROUNDS + _LATE)
            found.append(Finding(look=accused, why=f"the members go on to look at {accused} in view {which[0]}"))
        for name, (own, held) in said.items():
            if name == by or name not in jury or not math.isfinite(own + held):
                continue
            value = value_of(own, held)
            self._scores.setdefault(name, {}).setdefault(by, deque(maxlen=KEPT)).append(value)
            self._newest.setdefault(name, deque(maxlen=ALARM)).append((by, value))
            if finding := self._judge(name, jury, now, which[0]):
                found.append(finding)
        return found

    # ---- inside ----------------------------------------------------------------------------

    def _judge(self, accused: str, jury: Collection[str], now: int, view: int) -> Finding | None:
        given = self._scores[accused]
        jurors = [name for name in jury if name != accused]
        words = {name: mean(given[name]) for name in jurors if len(given.get(name, ())) >= ENOUGH}
        against = [words[name] for name in words if _is_low(given[name], SURE, self._usual(name, accused))]
        needed = max(2, len(jurors) // 2 + 1)
        if len(against) >= needed:
            self._forget(accused, now)
            usual = f"a score of {median(against):.2f}, where 1 is usual"
            many = f"{len(against)} of {len(jurors)} members find what it sends of no use"
            return Finding(out=accused, why=f"{many} ({usual})")
        if self._look is not None and now > self._look.until:
            self._end_look(jury, now)
        return self._alarm(accused, len(jurors) >= needed, now, view)

    def _alarm(self, accused: str, can_be_out: bool, now: int, view: int) -> Finding | None:
        newest = [(by, value) for by, value in self._newest[accused] if self._false.get(by, 0) < _FALSE_ALARMS]
        if self._look is not None or now < self._again or not can_be_out or len(newest) < ALARM:
            return None
        if not _is_low([value for _, value in newest], RATHER_SURE):
            return None
        low = mean(value for _, value in newest)
        accusers = frozenset(by for by, value in newest if value < LIMIT)
        self._look = _Look(accused, now + LOOK_ROUNDS + _LATE, accusers, view)
        self._newest[accused].clear()
        names = " and ".join(sorted(accusers))
        why = f"{names} found what {accused} sends of no use (a score of {low:.2f}): the members look at it"
        return Finding(look=accused, why=why)

    def _end_look(self, jury: Collection[str], now: int) -> None:
        """End a look that has not put the accused out. If the members' scores were good, the alarm was false. If they
        were low but not certain enough, another look may begin at once."""
        assert self._look is not None
        given = self._scores.get(self._look.accused, {})
        words = [mean(some) for name, some in given.items() if name in jury and name not in self._look.accusers]
        if len(words) >= 2 and sum(word >= FINE for word in words) > len(words) / 2:
            for name in self._look.accusers:
                self._false[name] = self._false.get(name, 0) + 1
        all_words = [mean(some) for name, some in given.items() if name in jury and len(some) >= ENOUGH]
        borne_out = len(all_words) > len(jury) / 2 and median_high(all_words) < LIMIT
        self._look, self._again = None, now if borne_out else now + LOOK_ROUNDS

    def _usual(self, juror: str, accused: str) -> float:
        """A juror's mean score of the members other than the accused; where scores tell little, it is low too."""
        others = [mean(some[juror]) for name, some in self._scores.items() if name != accused and some.get(juror)]
        return median(others) if others else 1.0

    def _forget(self, accused: str, now: int) -> None:
        self._scores.pop(accused, None)
        self._newest.pop(accused, None)
        if self._look is not None and self._look.accused == accused:
            self._look, self._again = None, now


def _is_low(scores: Sequence[float], errors: float, usual: float = 1.0) -> bool:
    """Whether a mean is below the limit, and significantly below ``usual`` in its standard errors."""
    count, middle = len(scores), mean(scores)
    spread = math.fsum((value - middle) ** 2 for value in scores) / max(1, count - 1)
    return middle + errors * max(LEAST_SPREAD, math.sqrt(spread)) / math.sqrt(count) < min(LIMIT, usual - APART)


def value_of(own: float, held: float) -> float:
    """The score of one contribution, from -2 to 1. own, held: by how much it lowers the loss on the node's own and on
    held-out samples. A large gain on held-out samples does not make up for a small one on the own samples: a copy of
    another's contribution has that too."""
    return max(-1.0, min(1.0, own)) + max(-1.0, min(0.0, held))
