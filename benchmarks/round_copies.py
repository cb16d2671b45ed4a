"""What a node's rounds hold beside weights, gradient and moments, counted without processes or a network.

    python -m benchmarks.round_copies [--mode NAME ...] [--elements 8388608]

The members of one section run rounds in this process, with the vectors, parts and codecs of the modes of
benchmarks/memory.py. Messages travel one after the other: the bytes of one that is sent count until it is delivered,
and those of one that has arrived until the receiver drops them. Counted is the mean over the members of what they
hold at a time, the largest in any of the rounds, in fp32 copies of the section: messages, and every tensor of a
member's exchange beyond x, the gradient and the moments. No audit happens. The window of gradient mode is scaled, as
for a stage of 256 million parameters. The count is the same in every run, so that
tests/node/rounds/test_round_copies.py can hold it; what a process takes beside it (memory that is freed in pieces too
small to be used, buffers of connections) is in benchmarks/memory.py.
"""

from __future__ import annotations

import argparse
import json
import math
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farflung.job.schema import Job
from farflung.node.rounds.exchanges import exchange_of
from farflung.node.rounds.protocol import window
from farflung.node.rounds.protocol.machine import Rounds
from farflung.node.rounds.protocol.outlet import Outlet
from farflung.node.rounds.round_link import RoundLink
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.state.stage_state import residuals_of
from farflung.proto import data_pb2
from farflung.proto.messages.bodies import of_round
from farflung.scheduler import Plan

from .memory import MODES, Mode

RESULTS = Path(__file__).resolve().parent / "results" / "round_copies.json"
ELEMENTS = 1 << 23
LARGE = 1 << 28
"""The stage for whose length the window of gradient mode is scaled."""
ROUNDS = 3


