"""The members of one section in one process: what they send waits until a test delivers it, in the order it likes."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from farflung.job.tables.outer import Outer
from farflung.job.tables.robust import Robust
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.arithmetic.ways.phased import phases_of
from farflung.node.rounds.checking.signed import Signer
from farflung.node.rounds.protocol.machine import Rounds
from farflung.node.rounds.protocol.messages import Part, RoundPlan
from farflung.node.rounds.protocol.outlet import Outlet
from farflung.node.rounds.round_link import RoundLink
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.state.stage_state import takers_of
from farflung.proto import data_pb2
from farflung.proto.messages.bodies import of_round

NUMEL = 96
SHAPES = {"a": (8, 6), "b": (6, 6), "c": (12,)}


def section_of(values: torch.Tensor) -> Section:
    section = Section(Layout.of("stage-0", SHAPES), False, Kept(), torch.device("cpu"), True)
    section.x.copy_(values)
    section.restart_chain(1, 0)
    return section


class Group:
    """Members of one section whose messages a test delivers in the order it likes."""

    def __init__(
        self,
        pattern: str,
        codec: str,
        weights: list[float],
        outer: Outer | None = None,
        fragments: int = 1,
        dense: int = 0,
        robust: Robust | None = None,
        signers: dict[str, Signer] | None = None,
        publishers: str = "",
        sections: Sequence[Section] | None = None,
        gradient: bool = False,
        cuts: int = 1,
    ) -> None:
        """``publishers``: of ``publishers``; empty: every member is one. ``sections``: of a view before. ``cuts``: the
        parts of each publisher."""
        names = tuple("abcde"[: len(weights)])
        among = names[:1] if pattern == "all_to_all" else tuple(publishers) or names
        count = len(among) * fragments * cuts
        edges = [NUMEL * i // count for i in range(count + 1)]
        parts = tuple(
            Part(i, among[i % len(among)], *edge, i // (len(among) * cuts))
            for i, edge in enumerate(itertools.pairwise(edges))
        )
        if pattern == "two_level":
            regions = [names[: len(names) // 2], names[len(names) // 2 :]]
            parts = tuple(replace(part, takers=takers_of(names, regions, part.publisher, part.index)) for part in parts)
        phases = phases_of(codec) if pattern == "phases" else 1
        if pattern == "phases":  # parts are whole parameters
            edges = [0, 48, 84, 96]
            parts = tuple(
                Part(i * phases + k, names[i % len(names)], *edge, i % fragments, k)
                for i, edge in enumerate(itertools.pairwise(edges))
                for k in range(phases)
            )
        plan = RoundPlan("stage-0", names, tuple(weights), parts, pattern, gradient, fragments, phases, dense)
        self.now = 0.0
        self.mail: list[tuple[str, str, data_pb2.Header, bytes]] = []
        self.warnings: list[tuple[str, str]] = []
        self.given: Counter[tuple[str, str]] = Counter()
        """(who refused, whom) -> points."""
        self.links: dict[str, RoundLink] = {}
        for index, name in enumerate(names):
            made = section_of(torch.randn(NUMEL, generator=torch.Generator().manual_seed(index)))
            section = made if sections is None else sections[index]
            exchange = Exchange(
                section, plan, name, codec, dense_rounds=dense, gradient=gradient, seed=7, outer=outer, robust=robust
            )

            def send(to, header, payload, name=name):
                copy = data_pb2.Header()
                copy.CopyFrom(header)
                data = bytes(payload) if isinstance(payload, memoryview) else b"".join(payload)
                self.mail.append((name, to, copy, data))

            self.links[name] = RoundLink(
                exchange,
                Rounds(plan, name, 0, section.chain),
                Outlet(send, partial(self.refuse_by, name), self.refuse),
                clock=lambda: self.now,
                signer=(signers or {}).get(name),
            )

    def refuse_by(self, by: str, node: str, why: str, points: int = 1) -> None:
        self.given[by, node] += points
        self.refuse(node, why, points)

    def refuse(self, node: str, why: str, points: int = 1) -> None:
        self.warnings.append((node, why))

    def deliver(self, index: int, keep: bool = False) -> None:
        sender, to, header, data = self.mail[index] if keep else self.mail.pop(index)
        self.links[to].handle(
            sender,
            of_round(header),
            torch.frombuffer(bytearray(data), dtype=torch.uint8).numpy()
            if data
            else torch.empty(0, dtype=torch.uint8).numpy(),
        )

    def apply(self, name: str) -> None:
        link = self.links[name]
        results, update = link.results, torch.zeros(NUMEL)
        for here, piece in link.updates():
            piece.write_to(update[here])
        before = link.exchange.section.g.double()
        link.exchange.apply_delta(link.updates(), results)
        self.gained = link.exchange.section.g.double() - before - update.double()
        """outer(D) - D of the round, the same whoever applies it."""
        link.finish(results, 16)

    def deliver_all(self) -> None:
        """Everything arrives, in order, and what is sent meanwhile."""
        while self.mail:
            self.deliver(0)

    def end_round(self) -> None:
        """Everything arrives, in order, and every member applies the round."""
        self.deliver_all()
        for name in self.links:
            self.apply(name)

    def total(self) -> torch.Tensor:
        """S = sum p (x + error feedback) / P + server errors, in float64."""
        plan = next(iter(self.links.values())).rounds.plan
        total = torch.zeros(NUMEL, dtype=torch.float64)
        for weight, link in zip(plan.weights, self.links.values(), strict=True):
            section = link.exchange.section
            own = section.x if section.feedback is None else section.x.double() + section.feedback
            total += own.double() * weight / math.fsum(plan.weights)
            for part, error in link.exchange.errors.items():
                total[plan.parts[part].start : plan.parts[part].stop] += error.double()
        return total
