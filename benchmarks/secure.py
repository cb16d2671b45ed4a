"""What masks cost: one member's arithmetic of a round in `delta` mode, with and without `updates.secure`.

    python -m benchmarks.secure [--members 3] [--millions 1] [--tries 7]

All members are in this process, one after the other, on one thread, and nothing travels. Seconds are those of the CPU:
other work on the machine counts for little. Tries of the two take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.arithmetic.ways.masked import Masked
from farflung.node.rounds.protocol.messages import Decide, Part, Result, RoundPlan
from farflung.node.state.sections.section import Kept, Layout, Section

SIDE = 256


def group_of(secure: bool, members: int, matrices: int) -> list[Exchange]:
    """Members whose weights differ from the reference."""
    names = tuple(f"n{i}" for i in range(members))
    shapes = {f"w{i}": (SIDE, SIDE) for i in range(matrices)}
    # Each member publishes a part, of two phases.
    edges = [matrices * i // members * SIDE * SIDE for i in range(members + 1)]
    parts = tuple(
        Part(2 * i + phase, names[i], edges[i], edges[i + 1], 0, phase) for i in range(members) for phase in range(2)
    )
    plan = RoundPlan("stage-0", names, (1.0,) * members, parts, "phases", phases=2, whole=True)
    group = []
    for name in names:
        section = Section(Layout.of("stage-0", shapes), False, Kept(), torch.device("cpu"))
        section.x.normal_(std=0.01)
        group.append(Exchange(section, plan, name, "intsgd", seed=7, secure=secure))
    for one in group:
        for other, name in zip(group, names, strict=True):
            if isinstance(one.phased, Masked) and isinstance(other.phased, Masked) and other is not one:
                one.phased.masks.take(name, other.phased.masks.public)
    return group


def round_of(group: list[Exchange], number: int) -> tuple[float, float]:
    """Seconds of CPU of a member, and bits that it sends for each element."""
    begun = time.process_time()
    sent = [one.contributions(number) for one in group]
    found: dict[int, Result] = {}
    bits = 0.0
    for phase in range(2):
        for publisher, one in enumerate(group):
            part = 2 * publisher + phase
            offers = tuple((index, offer[part]) for index, offer in enumerate(sent))
            found[part], refused = one.decide(number, Decide(part, offers))
            assert not refused and found[part].sizes
            bits += 8 * sum(sum(offer.sizes) for _, offer in offers)
        if not phase:
            sent = [{part + 1: one.advance(result) for part, result in found.items() if part % 2 == 0} for one in group]
    for one in group:
        one.check(number, found, {})
        one.apply_delta(one.updates(number, found, {}), list(found.values()))
        one.section.round = number
        one.section.x.normal_(std=0.01)
    seconds = time.process_time() - begun
    return seconds / len(group), bits / len(group) / group[0].section.g.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[3])
    parser.add_argument("--millions", type=float, default=1.0, help="elements")
    parser.add_argument("--tries", type=int, default=7)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    matrices = max(max(wanted.members), round(wanted.millions * 1e6 / SIDE**2))  # nobody publishes nothing
    for members in wanted.members:
        groups = {"plain": group_of(False, members, matrices)}
        groups["masked"] = group_of(True, members, matrices)
        times: dict[str, list[float]] = {name: [] for name in groups}
        bits = dict.fromkeys(groups, 0.0)
        for number in range(1, wanted.tries + 2):
            for name, group in groups.items():
                seconds, bits[name] = round_of(group, number)
                if number > 1:  # the first one warms up
                    times[name].append(seconds)
        for name, tries in times.items():
            spread = f"{statistics.median(tries):.3f} s ({min(tries):.3f} to {max(tries):.3f})"
            print(
                f"{members} members, {matrices * SIDE**2} elements, {name}: {spread}, {bits[name]:.2f} bits an element"
            )


if __name__ == "__main__":
    main()
