"""Which members hold weights that differ from the majority's: pure functions of the hashes that members report.

Memory fails, and members lie. Where most members of a section hold the same weights, the others are named and put out.
Only equal camps are a tie, which weights alone cannot decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..signals import Fingerprint, Flushed


@dataclass(frozen=True)
class Split:
    """``outvoted``: name -> what is wrong with the node. ``tie``: a sentence where two camps of equal size hold
    different weights, and ``camps``: their members."""

    outvoted: Mapping[str, str] = field(default_factory=dict)
    tie: str = ""
    camps: tuple[tuple[str, ...], ...] = ()


def split(answers: Mapping[str, tuple[Fingerprint, ...]]) -> Split:
    """Compare the members' content of each section, and its round. answers: name -> fingerprints."""
    said: dict[str, dict[tuple[int, int], list[str]]] = {}
    for name, fingerprints in sorted(answers.items()):
        for one in fingerprints:
            said.setdefault(one.section, {}).setdefault((one.round, one.content), []).append(name)
    outvoted: dict[str, str] = {}
    tie: tuple[str, tuple[tuple[str, ...], ...]] = "", ()
    for section, held in sorted(said.items()):
        camps = sorted(held.items(), key=lambda camp: -len(camp[1]))
        if len(camps) > 1 and len(camps[0][1]) > len(camps[1][1]):
            (round, _), most = camps[0]
            for (other, _), names in camps[1:]:
                why = f"it holds {section} at round {other}, not {round} like {', '.join(most)}"
                if other == round:
                    why = f"it holds other weights of {section} than {', '.join(most)} after round {round}"
                outvoted |= dict.fromkeys(names, why)
        elif len(camps) > 1 and not tie[0]:
            ((here, _), first), ((there, _), second) = camps[:2]
            if here != there:
                why = f"{first[0]} holds {section} at round {here}, {second[0]} at round {there}"
            else:
                why = f"{first[0]} and {second[0]} hold different weights of {section} after round {here}"
            tie = why, tuple(tuple(names) for _, names in camps)
    return Split(outvoted, *tie)


def beyond(mode: str, begin: int, answers: Mapping[str, Flushed]) -> frozenset[str]:
    """Members that claim a step or round that is impossible by the others' reports: their state is not trusted.

    ``gradient`` mode: a step is committed when every member holds its results, so a node can't have finished a step for
    which no other was ready. In either mode, of three or more members of a section, one is at most one round ahead of
    all others.
    """
    found = set()
    for name, answer in answers.items():
        others = [one for other, one in answers.items() if other != name]
        nobody_was_ready = all(max(one.step, one.ready_step) < answer.step for one in others)
        if mode == "gradient" and others and answer.step > begin and nobody_was_ready:
            found.add(name)
    rounds: dict[str, list[tuple[int, str]]] = {}
    for name, answer in answers.items():
        for section in answer.sections:
            rounds.setdefault(section.name, []).append((section.round, name))
    for reached in rounds.values():
        ordered = sorted(reached, reverse=True)
        if len(ordered) > 2 and ordered[0][0] > ordered[1][0] + 1:
            found.add(ordered[0][1])
    return frozenset(found)
