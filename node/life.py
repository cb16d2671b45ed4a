"""One life of a node: join, train until the run is done or the node's owner ends it, leave."""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from .. import compress
from ..job.data.own_code import THERE, check_own_code
from ..job.schema import Job
from ..proto.errors import FarflungError
from ..proto.words.border import below
from ..proto.words.link import Link
from .data.dataset import Dataset
from .data.eval_sets import with_sets
from .data.opening import DataSource, Emit, OpenOwnData, OwnDataUnusable
from .device.disk_cache import remove
from .device.limits import Owner
from .device.probe import beside_cuda, find_device
from .entering import Past, enter
from .join import Joined, part
from .models.factory import model_of
from .models.own_code import own_code
from .models.weights.fetch import telling
from .owner_signals import TAKEN_AWAY, Terminated, out_of_danger
from .pipeline.island import Island
from .promises import Broken, Promises, terms
from .state.files.rests import Rests
from .training.endings import Stopped, error_of
from .training.trainer import Trainer
from .wire.client import ProcessWire

_REST_SECONDS = 10.0
"""Seconds at the end for files that are still being written."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; ``heard``: the coordinator has taken the goodbye."""

    def __init__(self, heard: bool) -> None:
        super().__init__()
        self.heard = heard


@dataclass(frozen=True)
class Settings:
    """A node's options as its owner gave them, the same in all of its lives."""

    link: Link
    device: str
    advertise: str | None
    listen: str | None
    allow_code: Sequence[str]
    cache: Path
    metrics: str
    """HOST:PORT at which its metrics are served; empty: nowhere."""
    own_data: OpenOwnData | None
    """Reads its private data, for a run whose nodes have their own."""
    require: Collection[str]
    """Properties that the run must have for the node to join (``--require``)."""


def live(settings: Settings, owner: Owner, past: Past, island: Island | None, emit: Emit) -> None:
    """One life. ``past``: what earlier lives left; this one adds to it.

    Raises:
        FarflungError: the node could not join, was refused, or the run failed; ``status`` says which.
        Interrupted: Ctrl-C.
    """
    measure = partial(past.measured, settings.device) if island is None else island.measure
    joined, lock = enter(
        settings.link,
        measure,
        name=past.name,
        advertise=settings.advertise,
        listen=settings.listen,
        cache=settings.cache,
        limits=owner.limits,
    )
    past.joined, past.name, past.entered = True, joined.name, time.monotonic()
    try:
        Life(settings, owner, joined, island, emit).run()
    finally:
        if lock is not None:
            lock.close()


def check_offload(job: Job, device: torch.device) -> None:
    """FarflungError: a plan would count on a GPU that this node does not have."""
    if job.train.offload_kind == "parameters" and device.type == "cpu":
        raise FarflungError(
            'this run keeps parameters in main memory beside a GPU (train.offload = "parameters"), and this node '
            "computes on the CPU",
            'join with --device cuda:N; with train.offload = "optimizer" CPUs may join too',
        )


