"""Nodes without a network: trainers as threads, their wires as queues, and a coordinator of forty lines.

The trainers, rounds, codecs and models are the real ones; only processes and gRPC are left out, so that a
whole training run of several nodes takes a second and every interleaving is reachable.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from farflung.node.models import model_of
from farflung.node.trainer import Stopped, Trainer
from farflung.node.wire import OrderEvent, Received
from farflung.proto import control_pb2, data_pb2
from farflung.proto.job import Facts, Job, Profile
from farflung.proto.sampling import unfinished
from farflung.scheduler import Plan


class LoopbackWire:
    """A node's end of the hub: the calls of node.wire.Wire."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.view = self.newest = 0
        self.early: list = []
        self.events: queue.Queue = queue.Queue()
        self.artifacts: dict[str, bytes] = hub.artifacts

    def send(self, to, header, payload=b"", priority=1):
        if not self.view:
            return
        copy = data_pb2.Header()
        copy.CopyFrom(header)
        copy.view = self.view
        pieces = [payload] if isinstance(payload, (bytes, bytearray, memoryview)) else list(payload)
        data = np.frombuffer(b"".join(bytes(piece) for piece in pieces), dtype=np.uint8).copy()
        self.hub.carry(self.name, to, copy, data)

    def poll(self, timeout=0.0):
        found = []
        try:
            found.append(self.events.get(timeout=timeout) if timeout else self.events.get_nowait())
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            return [event for event in self._early_or(found) if self._wanted(event)]

    def _early_or(self, found):
        """Messages of a view that this node has yet to enter wait, as they do in the real wire."""
        waiting, self.early = self.early + found, []
        for event in waiting:
            if isinstance(event, Received) and event.header.view > self.newest:
                self.early.append(event)
            else:
                yield event

    def _wanted(self, event):
        return not isinstance(event, Received) or event.header.view == self.view

    def report(self, report):
        copy = control_pb2.Report()
        copy.CopyFrom(report)
        self.hub.reports.put((self.name, copy))

    def enter(self, view, members):
        self.view = self.newest = view

    def leave_view(self):
        self.view = 0

    def fetch(self, name, offset=0, length=None):
        data = self.artifacts[name]
        return data[offset : None if length is None else offset + length]

    def store(self, step, file, payload, files, meta):
        self.hub.shards[step, file] = (bytes(payload), meta)


