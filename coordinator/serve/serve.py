"""``farflung coordinator start``: everything in order, up and down.

Up: job, lock, database, port, data and profile, service, link. Down: nodes are told, then the service ends. Mistakes
are raised as FarflungError before anything listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from ...job.files import load_job, moved_files, refused_changes
from ...job.forward import settled, too_few
from ...job.sampling import ORDER
from ...job.schema import CheckCodec, Facts, Job
from ...proto import rpc
from ...proto.door import Door
from ...proto.errors import FarflungError, JobError
from ...proto.link import join_address, split_address
from ...proto.patience import Watch
from ...proto.telling import undisturbed
from .. import events
from ..data.artifacts import Artifacts
from ..data.facts import PROFILE_COMMAND, Prepared, in_thread, prepare, restore
from ..membership import signals as s
from ..membership.handovers import residuals_of
from ..membership.members import DONE, Planner
from ..membership.resume import Rules
from ..observe.loggers import Logger, Make, heeded, loggers_wanted
from ..observe.metrics import Counts
from ..observe.remarks import Remarks
from ..planning.planner import data_bytes, layer_bytes, wanted_nodes
from ..replay.recorder import FOLDER as EVENTS
from ..run.context import RunContext
from ..run.durability.mirror import Mirror
from ..run.durability.recovery import find_checkpoints
from ..run.people.commands import standing
from ..run.run import Run
from ..store.database import FILE, LeaseLost
from ..store.lock import StateLock
from ..store.store import Store
from ..trust import sealing
from ..trust.identity import (
    NODE_LIFE,
    Authority,
    given_out,
    is_older,
    load_authority,
    parse_duration,
    save_authority,
)
from ..trust.tickets import DEFAULT_TTL, DEFAULT_USES, IDENTITY, default_uses, make_link
from ..web.access import write_certificate
from ..web.run_page import RunPage, is_loopback
from ..web.server import bind as bind_page
from .collector import calm
from .dial_back import networks
from .gate import Gate
from .lease import leading, stand_by
from .relay import Relay
from .service import CoordinatorService, Identity

log = logging.getLogger(__name__)

INTERRUPTED = 130
DEFAULT_LISTEN = "0.0.0.0:7070"
_PARTING_S = 10.0
_ANYWHERE = ("0.0.0.0", "::", "*")
_LOOPBACK = "127.0.0.1"
_GRACE_S = 0.5
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Options:
    """What ``coordinator start`` was asked for. ``profile_command`` and ``planner`` are for tests."""

    job: Path
    state: Path | None = None
    listen: str = DEFAULT_LISTEN
    advertise: str | None = None
    min_nodes: int | None = None
    insecure: bool = False
    check_codec: CheckCodec | None = None
    profile_command: Sequence[str] = PROFILE_COMMAND
    planner: Planner | None = None
    page: str | None = None
    """Where the web page listens, HOST:PORT; empty: the usual place; None: no page."""
    database: str | None = None
    loggers: Sequence[Make] = ()
    timing: dict[str, float] = field(default_factory=dict)
    """Times of Rules, where they differ."""
    certificate_life: float = NODE_LIFE
    dial_back: Sequence[str] = ()
    """Networks in which nodes may be dialled back, beside the address that a join comes from."""
    give_up: bool = False
    """End without the last checkpoint where it does not come."""


class _Interrupted(Exception):
    """A signal came before the run was over."""


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

    ``emit`` gets the events of docs/reference.md. FarflungError: the job, its data or model, the address, the state
    folder; RunFailed: the run could not be finished.
    """
    options = Options(
        Path(job),
        Path(state) if state is not None else None,
        listen,
        advertise,
        min_nodes,
        insecure,
        check_codec,
        tuple(profile_command or PROFILE_COMMAND),
        planner,
        page,
        database,
        loggers_wanted(tensorboard, wandb),
        dial_back=tuple(dial_back),
        give_up=give_up,
    )
    networks(dial_back)
    return _run_loop(_with_signals(options, emit))