@dataclass
class Held:
    """The bytes of messages that one member holds."""

    now: int = 0
    arrays: dict[int, int] = field(default_factory=dict)

    def block(self, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A message's memory, counted until nothing uses it."""
        array = np.empty(length, np.uint8)
        self.now += length
        weakref.finalize(array, self._free, length)
        return array

    def _free(self, length: int) -> None:
        self.now -= length

    def place(self, blobs: Iterable[Sequence[Any]], count: int) -> memoryview:
        """As `Wire.place`."""
        pieces = [bytes(piece) for blob in blobs for piece in blob]
        return self.filled(pieces)

    def filled(self, pieces: Sequence[Any]) -> memoryview:
        block, at = self.block(sum(map(len, pieces))), 0
        for piece in pieces:
            block[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return block.data


class Members:
    """The members of one section, in rounds of one mode."""

    def __init__(self, mode: Mode, elements: int) -> None:
        names = [f"n{number}" for number in range(mode.nodes)]
        job = Job.model_validate(
            {
                "run": {"steps": 10**6},
                "model": {"family": "gpt2"},
                "data": {"text": ["none.txt"]},
                "train": {"batch": 2 * mode.nodes, "microbatch": 1, "learning_rate": 1e-3},
                "updates": mode.updates,
            }
        )
        alone = tuple((name,) for name in names)
        plan = Plan(pipelines=alone, stages=((0, 1),), microbatches=(2,) * mode.nodes, schedule="1f1b")
        self.mode, self.elements = mode, elements
        self.mail: deque[tuple[str, str, data_pb2.Header, memoryview]] = deque()
        self.links: dict[str, RoundLink] = {}
        self.held: dict[str, Held] = {}
        self.most: dict[str, int] = {}
        """Bytes of each kind when most were held, the mean over the members."""
        self.is_gradient = job.updates.mode == "gradient"
        for name in names:
            section = Section(
                Layout.of("stage-0", {"one": (elements,)}),
                self.is_gradient,
                Kept(()),
                torch.device("cpu"),
                bool(job.updates.outer_optimizer.momentum),
                residuals=residuals_of(job),
            )
            section.x.normal_(generator=torch.Generator().manual_seed(1))
            section.g.copy_(section.x)
            section.restart_chain(1, 0)
            exchange = exchange_of(job, plan, section, name)
            held = self.held[name] = Held()
            exchange.place_in(held.place)
            self.links[name] = RoundLink(
                exchange,
                Rounds(exchange.plan, name, 0, section.chain),
                Outlet(self._sender(name), self._refused, self._refused),
                audit=job.updates.audit,
                clock=lambda: 0.0,
            )
            self.links[name].auditor._dice = lambda: 1.0  # who may be asked keeps what it would show; none asks

    def _sender(self, name: str) -> Any:
        def send(to: str, header: data_pb2.Header, payload: Any) -> None:
            copy = data_pb2.Header()
            copy.CopyFrom(header)
            own = payload if isinstance(payload, memoryview) else self.held[name].filled(payload)
            self.mail.append((name, to, copy, own))

        return send

    def _refused(self, node: str, why: str, *_: Any) -> None:
        raise RuntimeError(f"{node}: {why}")

    def look(self) -> None:
        """Count what is held now."""
        found: dict[str, int] = {"messages": 0, "reference": 0, "feedback": 0, "errors": 0, "progress": 0}
        for name, link in self.links.items():
            exchange, section = link.exchange, link.exchange.section
            found["messages"] += self.held[name].now
            found["reference"] += sum(one.nbytes for one in section.reference if one is not section.x)
            found["feedback"] += 0 if section.feedback is None else section.feedback.nbytes
            found["errors"] += exchange.aggregator.nbytes
            found["progress"] += exchange.applier.nbytes
        if sum(found.values()) > sum(self.most.values()):
            self.most = found

    def round(self, number: int) -> None:
        """One round, from changed weights or a new gradient until all have applied it."""
        for index, link in enumerate(self.links.values()):
            section, chance = link.exchange.section, torch.Generator().manual_seed(100 * number + index)
            for start in range(0, self.elements, 1 << 20):
                here = slice(start, start + (1 << 20))
                values = torch.randn(section.x[here].numel(), generator=chance) * 1e-3
                if self.is_gradient:
                    section.grad[here] = values
                else:
                    section.x[here] += values
        for link in self.links.values():
            link.begin()
            self.look()
            if self.mode.updates.get("overlap", 0) > 1:
                link.exchange.x_moves()
                self.look()
        while self.mail:
            self._deliver()
            self.look()
        for link in self.links.values():
            self._apply(link)
            self.look()

    def _deliver(self) -> None:
        sender, to, header, payload = self.mail.popleft()
        array = np.frombuffer(self.held[to].filled([payload]), np.uint8) if len(payload) else np.empty(0, np.uint8)
        del payload
        self.links[to].handle(sender, of_round(header), array)

    def _apply(self, link: RoundLink) -> None:
        results = link.results
        if not self.is_gradient:
            link.exchange.apply_delta(link.updates(), results)
        elif link.exchange.carries:
            sum(math.fsum(update.values()[:1].tolist()) for _, update in link.updates())
            link.exchange.commit_gradient(link.updates())
        else:
            link.place_all()
            link.exchange.commit_gradient()
        link.finish(results, 65536)


def measure(mode: Mode, elements: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Copies of the section, of each kind and in all, when most are held."""
    usual, window.IN_FLIGHT = window.IN_FLIGHT, window.IN_FLIGHT * elements // LARGE
    try:
        members = Members(mode, elements)
        for number in range(rounds):
            members.round(number)
    finally:
        window.IN_FLIGHT = usual
    unit = 4 * elements * mode.nodes
    kinds = {kind: round(count / unit, 3) for kind, count in members.most.items() if count}
    copies = round(sum(members.most.values()) / unit, 3)
    return {"mode": mode.name, "copies": copies, "limit": round(mode.limit, 2), **kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", help="a part of a mode's name; several are allowed")
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    options = parser.parse_args()
    rows = []
    for mode in MODES:
        if options.mode and not any(part in mode.name for part in options.mode):
            continue
        rows.append(measure(mode, options.elements))
        print(rows[-1], flush=True)
    if not options.mode:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
