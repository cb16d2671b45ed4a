"""A whole run inside one process: trainers as threads, their wires as queues, and a small coordinator.

The trainers, rounds, codecs and models are the real ones; only processes and gRPC are left out, so that a training
run of several nodes takes a second, and tests can hold, lose and change messages. Benchmarks of codecs use it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..job.chosen import microbatch_of
from ..job.data.facts import Facts
from ..job.data.sampling import Position, unfinished
from ..job.schema import Job
from ..node.data.dataset import Dataset
from ..node.device.identity import Identity
from ..node.device.limits import Owner
from ..node.models.definition import LanguageModel, ModelDefinition
from ..node.models.factory import model_of
from ..node.pipeline.island import Island
from ..node.state.files.rests import Rests
from ..node.training.endings import Stopped
from ..node.training.external.external_loop import OwnLoop
from ..node.training.trainer import Trainer
from ..node.wire.events import OrderEvent
from ..proto import control_pb2
from ..scheduler import Plan
from .wires import Killed, Network

HandsOver = Callable[
    [Plan | None, Plan, Sequence[Collection[str]], Mapping[str, control_pb2.Flushed]], Sequence[control_pb2.Handover]
]


@dataclass
class Outcome:
    """The reports of a run."""

    losses: dict[int, float] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    sets: dict[int, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """(step, number of the set in ``eval.sets``) -> (sum of the loss, tokens) of each evaluation."""
    fingerprints: dict[str, set[int]] = field(default_factory=dict)
    bases: dict[str, dict[int, int]] = field(default_factory=dict)
    """Digests of the frozen weights of each node's layers, as last reported."""
    warnings: list[str] = field(default_factory=list)
    samples: int = 0
    views: int = 0