@dataclass
class Outcome:
    """What a run reported."""

    losses: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    fingerprints: dict[str, set[int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    samples: int = 0
    views: int = 0


class Hub:
    """Carries messages between nodes, and plays the coordinator."""

    def __init__(self, job: Job, facts: Facts, artifacts: dict[str, bytes] | None = None, delay=None) -> None:
        self.job, self.facts, self.artifacts = job, facts, artifacts or {}
        self.wires: dict[str, LoopbackWire] = {}
        self.trainers: dict[str, Trainer] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.errors: dict[str, BaseException] = {}
        self.reports: queue.Queue = queue.Queue()
        self.shards: dict[tuple[int, str], tuple[bytes, dict]] = {}
        self.dead: set[str] = set()
        self.tamper = None
        """``tamper(sender, to, header, data) -> data | None``: change or lose messages."""
        self.outcome = Outcome()
        self.view = 0
        self._sums: dict[int, list[float]] = {}
        self._evals: dict[int, list[float]] = {}

    def start(self, name: str, data) -> None:
        wire = LoopbackWire(self, name)
        self.wires[name] = wire
        definition = model_of(self.job, self.facts)
        trainer = Trainer(wire, name, self.job, self.facts, definition, lambda: data, torch.device("cpu"))
        self.trainers[name] = trainer

        def live():
            try:
                trainer.run()
            except Stopped:
                pass
            except BaseException as error:
                self.errors[name] = error
                self.reports.put((name, control_pb2.Report(goodbye=control_pb2.Goodbye(why=repr(error)))))

        self.threads[name] = threading.Thread(target=live, daemon=True)
        self.threads[name].start()

    def carry(self, sender, to, header, data):
        if sender in self.dead or to in self.dead:
            return
        if self.tamper is not None:
            data = self.tamper(sender, to, header, data)
            if data is None:
                return
        self.wires[to].events.put(Received(sender, header, data))

    def order(self, name, **kind):
        if name not in self.dead:
            self.wires[name].events.put(OrderEvent(control_pb2.Order(**kind)))

    def begin(self, plan: Plan, nodes, **more) -> None:
        """Announce a view and start it when everybody is prepared."""
        self.view += 1
        self.outcome.views += 1
        self.plan = plan
        view = control_pb2.View(number=self.view, plan=plan.to_json(), checkpoint=more.pop("checkpoint", -1), **more)
        view.members.extend(control_pb2.Member(name=name, session=name, address=name) for name in nodes)
        self.position = (view.step, view.cursor, list(view.redo))
        for name in nodes:
            self.order(name, view=view)
        seen: dict[str, set[int]] = {}
        waiting = set(nodes)
        while waiting:
            name, report = self._next()
            if report.WhichOneof("kind") == "prepared" and report.prepared.view == self.view:
                waiting.discard(name)
                for print_ in report.prepared.fingerprints:
                    seen.setdefault(print_.section, set()).add(print_.content)
        assert all(len(contents) == 1 for contents in seen.values()), seen
        for name in nodes:
            self.order(name, start=control_pb2.Start(view=self.view))

    def finish(self, nodes, until=None) -> Outcome:
        """Collect reports until every node has finished, or ``until(outcome)``."""
        waiting = set(nodes)
        while waiting:
            name, report = self._next()
            if report.WhichOneof("kind") == "finished":
                waiting.discard(name)
                for print_ in report.finished.fingerprints:
                    self.outcome.fingerprints.setdefault(print_.section, set()).add(print_.content)
            if until is not None and until(self.outcome):
                return self.outcome
        for name in nodes:
            self.order(name, stop=control_pb2.Stop(why="done"))
            self.threads[name].join(10)
        return self.outcome

    def flush(self, survivors) -> dict[str, control_pb2.Flushed]:
        """Announce the next view to the survivors and collect their answers."""
        for name in survivors:
            self.order(name, flush=control_pb2.Flush(view=self.view + 1, why="test"))
        answers: dict[str, control_pb2.Flushed] = {}
        while len(answers) < len(survivors):
            name, report = self._next()
            if report.WhichOneof("kind") == "flushed":
                answers[name] = report.flushed
        return answers

    def change(self, plan: Plan, survivors, joiners=()) -> None:
        """A whole view change, decided as the coordinator decides it."""
        answers = self.flush(survivors)
        step = max(answer.step for answer in answers.values())
        norm = max((a.norm for a in answers.values() if a.step == step), default=0.0)
        rounds: dict[str, int] = {}
        holders: dict[int, list[str]] = {}
        for name, answer in answers.items():
            for state in answer.sections:
                rounds[state.section] = max(rounds.get(state.section, 0), state.round)
            for layer in answer.layers:
                holders.setdefault(layer, []).append(name)
        from farflung.proto.sampling import Position

        position = Position(self.position[0], self.position[1], tuple(self.position[2]))
        redo = []
        if self.job.updates.mode == "delta":
            # What the last stage has reported is what counts.
            finished = [answers[p[-1]].step if p[-1] in answers else self.position[0] for p in self.plan.pipelines]
            train = self.job.train
            redo = unfinished(
                position,
                finished,
                step,
                self.plan.microbatches,
                train.microbatch,
                self.job.run.seed,
                self.facts.samples,
            )
        for name, answer in answers.items():
            if answer.HasField("pending") and answer.pending.step == step > answer.step:
                self._count(answer.pending)
        after = position.after(step, self.job.train.batch, redo)
        self.begin(
            plan,
            [*survivors, *joiners],
            step=step,
            cursor=after.cursor,
            redo=after.redo,
            norm=norm,
            sections=[control_pb2.SectionState(section=name, round=round) for name, round in rounds.items()],
            holders=[control_pb2.Holder(layer=layer, nodes=nodes) for layer, nodes in holders.items()],
        )

    def kill(self, name: str) -> None:
        self.dead.add(name)

    def _next(self):
        name, report = self.reports.get(timeout=120)
        kind = report.WhichOneof("kind")
        if kind == "goodbye" and name not in self.dead:
            raise AssertionError(f"{name} ended: {report.goodbye.why}") from self.errors.get(name)
        if kind == "step":
            self._count(report.step)
        elif kind == "eval":
            sums = self._evals.setdefault(report.eval.step, [0.0, 0])
            sums[0] += report.eval.loss_sum
            sums[1] += report.eval.tokens
            self.outcome.evals[report.eval.step] = sums[0] / sums[1]
        elif kind == "warning":
            self.outcome.warnings.append(f"{report.warning.node}: {report.warning.message}")
        return name, report

    def _count(self, step):
        if step.tokens:
            sums = self._sums.setdefault(step.step, [0.0, 0])
            sums[0] += step.loss_sum
            sums[1] += step.tokens
            self.outcome.losses[step.step] = sums[0] / sums[1]
            self.outcome.tokens[step.step] = sums[1]
            self.outcome.samples += step.samples


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def facts_of(samples: int, validation: int, context: int, vocabulary: int, steps: int) -> Facts:
    return Facts(
        samples=samples,
        validation_samples=validation,
        context=context,
        vocabulary=vocabulary,
        token_dtype="uint8",
        steps=steps,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family=""),
        artifacts={},
    )


class Windows:
    """Random but learnable token windows, held in memory: the calls of node.dataset.Dataset."""

    def __init__(self, facts: Facts, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = facts.samples + facts.validation_samples
        start = torch.randint(0, facts.vocabulary, (count, 1), generator=generator)
        stride = torch.randint(1, 4, (count, 1), generator=generator)
        self.rows = (start + stride * torch.arange(facts.context + 1)) % facts.vocabulary

    def batch(self, ids):
        rows = self.rows[torch.tensor(list(ids))]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