async def run_coordinator(
    options: Options, emit: events.Emit, stop: asyncio.Event, at_once: asyncio.Event | None = None
) -> int:
    """The same on a running event loop; setting ``stop`` ends it as SIGINT does, ``at_once`` as a second SIGINT."""
    at_once, emit = at_once or asyncio.Event(), undisturbed(emit)
    job = load_job(options.job, options.check_codec)
    state = options.state or Path("runs") / job.run.name
    if options.database and (state / FILE).exists():
        raise FarflungError(f"{state} holds a run of its own", "give another --state beside --database")
    if not options.database and not state.exists():
        _reserve(options.listen).close()  # a start that is refused leaves no run behind
    lock = StateLock(state)
    try:
        with contextlib.closing(Store(options.database or state, create=True)) as store:
            if store.server is None:
                return await _serve(options, job, state, store, emit, stop, at_once)
            return await _take_turns(options, job, state, store, emit, stop, at_once)
    finally:
        lock.release()


async def _take_turns(
    options: Options,
    job: Job,
    state: Path,
    store: Store,
    emit: events.Emit,
    stop: asyncio.Event,
    at_once: asyncio.Event,
) -> int:
    """Lead when no other coordinator of the same database does, until the run is over."""
    assert store.server is not None
    moved = _check_resumed(job, store, str(state))
    if not options.insecure:
        sealing.check_passphrase(store)
    ahead: Prepared | None = None
    if store.get("facts") is not None:  # it would hold up the takeover, and other data are better refused now
        work = _prepare(job, store, state / "artifacts", options.profile_command, moved, emit)
        try:
            ahead = await _unless(stop, work)
        except _Interrupted:
            return INTERRUPTED
    resumes = store.get("phase") != DONE  # a run that was done before may get more steps
    while await stand_by(store.server, emit, stop):
        async with leading(store.server):
            if resumes and store.get("phase") == DONE:
                emit(events.event("notice", message="another coordinator has finished the run", node=""))
                return 0
            try:
                return await _serve(options, job, state, store, emit, stop, at_once, ahead)
            except LeaseLost as error:
                emit(events.event("warning", message=f"{error.message}; the nodes train on", node=""))
    return INTERRUPTED


