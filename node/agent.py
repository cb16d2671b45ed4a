"""A node's life: measure the device, join, train until the run is done or the node's owner has had enough.

SIGTERM (a spot instance's warning): the last contribution, a view without this node, exit 0, all within 20 s.
SIGINT: a goodbye, and nothing more. SIGUSR1: a pause, and again for its end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .. import compress
from ..job.facts import Facts
from ..job.schema import Job
from ..proto.border import below
from ..proto.control_pb2 import Device
from ..proto.errors import FarflungError, Parted
from ..proto.link import Link
from ..proto.progress import Meter, Tell
from ..proto.telling import undisturbed
from .data.dataset import BuildData, Dataset, OwnData, dataset_of, disk_for_tokens, tokens_size
from .data.streamed import StreamedTokens
from .device.disk_cache import remove
from .device.identity import keeps_key
from .device.limits import Limits, Owner
from .device.own_folder import own_folder, writable
from .device.probe import beside_cuda, find_device, measure_device
from .entering import check_secure, enter
from .io.metrics import check_address, check_free
from .ipc.pipe import IoEnded
from .join import Joined, part
from .models.factory import model_of
from .models.weights.fetch import Fetch
from .pipeline.island import Island
from .promises import Broken, Promises, terms
from .rejoin import Backoff, RunOver, mends, wait
from .rejoin import told as again_told
from .state.files.rests import Rests
from .training.endings import Stopped, error_of
from .training.trainer import Trainer
from .wire.client import ProcessWire

Emit = Callable[[dict[str, Any]], None]
OpenOwnData = Callable[[Job, Facts, Fetch, Path, Emit], Dataset]
"""``open_own_data(job, facts, fetch, cache, emit)``: a node's private text as samples; see cli/own_data.py."""

_TAKEN_AWAY = "its machine is being taken away (SIGTERM)"
_REST_SECONDS = 10.0
"""At the end, for what is still being written to the disk."""
GONE_SECONDS = 18.0
"""After SIGTERM. Then the node leaves as it is, and the goodbye may take another second or two."""


MOST_CRASHES, CRASHES_SECONDS = 3, 3600.0


class Terminated(BaseException):
    """SIGTERM: the machine is about to be taken away, and there is nothing to hand over, or no time left.

    Raised by a signal handler, in the middle of anything: whoever takes all Exceptions must not take it.
    """


class Crashes:
    """How often the I/O process has ended: a few times are worth a new one, more are a fault of this machine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._times = clock, deque[float](maxlen=MOST_CRASHES)

    def again(self) -> bool:
        """It has ended once more: whether to begin again."""
        now = self._clock()
        often = len(self._times) == MOST_CRASHES and now - self._times[0] < CRASHES_SECONDS
        self._times.append(now)
        return not often


class Past:
    """What the lives of this process have left for the next one. ``name``: of the node, empty where none is known."""

    def __init__(self, name: str) -> None:
        self.name, self.joined, self.entered = name, False, -math.inf
        self._device: Device | None = None

    def measured(self, device: str) -> Device:
        """The device, which takes seconds to measure and is the same in all lives."""
        if self._device is None:
            self._device = measure_device(device)
        copied = Device()
        copied.CopyFrom(self._device)
        return copied


class OwnDataUnusable(FarflungError):
    """Something is wrong with this node's private files. What it is stays here: it may quote them."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; ``heard``: the coordinator has taken the goodbye."""

    def __init__(self, heard: bool) -> None:
        super().__init__()
        self.heard = heard