class Life:
    """The life of a node that has joined."""

    def __init__(self, settings: Settings, owner: Owner, joined: Joined, island: Island | None, emit: Emit) -> None:
        self._settings, self._owner, self._joined = settings, owner, joined
        self._island, self._emit = island, emit
        self._device = torch.device("cpu")
        run = settings.link.run
        self._pieces = below(settings.cache, f"pieces-{run}-{joined.name}")
        """The folder for pieces of the corpus, where the corpus is larger than the disk."""
        self._rests = below(settings.cache, f"rests-{run}-{joined.name}")
        self._kept: Rests | None = None
        self._trainer: Trainer | None = None
        self._why = "the node failed"
        """The reason that its goodbye gives."""

    def run(self) -> None:
        """Raises as `live`."""
        joined = self._joined
        away = ", where nobody can dial it: it dials the others" if joined.dials_out else ""
        why = f"joined run {self._settings.link.run} as {joined.name} at {joined.address}{away}"
        self._tell("joined", why=why)
        try:
            promises = self._promised()
            wire = self._begin()
        except (FarflungError, OSError) as problem:
            pinned, session = joined.credentials.pinned, (joined.name, joined.session, joined.secret)
            why = problem.message if isinstance(problem, Broken) else f"failed: {problem}"
            part(self._settings.link.address, pinned, session, why)
            raise
        try:
            self._train(wire, promises)
        except KeyboardInterrupt:
            raise Interrupted(wire.close("interrupted by its owner")) from None
        finally:
            out_of_danger()
            if self._island is not None:
                self._island.close()
            wire.close(self._why)
            if self._kept is not None:
                self._kept.wait(_REST_SECONDS)

    # ---- before it trains ------------------------------------------------------------------

    def _promised(self) -> Promises:
        """Checks the run against what its owner insists on, and tells the owner its terms. Broken: it does not fit."""
        joined, settings = self._joined, self._settings
        said = terms(joined.job, self._owner.limits, not settings.link.insecure)
        self._tell("terms", terms=said)
        promises = Promises(joined.name, joined.job, joined.facts, settings.require, compress.check)
        promises.check_join()
        return promises

    def _begin(self) -> ProcessWire:
        """Find the device, load what it trains with, start the I/O process."""
        joined = self._joined
        self._device = find_device(self._settings.device)
        check_offload(joined.job, self._device)
        if joined.job.model.build is None:
            # This takes seconds but delays no view: a node is in none before its I/O process has said hello.
            importlib.import_module("transformers.modeling_utils")
        told = beside_cuda(self._device, joined.job.updates.mode)
        if told:
            self._say("notice", told)
        config = replace(joined.config, metrics=self._settings.metrics, max_upload=self._owner.limits.upload)
        return ProcessWire.start(config)

    # ---- training --------------------------------------------------------------------------

    def _train(self, wire: ProcessWire, promises: Promises) -> None:
        """Train until stopped; sets ``_why``, the reason that the goodbye gives."""
        try:
            self._trainer = self._trains(wire, promises)
            self._owner.listens = True
            self._trainer.run()
        except Stopped as stopped:
            self._stopped(stopped)
        except Terminated:
            self._why = TAKEN_AWAY
            self._tell("left", why=self._why)
        except Broken as problem:
            self._why = problem.message
            raise
        except (FarflungError, torch.OutOfMemoryError) as problem:
            private = isinstance(problem, OwnDataUnusable)  # its message may quote the files
            self._why = "failed: " + ("its own data are not usable" if private else str(problem))
            raise

    def _trains(self, wire: ProcessWire, promises: Promises) -> Trainer:
        joined, settings, owner, island = self._joined, self._settings, self._owner, self._island
        fetch = telling(wire.fetch, self._emit)
        definition = model_of(joined.job, joined.facts, fetch, settings.allow_code)
        own = own_code(joined.job, definition, allow_code=settings.allow_code)
        for sentence in check_own_code(joined.facts.profile.own, own, THERE):
            self._say("warning", sentence)
        source = DataSource(joined.job, joined.facts, fetch, settings.cache, settings.allow_code)
        private = source.private(settings.own_data, self._emit)

        def open_data() -> Dataset:
            trained = private
            if trained is None:
                trained = source.shared(wire.fetch_later, self._pieces, owner.limits.disk, self._say)
            kept = None if owner.limits.disk else settings.cache  # with a disk limit, evaluation sets stay in memory
            return with_sets(trained, joined.facts, fetch, kept)

        if island is not None:
            island.take_up(joined.job, joined.facts, fetch, settings.allow_code)
            self._tell_of_idle_devices(island)
        self._kept = Rests(self._rests, settings.link.run, owner.limits.disk, partial(self._say, "notice"))
        return Trainer(
            wire,
            joined.name,
            joined.job,
            joined.facts,
            definition=definition,
            open_data=open_data,
            device=self._device,
            emit=self._emit,
            owner=owner,
            island=island,
            rests=self._kept,
            promises=promises,
            allow_code=settings.allow_code,
        )

    def _stopped(self, stopped: Stopped) -> None:
        """The coordinator stopped this node, or the run is over. Raises the error that the run failed with, if any."""
        self._why = stopped.why
        error = error_of(stopped)
        if error is not None:
            raise error from None
        trainer = self._trainer
        done = trainer is not None and trainer.training is not None and trainer.step >= self._joined.facts.steps
        if done:  # not a stop to go on later
            remove(self._pieces)
            if self._kept is not None:
                self._kept.wait()
                remove(self._kept.folder)
        self._tell("left", why=stopped.why)

    def _tell_of_idle_devices(self, island: Island) -> None:
        microbatch, rows = self._joined.job.train.microbatch, island.rows
        known = self._joined.job.parallel.inside != "auto"
        if known and isinstance(microbatch, int) and microbatch < rows:
            self._say(
                "notice",
                f"a microbatch of {microbatch} leaves {island.ranks - microbatch * (island.ranks // rows)} of this "
                f"island's {island.ranks} devices idle: set train.microbatch to {rows} or more",
            )

    # ---- what the person at the node sees --------------------------------------------------

    def _say(self, event: str, message: str) -> None:
        self._tell(event, message=message)

    def _tell(self, event: str, **words: object) -> None:
        self._emit({"event": event, "time": time.time(), "node": self._joined.name, **words})