async def _serve(
    options: Options,
    job: Job,
    state: Path,
    store: Store,
    emit: events.Emit,
    stop: asyncio.Event,
    at_once: asyncio.Event,
    ahead: Prepared | None = None,
) -> int:
    """``ahead``: what a coordinator that stood by has found out already."""
    moved = _check_resumed(job, store, str(state))
    job = standing(job, store, options.check_codec)
    authority = None if options.insecure else _authority(store, state, emit)
    reserved = _reserve(options.listen)
    server: grpc.aio.Server | None = None
    run: Run | None = None
    page: RunPage | None = None
    page_socket: socket.socket | None = None
    watching: asyncio.Task[None] | None = None
    loggers: list[Logger] = []
    counts = Counts()
    try:
        loggers.extend(make(job.run.name, job.model_dump(mode="json"), state) for make in options.loggers)
        emit = events.tee(emit, counts.add, *(heeded(logger, emit) for logger in loggers))
        if options.page is not None:
            page_socket = bind_page(options.page or None)
        _remember(store, job, options, reserved.getsockname()[1])
        if here := only_here(options, store.get("address") or ""):
            emit(events.event("warning", message=here, node=""))
        if options.insecure:
            emit(events.event("warning", message="no TLS (--insecure): whoever can reach the ports can join", node=""))
        artifacts, remarks = state / "artifacts", Remarks(store, emit)
        prepared = ahead and ahead.of(job)
        if prepared is None:
            work = _prepare(job, store, artifacts, options.profile_command, moved, remarks.hear)
            prepared = await _unless(stop, work)
            remarks.keep()
        facts = prepared.facts
        store.put("facts", facts.model_dump_json())
        if job.data.where != "node" and (few := too_few(job, facts.samples)):
            remarks.hear(events.event("warning", message=few, node=""))
        job, chosen = settled(job, facts.samples, facts.steps)
        if chosen:
            emit(events.event("notice", message=chosen, node=""))
        found = await _unless(stop, in_thread(find_checkpoints, job, state, store, prepared.facts))
        for sentence in found.passed:
            remarks.hear(events.event("warning", message=sentence, node=""))
        rules = _rules(job, prepared.facts, options)
        context = RunContext(
            job=job,
            facts=prepared.facts,
            store=store,
            checkpoints=found.checkpoints,
            emit=emit,
            term=store.next_term(),
        )
        run = Run(context, rules, options.planner, options.check_codec)
        run.record(state / EVENTS)
        store.hurry()
        if found.target is not None:
            run.saving.mirror = Mirror(
                found.target, job.checkpoint.keep, found.there, context, run.warn, run.saving.forget_old
            )
        identity = Identity(
            store.get("run") or "", authority, state, options.certificate_life, networks(options.dial_back)
        )
        door = Door(reserved.getsockname()[1])
        service = CoordinatorService(run, Artifacts(prepared.files, found.checkpoints), identity, door)
        gate = Gate(run.sessions.knows, lambda ticket: given_out(store, ticket))
        server = _server(authority, options.listen, reserved, gate)
        rpc.add_CoordinatorServicer_to_server(service, server)
        relay = Relay(identity.run, run.sessions.knows, door, run.sessions.meets)
        server.add_generic_rpc_handlers((rpc.peer_handler(relay.serve),))
        await server.start()
        calm()
        if page_socket is not None:
            page = _page(authority, run, store, state, page_socket, counts, emit, door)
        watching = asyncio.create_task(door.watch())
        uses, life = default_uses(rules.wanted), parse_duration(DEFAULT_TTL)
        link = str(make_link(store, state, life, uses))
        place = store.name if store.server else str(state)
        emit(events.listening(link, place, *((page.url, page.viewer_url) if page else ()), uses=uses, life=life))
        async with run.saving.mirror.working() if run.saving.mirror else contextlib.nullcontext():
            return await _until_over(run, emit, stop)
    except LeaseLost:
        if run is not None:
            await run.abandon()
        raise
    except _Interrupted:
        if run is not None and store.server is not None and (successors := store.server.standbys()):
            emit(events.event("notice", message=f"leaves the run to {successors[0]}", node=""))
            await run.abandon()
            return INTERRUPTED
        if run is not None:
            why = await _save(run, emit, at_once)
            emit(events.interrupted(*run.stands, why))
        store.put("phase", "interrupted")
        if run is not None:
            with contextlib.suppress(_Interrupted):
                await _unless(at_once, run.stop("the coordinator was interrupted", _PARTING_S))
        return INTERRUPTED
    except FarflungError as error:
        store.put("phase", "failed")
        store.put("why", error.message)
        if run is not None:
            await run.stop(error.message, _PARTING_S, failed=True)
        raise
    finally:
        if watching is not None:
            watching.cancel()
        reserved.close()
        if page is not None:
            await page.stop()
        elif page_socket is not None:
            page_socket.close()
        for logger in loggers:
            logger.close()
        if server is not None:
            await server.stop(_GRACE_S)


def _page(
    authority: Authority | None,
    run: Run,
    store: Store,
    state: Path,
    bound: socket.socket,
    counts: Counts,
    emit: events.Emit,
    door: Door,
) -> RunPage:
    """The run's web page, being served. Beyond this machine it goes over TLS, with the run's own certificate."""
    certificate = None
    if not is_loopback(bound):
        if authority is None:
            emit(events.event("warning", message="the page and its tokens go without TLS (--insecure)", node=""))
        else:
            certificate = write_certificate(state, authority.certificate, authority.key)
    host = split_address(store.get("address") or "127.0.0.1:0")[0]
    page = RunPage(
        run,
        store.get("run") or "",
        state,
        bound,
        certificate,
        host,
        counts,
        lambda seconds: str(make_link(store, state, seconds, DEFAULT_USES)),
        door.proved,
    )
    door.ports.add(bound.getsockname()[1])
    page.start()
    return page


async def _until_over(run: Run, emit: events.Emit, stop: asyncio.Event) -> int:
    """Serve until the run is done (0), failed (raises) or ``stop`` is set (raises _Interrupted)."""
    ticking = asyncio.create_task(run.tick())
    try:
        await _unless(stop, _first_of(run.outcome.finished.wait(), ticking))
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    if run.outcome.failure is not None:
        raise run.outcome.failure
    result, mirror = run.outcome.result, run.saving.mirror
    assert result is not None
    if mirror is not None:
        await run.stop("the run is done", _PARTING_S)  # nodes need not wait for the target
        await _unless(stop, mirror.finish())
        result["checkpoint"] = next((row.path for row in run.context.store.checkpoints()[::-1]), None)
    emit(result)
    await run.stop("the run is done", _PARTING_S)
    return 0