def run(
    link: Link,
    *,
    device: str = "auto",
    island: int = 1,
    name: str | None = None,
    advertise: str | None = None,
    listen: str | None = None,
    allow_code: Sequence[str] = (),
    cache: Path | None = None,
    insecure: bool = False,
    metrics: str | None = None,
    pause_file: Path | None = None,
    limits: Limits | None = None,
    own_data: OpenOwnData | None = None,
    require: Collection[str] = (),
    patience: float | None = None,
    emit: Emit,
) -> int:
    """Join the run of ``link`` and train in it; ``emit`` gets the node's events. Returns the exit status.

    ``island``: how many devices the node has, from ``device`` on. ``own_data``: reads this node's private data, for a
    run whose nodes have their own. A node that has lost the run, or was in it before and does not reach it, joins
    again under its key until its owner has had enough (`node/rejoin.py`). ``patience``: seconds that it looks for a
    coordinator that does not answer; None: none at a first join, for ever later.

    Raises:
        FarflungError: the node could not join, was refused, or the run failed; ``status`` says which.
        Broken: the run, or a view of it, is not what this node's owner was promised, or insists on (``require``).
        KeyboardInterrupt: Ctrl-C; Interrupted once it has joined.
    """
    check_secure(link, insecure, "tls" in require)
    emit = undisturbed(emit)
    owner = Owner(pause_file, limits)
    _obey_signals(owner)
    cache, served = writable(own_folder(cache)), check_address(metrics)
    compress.allow(allow_code)
    check_free(served)
    crashes, backoff, past = Crashes(), Backoff(), Past(name or "")

    def life() -> int:
        with Island(device, island) if island > 1 else contextlib.nullcontext() as several:
            return _live(
                link,
                device,
                several,
                past,
                advertise,
                listen,
                allow_code,
                cache,
                served,
                owner,
                own_data,
                require,
                emit,
            )

    lost = time.monotonic()  # since when it looks for the run
    try:
        while True:
            begun = time.monotonic()
            try:
                return life()
            except IoEnded as ended:
                # A machine that goes is not worth a new one.
                if owner.taken_away or not crashes.again():
                    raise
                told = f"{ended.message}: this node joins again under its key, with what the others hold"
                pause = 0.0
            except FarflungError as problem:
                was_in = past.joined or keeps_key(cache, link.run, past.name)
                if past.joined and isinstance(problem, RunOver):
                    emit({"event": "left", "time": time.time(), "node": past.name, "why": problem.message})
                    return 0
                now = time.monotonic()
                if isinstance(problem, Parted) or past.entered >= begun:
                    lost = now  # until now it was in
                if owner.taken_away or not mends(problem, was_in, patience, now - lost):
                    raise
                pause = backoff.next(now - begun)
                told = again_told(problem, pause, was_in, math.inf if patience is None else patience - (now - lost))
            emit({"event": "warning", "time": time.time(), "message": told, "node": past.name})
            owner.listens = False
            gc.collect()  # the life before, as large as the next one
            if wish := wait(pause, owner):
                emit({"event": "left", "time": time.time(), "node": past.name, "why": wish.why})
                return 0
    except Terminated:
        emit({"event": "left", "time": time.time(), "node": past.name, "why": _TAKEN_AWAY})
        return 0


def _live(
    link: Link,
    device: str,
    island: Island | None,
    past: Past,
    advertise: str | None,
    listen: str | None,
    allow_code: Sequence[str],
    cache: Path,
    metrics: str,
    owner: Owner,
    own_data: OpenOwnData | None,
    require: Collection[str],
    emit: Emit,
) -> int:
    measure = partial(past.measured, device) if island is None else island.measure
    joined, lock = enter(link, measure, past.name, advertise, listen, cache, owner.limits)
    past.joined, past.name, past.entered = True, joined.name, time.monotonic()
    emit(
        {
            "event": "joined",
            "time": time.time(),
            "node": joined.name,
            "why": f"joined run {link.run} as {joined.name} at {joined.address}"
            + (", where nobody can dial it: it dials the others" if joined.dials_out else ""),
        }
    )
    try:
        said = terms(joined.job, owner.limits, not link.insecure)
        emit({"event": "terms", "time": time.time(), "node": joined.name, "terms": said})
        promises = Promises(joined.name, joined.job, joined.facts, require, compress.check)
        promises.check_join()
        used = find_device(device)
        if joined.job.model.build is None:
            # Seconds of work, which nobody waits for: no view counts on a node before its I/O process says hello.
            importlib.import_module("transformers.modeling_utils")
        told = beside_cuda(used, joined.job.updates.mode)
        if told:
            emit({"event": "notice", "time": time.time(), "message": told, "node": joined.name})
        wire = ProcessWire.start(replace(joined.config, metrics=metrics, max_upload=owner.limits.upload))
    except (FarflungError, OSError) as problem:
        pinned, session = joined.credentials.pinned, (joined.name, joined.session, joined.secret)
        part(link.address, pinned, session, problem.message if isinstance(problem, Broken) else f"failed: {problem}")
        raise
    fetch = telling(wire.fetch, emit)
    why = "the node failed"
    rests: Rests | None = None
    pieces = below(cache, f"pieces-{link.run}-{joined.name}")
    try:
        definition = model_of(joined.job, joined.facts, fetch, allow_code)

        private = _own_data(joined, own_data, fetch, cache, allow_code, emit)

        def open_data() -> Dataset:
            if private is not None:
                return private
            size = tokens_size(joined.facts)
            room = disk_for_tokens(joined.job, joined.facts, cache, pieces, owner.limits.disk)
            if size <= room:
                return dataset_of(joined.job, joined.facts, fetch, cache, allow_code)
            message = (
                f"the training data have {size / 1e9:.3g} GB: this node keeps what it used last, {room / 1e9:.3g} GB"
            )
            emit({"event": "notice", "time": time.time(), "message": message, "node": joined.name})

            def warn(message: str) -> None:
                emit({"event": "warning", "time": time.time(), "message": message, "node": joined.name})

            return StreamedTokens(joined.facts, wire.fetch_later, pieces, room, warn)

        if island is not None:
            island.take_up(joined.job, joined.facts, fetch, allow_code)
            _tell_of_idle_devices(island, joined, emit)

        def tell(message: str) -> None:
            emit({"event": "notice", "time": time.time(), "message": message, "node": joined.name})

        rests = Rests(below(cache, f"rests-{link.run}-{joined.name}"), link.run, owner.limits.disk, tell)
        trainer = Trainer(
            wire,
            joined.name,
            joined.job,
            joined.facts,
            definition=definition,
            open_data=open_data,
            device=used,
            emit=emit,
            owner=owner,
            island=island,
            rests=rests,
            promises=promises,
        )
        owner.listens = True
        trainer.run()
    except Stopped as stopped:
        why = stopped.why
        error = error_of(stopped)
        if error is not None:
            raise error from None
        if trainer.training is not None and trainer.step >= joined.facts.steps:  # not a stop to go on later
            remove(pieces)
            if rests is not None:
                rests.wait()
                remove(rests.folder)
        emit({"event": "left", "time": time.time(), "node": joined.name, "why": stopped.why})
    except KeyboardInterrupt:
        raise Interrupted(wire.close("interrupted by its owner")) from None
    except Terminated:
        why = _TAKEN_AWAY
        emit({"event": "left", "time": time.time(), "node": joined.name, "why": why})
    except Broken as problem:
        why = problem.message
        raise
    except (FarflungError, torch.OutOfMemoryError) as problem:
        why = "failed: " + ("its own data are not usable" if isinstance(problem, OwnDataUnusable) else str(problem))
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if island is not None:
            island.close()
        wire.close(why)
        if rests is not None:
            rests.wait(_REST_SECONDS)
        if lock is not None:
            lock.close()
    return 0


