"""``farflung coordinator start``: from the options to the exit status.

Where several coordinators share one database, each stands by until it leads (lease.py). The steps of a lead: lead.py.
Mistakes are raised as FarflungError before anything listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from ...job.files import load_job
from ...job.schema import CheckCodec
from ...proto.errors import FarflungError
from ...proto.process.telling import undisturbed
from .. import events
from ..data.facts import PROFILE_COMMAND, Prepared
from ..membership.members import Planner
from ..membership.state import DONE
from ..observe.takers.loggers import loggers_wanted
from ..store.engines.database import LeaseLost
from ..store.engines.sqlite import FILE
from ..store.lock import StateLock
from ..store.store import Store
from ..trust import sealing
from .calls.dial_back import networks
from .interrupts import INTERRUPTED, Interrupted, run_loop, unless, with_signals
from .lead import lead
from .lease import leading, stand_by
from .starting.addresses import reserve
from .starting.options import DEFAULT_LISTEN, Options, Start
from .starting.resumed import check_resumed, prepare_or_restore


def serve(
    job: Path | str,
    state: Path | str | None = None,
    listen: str = DEFAULT_LISTEN,
    advertise: str | None = None,
    *,
    emit: events.Emit,
    min_nodes: int | None = None,
    insecure: bool = False,
    check_codec: CheckCodec | None = None,
    profile_command: Sequence[str] | None = None,
    planner: Planner | None = None,
    page: str | None = "",
    database: str | None = None,
    tensorboard: Path | None = None,
    wandb: str | None = None,
    dial_back: Sequence[str] = (),
    give_up: bool = False,
) -> int:
    """Start or resume a run and serve it until it is done: exit status 0, or 130 after SIGINT or SIGTERM.

    ``emit`` gets the events of docs/reference.md. FarflungError: something is wrong with the job, its data or model,
    the address or the state folder. RunFailed: the run could not be finished.
    """
    options = Options(
        job=Path(job),
        state=Path(state) if state is not None else None,
        listen=listen,
        advertise=advertise,
        min_nodes=min_nodes,
        insecure=insecure,
        check_codec=check_codec,
        profile_command=tuple(profile_command or PROFILE_COMMAND),
        planner=planner,
        page=page,
        database=database,
        loggers=loggers_wanted(tensorboard, wandb),
        dial_back=tuple(dial_back),
        give_up=give_up,
    )
    networks(dial_back)
    return run_loop(with_signals(lambda stop, at_once: run_coordinator(options, emit, stop, at_once)))


async def run_coordinator(
    options: Options, emit: events.Emit, stop: asyncio.Event, at_once: asyncio.Event | None = None
) -> int:
    """The same on a running event loop; setting ``stop`` ends it as SIGINT does, ``at_once`` as a second SIGINT."""
    job = load_job(options.job, options.check_codec)
    state = options.state or Path("runs") / job.run.name
    if options.database and (state / FILE).exists():
        raise FarflungError(f"{state} holds a run of its own", "give another --state beside --database")
    if not options.database and not state.exists():
        reserve(options.listen).close()  # checked first, so that a refused start leaves no run behind
    lock = StateLock(state)
    try:
        with contextlib.closing(Store(options.database or state, create=True)) as store:
            start = Start(
                options=options,
                job=job,
                state=state,
                store=store,
                emit=undisturbed(emit),
                stop=stop,
                at_once=at_once or asyncio.Event(),
            )
            return await (lead(start) if store.server is None else _take_turns(start))
    finally:
        lock.release()


async def _take_turns(start: Start) -> int:
    """Lead when no other coordinator of the same database does, until the run is over."""
    store, stop = start.store, start.stop
    assert store.server is not None
    moved = check_resumed(start.job, store, str(start.state))
    if not start.options.insecure:
        sealing.check_passphrase(store)
    ahead: Prepared | None = None
    if (known := store.get("facts")) is not None:  # read now, not at the takeover
        folder, command = start.state / "artifacts", start.options.profile_command
        try:
            ahead = await unless(stop, prepare_or_restore(start.job, known, folder, command, moved, start.emit))
        except Interrupted:
            return INTERRUPTED
    resumes = store.get("phase") != DONE  # a run that was done may get more steps
    while await stand_by(store.server, start.emit, stop):
        async with leading(store.server):
            if resumes and store.get("phase") == DONE:
                start.emit(events.event("notice", message="another coordinator has finished the run", node=""))
                return 0
            try:
                return await lead(start, ahead)
            except LeaseLost as error:
                message = f"{error.message}; the nodes train on"
                start.emit(events.event("warning", message=message, node=""))
    return INTERRUPTED