async def _save(run: Run, emit: events.Emit, at_once: asyncio.Event) -> str:
    """A last checkpoint, if those who train can make one in time and nobody insists on the end; else why not."""
    if not run.trains:
        return "no node trained"
    emit(events.phase("stopping", "the coordinator was told to end"))
    emit(events.event("notice", message="stopping: a last checkpoint first; Ctrl-C again leaves at once", node=""))
    run.feed(s.Save("the coordinator was told to end"))
    ticking = asyncio.create_task(run.tick())
    watch = Watch("the last checkpoint", time.monotonic(), run.state.rules.save_s, run.context.checkpoints.arrived)
    saved = asyncio.create_task(_unless(at_once, run.ending.saved()))
    try:
        while not saved.done():
            await asyncio.wait([saved], timeout=0.2)
            watch = watch.at(run.context.checkpoints.arrived, time.monotonic())
            if stood := watch.gives_up(time.monotonic()):
                log.warning("left without a last checkpoint: %s", stood)
                return stood
        saved.result()
        return "" if run.trains else "nobody was left to make one"
    except _Interrupted:
        log.warning("left without a last checkpoint")
        return "told to end at once"
    finally:
        ticking.cancel()
        saved.cancel()
        await asyncio.gather(ticking, saved, return_exceptions=True)


async def _first_of(waiting: Coroutine[Any, Any, Any], ticking: asyncio.Task[None]) -> None:
    """Until the first is done; a tick that broke is an error, not silence."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait([task, ticking], return_when=asyncio.FIRST_COMPLETED)
        if ticking.done() and not task.done():
            ticking.result()
    finally:
        task.cancel()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of ``work``; _Interrupted as soon as ``stop`` is set."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Interrupted
        return task.result()
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


# ---- the steps of a start ---------------------------------------------------------------------


def _check_resumed(job: Job, store: Store, place: str) -> bool:
    """Whether the job names other files than at the last start.

    Steps, epochs, checkpoint, codecs, learning rate and its schedule may change too; JobError for anything else. A
    start that found the data or the model wrong has begun no run: the job is there to be corrected.
    """
    stored = store.get("job")
    if stored is None or store.get("facts") is None:
        return False
    before = Job.model_validate_json(stored)
    changed = refused_changes(before, job)
    if changed:
        what = "; ".join(changed)
        hint = "change it back, or start another run with another --state"
        raise JobError(f"the run in {place} cannot go on with another job: {what}", hint)
    return moved_files(before, job)


def _authority(store: Store, state: Path, emit: events.Emit) -> Authority:
    """The run's identity. One of a database is put on this machine too, where the page's server reads it."""
    older = is_older(state / IDENTITY) if store.server is None else sealing.is_older(store)
    if older:
        message = "the run has a new certificate, as nodes could pass as its old one: give nodes the link that follows"
        emit(events.event("warning", message=message, node=""))
    if store.server is None:
        return load_authority(state / IDENTITY)
    authority = sealing.shared_authority(store)
    save_authority(state / IDENTITY, authority)
    return authority


def _reserve(listen: str) -> socket.socket:
    """A socket bound to the address, not listening: the port is known to be free while the data are read.

    gRPC comes after that, because the profile is a process of its own and gRPC does not like to be forked.
    """
    host, port = split_address(listen, "--listen")
    hint = "choose another with --listen HOST:PORT"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise FarflungError(f"cannot listen on {listen}: {host} does not resolve: {error.strerror}", hint) from None
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRINUSE:
            raise FarflungError(
                f"cannot listen on {listen}: the port is taken", f"stop what listens there, or {hint}"
            ) from None
        raise FarflungError(f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}", hint) from None
    return reserved


def _server(authority: Authority | None, listen: str, reserved: socket.socket, gate: Gate) -> grpc.aio.Server:
    """The gRPC server on the reserved port."""
    server = grpc.aio.server(options=rpc.server_options(), interceptors=[gate])
    credentials = None
    if authority is not None:
        credentials = rpc.coordinator_server_credentials(authority.certificate, authority.key)
    host, port = split_address(listen)[0], reserved.getsockname()[1]
    try:
        rpc.bind(server, join_address(host, port), credentials)
    except OSError as error:
        raise FarflungError(str(error), "choose another address with --listen HOST:PORT") from None
    return server


def _remember(store: Store, job: Job, options: Options, port: int) -> None:
    store.put("job", job.model_dump_json())
    store.put("insecure", "1" if options.insecure else "0")
    store.put("address", _advertised(options, port))
    host = split_address(options.listen, "--listen")[0]
    store.put("listening", join_address("127.0.0.1" if host in ("0.0.0.0", "::", "*") else host, port))
    store.put("phase", "preparing_start")
    store.put("why", "the coordinator reads the data and the model")
    if store.get("run") is None:
        store.put("run", secrets.token_hex(8))
    if store.get("created") is None:
        store.put("created", str(time.time()))


def _advertised(options: Options, port: int) -> str:
    """HOST:PORT for the link: as asked, or the address that is listened on, or this machine's own."""
    if options.advertise:
        host, wished = split_address(options.advertise, "--advertise")
        return join_address(host, wished or port)
    host, _ = split_address(options.listen, "--listen")
    return join_address(_own_address() if host in _ANYWHERE else host, port)


