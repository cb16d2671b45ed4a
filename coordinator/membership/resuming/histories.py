"""The history of each section that most survivors share, by their reported chains, and the nodes that are outvoted."""

from __future__ import annotations

from collections.abc import Mapping

from ..signals import Flushed, Section


def sections_of(trusted: Mapping[str, Flushed]) -> dict[str, Section]:
    """Each section at the highest round that any trusted node has applied."""
    targets: dict[str, Section] = {}
    for _, answer in sorted(trusted.items()):
        for section in answer.sections:
            if section.name not in targets or section.round > targets[section.name].round:
                targets[section.name] = section
    return dict(sorted(targets.items()))


def judge_histories(known: Mapping[str, Flushed]) -> tuple[frozenset[str], str]:
    """(nodes that the majority of a section outvotes, a sentence where equal camps tie).

    A tie below a section's highest round does not need a checkpoint: the nodes at higher rounds are right, and neither
    camp of the tie is trusted.
    """
    trusted = dict(known)
    while True:
        outvoted: set[str] = set()
        ties: list[tuple[str, int, list[list[str]]]] = []
        for (section, round), camps in _histories(trusted).items():
            if len(camps) > 1 and len(camps[0]) > len(camps[1]):
                outvoted.update(name for camp in camps[1:] for name in camp)
            elif len(camps) > 1:
                ties.append((section, round, camps))
        if not outvoted:
            targets = sections_of(trusted)
            for section, round, camps in ties:
                if round == targets[section].round:
                    said = " against ".join(", ".join(camp) for camp in camps)
                    return (
                        frozenset(),
                        f"as many nodes hold one history of {section} as another after round {round} ({said})",
                    )
                outvoted.update(name for camp in camps for name in camp)
        if not outvoted:
            return frozenset(known) - frozenset(trusted), ""
        trusted = {name: answer for name, answer in trusted.items() if name not in outvoted}


def _histories(trusted: Mapping[str, Flushed]) -> dict[tuple[str, int], list[list[str]]]:
    """(section, round) -> the nodes that report the same chain, in camps, the largest camp first."""
    said: dict[tuple[str, int], dict[int, list[str]]] = {}
    for name, answer in sorted(trusted.items()):
        for section in answer.sections:
            said.setdefault((section.name, section.round), {}).setdefault(section.chain, []).append(name)
    return {where: sorted(chains.values(), key=len, reverse=True) for where, chains in said.items()}
