"""``farflung.group``: a training loop of one's own, whose model all members of a run train together."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

import torch

from .. import compress
from ..cli.one_run.linkfile import link_text
from ..node.device.limits import Limits
from ..node.device.own_folder import own_folder, writable
from ..node.entering import Past, check_secure, enter
from ..node.join import Joined, part
from ..node.promises import Promises
from ..node.rejoin import RunOver
from ..node.state.files.rests import Rests
from ..node.training.endings import Stopped, error_of
from ..node.training.external.external_loop import Order, OwnLoop
from ..node.training.external.external_model import OwnModel, Samples
from ..node.training.trainer import Trainer
from ..node.wire.client import ProcessWire
from ..proto.errors import FarflungError, JobError
from ..proto.process.telling import undisturbed
from ..proto.words.border import below
from ..proto.words.link import parse_link
from .lives import Lives

_REST_SECONDS = 10.0
"""Seconds to wait at the end for files that are still being written."""
_GOODBYE_SECONDS = 30.0


class _Member(NamedTuple):
    """One life of a member: it has joined the run."""

    wire: ProcessWire
    joined: Joined
    lock: TextIO | None


class Group:
    """A member of a run, for the length of a ``with`` block.

    Attributes:
        name: this member's name in the run.
        samples: the ids, from 0, of the training samples for this member's next gradient: as many as its share of the
            batch. Empty when the run is over.
        steps: how many steps are finished.
    """

    def __init__(
        self,
        link: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        cache: Path | None = None,
        insecure: bool = False,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        offload_folder: Path | str | None = None,
    ) -> None:
        self._link = parse_link(link_text(link))
        check_secure(self._link, insecure)
        self._model = OwnModel(model, optimizer)
        self._cache = writable(own_folder(cache))
        moments = None if offload_folder is None else Path(offload_folder)
        if moments is not None:
            writable(moments, "moments", "group(..., offload_folder=DIR), or leave it out")
        self._loop = OwnLoop(self._model, optimizer, offload_folder=moments)
        self._enter = partial(enter, advertise=advertise, listen=listen, cache=self._cache, limits=Limits())
        self._past = Past(name or "")
        self._emit = undisturbed(on_event)
        self._thread: threading.Thread | None = None
        self.name = ""
        self.samples: list[int] = []
        self.steps = 0
        self._life = 0

    def __enter__(self) -> Group:
        member = self._join()
        self._thread = threading.Thread(target=self._train, args=(member,), name="farflung-group", daemon=True)
        self._thread.start()
        try:
            self._next()
        except BaseException:
            self._leave("leaving: its training loop was broken off")
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ended = "has ended" if kind is None else f"ended with {kind.__name__}"
        self._leave(f"leaving: its training loop {ended}")

    def step(self, loss: float | torch.Tensor | None = None) -> bool:
        """Finish a step with the others: exchange, the optimiser's step, new weights in the model.

        The parameters' ``grad`` must be that of the mean loss over ``samples``; it is None afterwards. ``loss`` is that
        mean, for the run's curves. Waits for the others. Returns whether the gradient counted. It did not if a member
        joined or left meanwhile; then ``samples`` are new, and no sample is trained twice or left out.

        A member whose machine was suspended, whose line was down or whose I/O process crashed joins again under its
        key: this call takes as long as that, and the model then has the others' weights.

        Raises FarflungError when the run has failed, or the coordinator has put this member out.
        """
        if not self.samples:
            raise FarflungError("the run is over", "while g.samples: ...")
        before, life = self.steps, self._life
        self._loop.give(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._next()
        return self.steps > before and self._life == life

    def _next(self) -> None:
        order: Order | None = self._loop.take()
        self.samples = [] if order is None else order.samples
        self._life = self._loop.life if order is None else order.life
        trainer = self._loop.trainer
        self.steps = order.step - 1 if order is not None else trainer.step if trainer is not None else self.steps

    def _check(self, joined: Joined) -> None:
        wanted, there = joined.job.model.parameters, self._model.count
        if wanted is None:
            raise JobError("this run has a model of its own", "its nodes are started with `farflung join LINK`")
        if wanted != there:
            raise JobError(
                f"the job says model.parameters = {wanted}, and the optimizer here moves {there}",
                f"write parameters = {there} under [model], or bring the model that the others have",
            )
        if joined.job.train.offload_kind == "moments" and self._model.device.type != "cpu":
            raise JobError(
                "the job keeps moments in main memory (train.offload), and the optimizer here steps on "
                f"{self._model.device}, where it needs them",
                'write offload = "none" under [train], or bring a model on the CPU',
            )

    def _join(self) -> _Member:
        """Join the run, under the name of the earlier life if there was one."""
        measure = partial(self._past.measured, str(self._model.device))
        joined, lock = self._enter(self._link, measure, name=self._past.name or None)
        self._past.name = self.name = joined.name
        try:
            self._check(joined)
            return _Member(ProcessWire.start(joined.config), joined, lock)
        except BaseException as problem:
            session = (joined.name, joined.session, joined.secret)
            part(self._link.address, joined.credentials.pinned, session, f"failed: {problem}")
            if lock is not None:
                lock.close()
            raise

    def _train(self, member: _Member | None) -> None:
        """The trainer's thread: one life after the other, as a node's (node/rejoin.py)."""
        lives, error = Lives(self._loop.owner, self._warn), None
        try:
            while True:
                began = time.monotonic()
                try:
                    member = member or self._join()
                    error = self._live(member)
                except BaseException as problem:  # raised again in the loop's thread
                    error = problem
                member = None
                if not lives.again(error, time.monotonic() - began):
                    break
                self._loop.begin_again()
                gc.collect()  # frees the memory of the life that ended: the next one needs as much
        finally:
            self._loop.end(None if isinstance(error, RunOver) else error)

    def _live(self, member: _Member) -> BaseException | None:
        """Runs one life; returns the error that ended it, None at the run's end or after a goodbye."""
        wire, joined, lock = member
        why = "the node failed"
        error: BaseException | None = None
        rests: Rests | None = None
        try:
            data = Samples(joined.facts.samples)
            run = wire.config.run
            rests = Rests(below(self._cache, f"rests-{run}-{joined.name}"), run)
            trainer = self._loop.trainer = Trainer(
                wire,
                joined.name,
                joined.job,
                joined.facts,
                definition=self._model,
                open_data=lambda: data,
                device=self._model.device,
                emit=self._emit,
                owner=self._loop.owner,
                own=self._loop,
                rests=rests,
                promises=Promises(joined.name, joined.job, joined.facts, check_codec=compress.check),
            )
            trainer.run()
        except Stopped as stopped:
            why, error = stopped.why, error_of(stopped)
        except BaseException as problem:
            why, error = f"failed: {problem}", problem
        finally:
            wire.close(why)
            if rests is not None:
                rests.wait(_REST_SECONDS)
            if lock is not None:
                lock.close()
        return error

    def _warn(self, message: str) -> None:
        self._emit({"event": "warning", "time": time.time(), "message": message, "node": self.name})

    def _leave(self, why: str) -> None:
        """Say goodbye if the run goes on; what was learnt since the last round is lost."""
        assert self._thread is not None
        self._loop.owner.leaves = why
        self._thread.join(_GOODBYE_SECONDS)


def group(link: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Group:
    """Join a run with a model and an optimiser of one's own::

        with farflung.group(link, model, optimizer) as g:
            while g.samples:
                loss = functional.cross_entropy(model(inputs[g.samples]), targets[g.samples])
                loss.backward()
                g.step(loss)

    The run's job says ``[model] parameters = N`` and ``[data] samples = M``; its ``[updates]`` say how members agree:
    ``mode = "gradient"`` sums gradients, ``mode = "delta"`` averages weights every few steps. All members begin with
    the weights of one of them, and a member that joins late gets the others' present weights (in ``gradient`` mode the
    optimiser's state too).

    Args:
        link: as the coordinator prints it; ``@FILE``: read it from FILE.
        model: the parameters that the optimizer moves are trained; they must be float32, on one device.
        optimizer: one that has taken no step. It takes its steps inside ``g.step()``.
        name, listen, advertise, cache, insecure, offload_folder: as for `farflung join`. Moments that the job offloads
            lie in main memory, so a model on a GPU is refused then.
        on_event: called with the events that `farflung join --json` prints.

    Raises:
        FarflungError: the link, the model or the optimiser is wrong, or the coordinator refused.
    """
    return Group(link, model, optimizer, **options)