class Hub(Network):
    """Carries messages between nodes, and plays the coordinator."""

    def __init__(self, job: Job, facts: Facts, artifacts: dict[str, bytes] | None = None) -> None:
        super().__init__(artifacts)
        self.job, self.facts = job, facts
        self.trainers: dict[str, Trainer] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.errors: dict[str, BaseException] = {}
        self.identities: dict[str, Identity] = {}
        """Identities for the nodes that will be started, where the run has certificates."""
        self.emitted: dict[str, list[dict[str, Any]]] = {}
        """Node -> the events that a person at that node would see."""
        self.outcome = Outcome()
        self.view = 0
        self.position = Position()
        self.follow: list[control_pb2.Shadow] = []
        """The spares in views that ``change`` makes."""
        self.hands_over: HandsOver = lambda before, plan, holders, answers: ()
        """Decides the handovers of views that ``change`` makes."""
        self.plan: Plan | None = None
        self._definition: ModelDefinition | None = None
        self._sums: dict[int, tuple[float, int]] = {}
        self._evals: dict[tuple[int, int], tuple[float, int]] = {}

    def start(
        self,
        name: str,
        data: Dataset,
        island: Island | None = None,
        rests: Rests | None = None,
        own: OwnLoop | None = None,
        device: str = "cpu",
        *,
        owner: Owner | None = None,
    ) -> None:
        """Start a node, which then waits for its first view. ``own``: the training loop of a member of
        ``farflung.group``."""
        wire = self.wire(name, self.identities.get(name))
        definition = self._model() if own is None else own.model
        if island is not None:
            island.take_up(self.job, self.facts, wire.fetch, ())
        trainer = Trainer(
            wire,
            name,
            self.job,
            self.facts,
            definition=definition,
            open_data=lambda: data,
            device=torch.device(device),
            emit=self.emitted.setdefault(name, []).append,
            owner=owner if own is None else own.owner,
            island=island,
            own=own,
            rests=rests,
            allow_code=None,
        )
        if own is not None:
            own.trainer = trainer
        self.trainers[name] = trainer

        def live() -> None:
            try:
                trainer.run()
            except (Stopped, Killed):
                if own is not None:
                    own.end(None)
                return
            except BaseException as error:
                self.errors[name] = error
                self.reports.put((name, control_pb2.Report(goodbye=control_pb2.Goodbye(why=repr(error)))))

        self.threads[name] = threading.Thread(target=live, daemon=True)
        self.threads[name].start()

    def _model(self) -> ModelDefinition:
        """The definition that the nodes share. Nodes only read a language model's, and reading a model from
        `transformers` takes longer than some steps of a small one; of other models each node has one, which keeps
        initial values."""
        if self._definition is None:
            self._definition = model_of(self.job, self.facts)
        found = self._definition
        if not isinstance(found, LanguageModel):
            self._definition = None
        return found

    def order(self, name: str, **kind: Any) -> None:
        if name not in self.dead:
            self.wires[name].events.put(OrderEvent(control_pb2.Order(**kind)))

    def begin(self, plan: Plan, nodes: Sequence[str], start: bool = True, **more: Any) -> None:
        """Announce a view and, with ``start``, start it when everybody is prepared."""
        self.view += 1
        self.outcome.views += 1
        self.plan = plan
        view = control_pb2.View(number=self.view, plan=plan.to_json(), checkpoint=more.pop("checkpoint", -1), **more)
        view.members.extend(control_pb2.Member(name=name, session=name, address=name) for name in nodes)
        self.position = Position(view.step, view.cursor, tuple(view.redo))
        for name in nodes:
            self.order(name, view=view)
        seen: dict[str, set[int]] = {}
        waiting = set(nodes)
        while waiting:
            name, report = self._next()
            if report.WhichOneof("kind") == "prepared" and report.prepared.view == self.view:
                waiting.discard(name)
                self.outcome.bases[name] = {one.layer: one.content for one in report.prepared.bases}
                for print_ in report.prepared.fingerprints:
                    seen.setdefault(print_.section, set()).add(print_.content)
        if any(len(contents) != 1 for contents in seen.values()):
            raise RuntimeError(f"nodes of one section begin with different content: {seen}")
        for name in nodes if start else ():
            self.order(name, start=control_pb2.Start(view=self.view))

    def finish(self, nodes: Sequence[str]) -> Outcome:
        """Collect reports until every node has finished, then stop them."""
        waiting = set(nodes)
        while waiting:
            name, report = self._next()
            if report.WhichOneof("kind") == "finished":
                waiting.discard(name)
                for print_ in report.finished.fingerprints:
                    self.outcome.fingerprints.setdefault(print_.section, set()).add(print_.content)
        self.stop(nodes)
        return self.outcome

    def stop(self, nodes: Sequence[str] | None = None) -> None:
        """Stop these nodes, wherever they are; None: all."""
        for name in self.threads if nodes is None else nodes:
            self.order(name, stop=control_pb2.Stop(why="done"))
            self.threads[name].join(10)

    def flush(self, survivors: Sequence[str]) -> dict[str, control_pb2.Flushed]:
        """Announce the next view to the survivors and collect their answers."""
        for name in survivors:
            self.order(name, flush=control_pb2.Flush(view=self.view + 1, why="test"))
        answers: dict[str, control_pb2.Flushed] = {}
        while len(answers) < len(survivors):
            name, report = self._next()
            if report.WhichOneof("kind") == "flushed":
                answers[name] = report.flushed
        return answers

    def change(self, plan: Plan, survivors: Sequence[str], joiners: Sequence[str] = (), **more: Any) -> None:
        """A whole view change, with the coordinator's decisions. ``more``: further fields of the view's message."""
        answers = self.flush(survivors)
        step = max(answer.step for answer in answers.values())
        norm = max((a.norm for a in answers.values() if a.step == step), default=0.0)
        rounds: dict[str, int] = {}
        holders: dict[int, list[str]] = {}
        for name, answer in answers.items():
            for state in answer.sections:
                rounds[state.section] = max(rounds.get(state.section, 0), state.round)
            behind = self.job.updates.mode == "gradient" and max(answer.step, answer.ready_step) < step
            for layer in () if behind else answer.layers:
                holders.setdefault(layer, []).append(name)
        position, redo = self.position, []
        if self.job.updates.mode == "delta" and self.plan is not None:
            # Only the last stage's reports count.
            finished = [answers[p[-1]].step if p[-1] in answers else position.step for p in self.plan.pipelines]
            redo = unfinished(
                position,
                finished,
                step,
                self.plan.microbatches,
                microbatch_of(self.job, self.plan.chosen),
                self.job.run.seed,
                samples=self.facts.drawn,
            )
        for answer in answers.values():
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
            shadows=self.follow,
            save=any(answer.save for answer in answers.values()),
            handovers=self.hands_over(
                self.plan, plan, [holders.get(layer, []) for layer in range(plan.layers)], answers
            ),
            **more,
        )

    def kill(self, name: str) -> None:
        """Drop all messages from and to this node. Its thread ends when it next waits for a message."""
        self.dead.add(name)
        if threading.current_thread() is not self.threads[name]:
            self.threads[name].join(10)

    def _next(self) -> tuple[str, control_pb2.Report]:
        name, report = self.reports.get(timeout=120)
        kind = report.WhichOneof("kind")
        if kind == "goodbye" and name not in self.dead:
            raise RuntimeError(f"{name} ended: {report.goodbye.why}") from self.errors.get(name)
        if kind == "step":
            self._count(report.step)
        elif kind == "eval":
            which = (report.eval.view, report.eval.step)
            loss, tokens = self._evals.get(which, (0.0, 0))
            sums = (loss + report.eval.loss_sum, tokens + report.eval.tokens)
            self._evals[which] = sums
            self.outcome.evals[report.eval.step] = sums[0] / max(1, sums[1])
            found = self.outcome.sets.setdefault(report.eval.step, {})
            for one in report.eval.sets:
                loss, tokens = found.get(one.number, (0.0, 0))
                found[one.number] = (loss + one.loss_sum, tokens + one.tokens)
        elif kind == "warning":
            said: Any = report.warning  # grpc-stubs and the builtin share the name Warning
            self.outcome.warnings.append(f"{said.node}: {said.message}")
        return name, report

    def _count(self, step: control_pb2.StepDone) -> None:
        if step.tokens:
            loss, tokens = self._sums.get(step.step, (0.0, 0))
            self._sums[step.step] = (loss + step.loss_sum, tokens + step.tokens)
            self.outcome.losses[step.step] = self._sums[step.step][0] / self._sums[step.step][1]
            self.outcome.samples += step.samples