def only_here(options: Options, address: str) -> str:
    """A warning when the link's address leads others nowhere although every address is listened on, else nothing."""
    if options.advertise or split_address(options.listen)[0] not in _ANYWHERE or split_address(address)[0] != _LOOPBACK:
        return ""
    return (
        f"the link says {_LOOPBACK}, where only this machine finds the coordinator, as it has no default route: "
        "start it with --advertise HOST:PORT"
    )


def _own_address() -> str:
    """This machine's address on its default route (nothing is sent), or loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK


async def _prepare(
    job: Job, store: Store, folder: Path, profile_command: Sequence[str], moved: bool, emit: events.Emit
) -> Prepared:
    """Facts of an earlier start where they still hold, else found out now: of the same data and model."""
    known = store.get("facts")
    if known is None:
        return await prepare(job, folder, profile_command, emit)
    facts = Facts.model_validate_json(known)
    if facts.order != ORDER:
        raise JobError(
            f"the run began with another order of samples ({facts.order}) than this version's ({ORDER})",
            "finish it with the version of farflung that it began with, or export its checkpoint as a model folder "
            "and start another run from that with another --state",
        )
    prepared = None if moved else restore(job, facts, folder, emit)
    if prepared is None:
        prepared = await prepare(job, folder, profile_command, emit)
        found = prepared.facts
        what = {name for name, digest in facts.artifacts.items() if found.artifacts.get(name) != digest}
        what |= set(found.artifacts) - set(facts.artifacts)
        if what or (found.samples, found.validation_samples) != (facts.samples, facts.validation_samples):
            names = ", ".join(sorted(what)) or "the samples"
            hint = "give it the files that it began with, or start another run with another --state"
            raise JobError(f"the run began with other data or another model: {names} differ", hint)
    return prepared


def _rules(job: Job, facts: Facts, options: Options) -> Rules:
    wanted, why = wanted_nodes(job)
    if options.min_nodes is not None and options.min_nodes > wanted:
        wanted, why = options.min_nodes, f"it begins with {options.min_nodes}"
    return Rules(
        mode=job.updates.mode,
        batch=job.train.batch,
        microbatch=job.train.microbatch,
        seed=job.run.seed,
        samples=facts.samples,
        layers=len(facts.profile.layers),
        wanted=wanted,
        wanted_why=why,
        checkpoint_every=job.checkpoint.every,
        round_every=job.updates.every if job.updates.mode == "delta" and job.updates.agreed else 0,
        base=job.model.pretrained or "",
        residuals=residuals_of(job),
        eval_every=job.train.eval_every,
        evaluation=facts.validation_samples / job.train.batch,
        give_up=options.give_up,
        layer_bytes=layer_bytes(job, facts.profile.layers),
        data_bytes=data_bytes(facts),
        **options.timing,
    )


# ---- the loop ---------------------------------------------------------------------------------


async def _with_signals(options: Options, emit: events.Emit) -> int:
    stop, at_once, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread gets signals; elsewhere whoever started it ends it.
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, end)
    return await run_coordinator(options, emit, stop, at_once)


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    result: int = uvloop.run(main)
    return result