def _own_data(
    joined: Joined,
    open_own_data: OpenOwnData | None,
    fetch: Fetch,
    cache: Path,
    allow_code: Sequence[str],
    emit: Emit,
) -> Dataset | None:
    """This node's private data, read before it has a place in the run; None where the coordinator has the data."""
    job, facts = joined.job, joined.facts
    if job.data.where == "coordinator":
        return None
    if job.data.build is not None:
        return OwnData(BuildData(job, None, allow_code), facts)
    if open_own_data is None:
        kind, patterns = job.data.source()
        raise FarflungError(
            "every node of this run trains on data of its own, and this one was given none",
            f"join with --data FOLDER: it reads {kind} files, {', '.join(patterns)}, below that folder and sends them "
            "to nobody",
        )
    try:
        return OwnData(open_own_data(job, facts, fetch, cache, emit), facts)
    except FarflungError as problem:
        raise OwnDataUnusable(problem.message, problem.hint) from problem


def _tell_of_idle_devices(island: Island, joined: Joined, emit: Emit) -> None:
    microbatch = joined.job.train.microbatch
    if microbatch < island.ranks:
        message = (
            f"a microbatch of {microbatch} leaves {island.ranks - microbatch} of this island's {island.ranks} devices "
            f"idle: set train.microbatch to {island.ranks} or more"
        )
        emit({"event": "notice", "time": time.time(), "message": message, "node": joined.name})


def telling(fetch: Fetch, tell: Tell) -> Fetch:
    """``fetch`` that says how much of each artifact has come."""
    meters: dict[str, Meter] = {}

    def counted(name: str, offset: int = 0, length: int | None = None) -> bytes:
        meter = meters.setdefault(name, Meter(f"fetching {name}", "bytes", tell))
        data = fetch(name, offset, length)
        meter.add(len(data))
        return data

    return counted


def _obey_signals(owner: Owner) -> None:
    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the goodbye must not be broken off
        owner.taken_away = True
        if not owner.listens:
            raise Terminated
        signal.setitimer(signal.ITIMER_REAL, GONE_SECONDS)

    def out_of_time(number: int, frame: FrameType | None) -> None:
        raise Terminated

    def toggle(number: int, frame: FrameType | None) -> None:
        owner.paused = not owner.paused

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGUSR1, toggle)
