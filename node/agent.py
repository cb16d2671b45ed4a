"""A node's lives, one after the other, until the run is done or the node's owner ends it (life.py is one life)."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from .. import compress
from ..proto.errors import FarflungError, Parted
from ..proto.process.telling import undisturbed
from ..proto.words.link import Link
from .data.opening import Emit, OpenOwnData
from .device.identity import keeps_key
from .device.limits import Limits, Owner
from .device.own_folder import keep_compiled, own_folder, writable
from .entering import Past, check_secure
from .io.metrics import check_address, check_free
from .ipc.pipe import IoEnded
from .life import Settings, live
from .owner_signals import TAKEN_AWAY, Terminated, obey_signals
from .pipeline.inside.meeting import shared_card
from .pipeline.island import Island
from .rejoin import Backoff, Crashes, RunOver, mends, wait
from .rejoin import told as again_told


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
    offload_folder: Path | None = None,
    emit: Emit,
) -> int:
    """Join the run of ``link`` and train in it; ``emit`` gets the node's events. Returns the exit status.

    ``island``: how many devices the node has, from ``device`` on. ``own_data``: reads this node's private data, for a
    run whose nodes have data of their own. A node that has lost the connection to the run, or that was in the run
    before and cannot reach it, joins again under its key until its owner ends it (`node/rejoin.py`). ``patience``:
    seconds for which the node looks for a coordinator that does not answer. None: 0 s at a first join, without limit
    after that. ``offload_folder``: where the moments lie that the job offloads; None: in main memory.

    Raises:
        FarflungError: the node could not join, was refused, or the run failed; ``status`` says which.
        Broken: the run, or a view of it, is not what this node's owner was promised, or insists on (``require``).
        KeyboardInterrupt: Ctrl-C; Interrupted once it has joined.
    """
    check_secure(link, insecure, "tls" in require)
    owner = Owner(pause_file, limits, offload_folder=offload_folder)
    obey_signals(owner)
    cache, served = writable(own_folder(cache)), check_address(metrics)
    keep_compiled(cache)  # before an island's processes start, which inherit it
    compress.allow(allow_code)
    check_free(served)
    settings = Settings(link, device, advertise, listen, allow_code, cache, served, own_data, require)
    lives = Lives(settings, owner, Past(name or ""), undisturbed(emit), patience)
    try:
        lives.run(island)
    except Terminated:
        lives.left(TAKEN_AWAY)
    return 0


class Lives:
    """The lives of one node in one process."""

    def __init__(self, settings: Settings, owner: Owner, past: Past, emit: Emit, patience: float | None) -> None:
        """``patience``: as ``run`` has it."""
        self._settings, self._owner, self._past, self._emit = settings, owner, past, emit
        self._patience = patience
        self._crashes, self._backoff = Crashes(), Backoff()
        self._lost = time.monotonic()
        """When this node began to look for the run (``time.monotonic``)."""

    def run(self, devices: int) -> None:
        """Runs one life after the other. Raises the error that ends the last one."""
        while True:
            begun = time.monotonic()
            try:
                with Island(self._settings.device, devices) if devices > 1 else contextlib.nullcontext() as island:
                    if island is not None and (shared := shared_card(island.devices)):
                        self._tell("notice", message=shared)
                    live(self._settings, self._owner, self._past, island, self._emit)
                return
            except FarflungError as problem:
                if self._past.joined and isinstance(problem, RunOver):
                    self.left(problem.message)
                    return
                pause, told = self._again(problem, begun)
            self._tell("warning", message=told)
            self._owner.listens = False
            gc.collect()  # frees the memory of the life that ended: the next one needs as much
            if wish := wait(pause, self._owner):
                self.left(wish.why)
                return

    def _again(self, problem: FarflungError, begun: float) -> tuple[float, str]:
        """(seconds until the next life, the sentence that tells of it) after a life that began at ``begun`` and ended
        by ``problem``. Raises ``problem`` if there is to be no next life."""
        owner, past, settings, patience = self._owner, self._past, self._settings, self._patience
        if isinstance(problem, IoEnded):
            if owner.taken_away or not self._crashes.again():  # not on a machine that is being taken away
                raise problem
            return 0.0, f"{problem.message}: this node joins again under its key, with what the others hold"
        was_in = past.joined or keeps_key(settings.cache, settings.link.run, past.name)
        now = time.monotonic()
        if isinstance(problem, Parted) or past.entered >= begun:
            self._lost = now  # the life that just ended was in the run until now
        looked = now - self._lost
        if owner.taken_away or not mends(problem, was_in, patience, looked):
            raise problem
        pause = self._backoff.next(now - begun)
        left = math.inf if patience is None else patience - looked
        return pause, again_told(problem, pause, was_in, left)

    def left(self, why: str) -> None:
        """Tell the person at the node that it is out."""
        self._tell("left", why=why)

    def _tell(self, event: str, **words: object) -> None:
        self._emit({"event": event, "time": time.time(), "node": self._past.name, **words})
