"""One coordinator leads a run, a function for each step: bind, make the facts, make the run, listen, and serve until
the end. The resources that steps open are closed in reverse order, however the lead ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from dataclasses import dataclass

from ...job.forward import settled, too_few
from ...job.passes import evaluated_by_steps
from ...job.schema import Job
from ...proto.connections import rpc
from ...proto.connections.door import Door
from ...proto.errors import FarflungError
from ...proto.words.link import split_address
from .. import events
from ..data.artifacts import Artifacts
from ..data.facts import Prepared, in_thread
from ..observe.metrics import Counts
from ..observe.takers.eval_command import EvalCommand
from ..observe.takers.loggers import heeded
from ..observe.takers.remarks import Remarks
from ..replay.recorder import FOLDER as EVENTS
from ..run.context import RunContext
from ..run.durability.mirror import Mirror
from ..run.durability.recovery import Found, find_checkpoints
from ..run.people.commands import standing
from ..run.run import Run
from ..store.engines.database import LeaseLost
from ..trust import sealing
from ..trust.authority import Authority, is_older, load_authority, save_authority
from ..trust.links import DEFAULT_TTL, DEFAULT_USES, IDENTITY, default_uses, make_link
from ..trust.tickets import given_out, parse_duration
from ..web.access import write_certificate
from ..web.run_page import RunPage, is_loopback
from ..web.server import bind as bind_page
from .calls.dial_back import networks
from .calls.gate import Gate
from .calls.joining import Identity
from .calls.relay import Relay
from .calls.service import CoordinatorService
from .collector import calm
from .ending import PARTING_S, interrupted, until_over
from .interrupts import INTERRUPTED, Interrupted, unless
from .starting.addresses import advertised, only_here, reached_here, reserve, server_on
from .starting.options import Start
from .starting.resumed import check_resumed, prepare_or_restore
from .starting.rules import rules_of

_GRACE_S = 0.5
"""Seconds that open calls may continue after everything else has ended."""


@dataclass(kw_only=True)
class Footing:
    """A coordinator's resources before the run exists. ``reserved``: the socket for nodes; ``page``: that of the web
    page; ``emit``: shows events to people, counts them for the metrics, and passes them to the loggers."""

    moved: bool
    authority: Authority | None
    reserved: socket.socket
    emit: events.Emit
    counts: Counts
    page: socket.socket | None = None
    command: EvalCommand | None = None


@dataclass(frozen=True)
class Begun:
    """A run that does not admit nodes yet."""

    run: Run
    prepared: Prepared
    found: Found


async def lead(start: Start, ahead: Prepared | None = None) -> int:
    """Serve the run until it is over; the exit status. LeaseLost: another coordinator leads now.

    ``ahead``: the facts that a coordinator made while it stood by.
    """
    store = start.store
    async with contextlib.AsyncExitStack() as stack:
        footing = _bind(start, stack)
        try:
            begun = await _begin(start, footing, ahead, stack)
        except LeaseLost:
            raise
        except Interrupted:
            store.put("phase", "interrupted")
            return INTERRUPTED
        except FarflungError as error:
            _note_failure(start, error)
            raise
        run = begun.run
        try:
            await _listen(start, footing, begun, stack)
            async with run.saving.mirror.working() if run.saving.mirror else contextlib.nullcontext():
                return await until_over(run, footing.emit, start.stop, footing.command)
        except LeaseLost:
            await run.abandon()
            raise
        except Interrupted:
            return await interrupted(start, run, footing.emit)
        except FarflungError as error:
            _note_failure(start, error)
            await run.stop(error.message, PARTING_S, failed=True)
            raise


def _bind(start: Start, stack: contextlib.AsyncExitStack) -> Footing:
    """Check that this run may have the job, load the run's identity, and reserve the port."""
    moved = check_resumed(start.job, start.store, str(start.state))
    authority = None if start.options.insecure else _authority(start)
    reserved = stack.enter_context(contextlib.closing(reserve(start.options.listen)))
    return Footing(moved=moved, authority=authority, reserved=reserved, emit=start.emit, counts=Counts())


async def _begin(start: Start, footing: Footing, ahead: Prepared | None, stack: contextlib.AsyncExitStack) -> Begun:
    """Make the run from the job: loggers, the page's port, the data and the model, checkpoints."""
    options, store = start.options, start.store
    job = standing(start.job, store, options.check_codec)
    _open_loggers(start, job, footing, stack)
    if options.page is not None:
        footing.page = stack.enter_context(contextlib.closing(bind_page(options.page or None)))
    _remember(start, job, footing.reserved.getsockname()[1])
    if here := only_here(options, store.get("address") or ""):
        _warn(footing, here)
    if options.insecure:
        _warn(footing, "no TLS (--insecure): whoever can reach the ports can join")
    remarks = Remarks(store, footing.emit)
    prepared = ahead and ahead.of(job)
    if prepared is None:
        folder = start.state / "artifacts"
        known = store.get("facts")
        work = prepare_or_restore(job, known, folder, options.profile_command, footing.moved, remarks.hear)
        prepared = await unless(start.stop, work)
        remarks.keep()
    facts = prepared.facts
    store.put("facts", facts.model_dump_json())
    if job.data.where != "node" and (few := too_few(job, facts.samples)):
        remarks.hear(events.event("warning", message=few, node=""))
    job, chosen = settled(evaluated_by_steps(job, facts.samples), facts.samples, facts.steps)
    if chosen:
        footing.emit(events.event("notice", message=chosen, node=""))
    found = await unless(start.stop, in_thread(find_checkpoints, job, start.state, store, facts))
    for sentence in found.passed:
        remarks.hear(events.event("warning", message=sentence, node=""))
    context = RunContext(
        job=job,
        facts=facts,
        store=store,
        checkpoints=found.checkpoints,
        emit=footing.emit,
        term=store.next_term(),
    )
    run = Run(context, rules_of(job, facts, options), options.planner, options.check_codec)
    if job.eval.command is not None:
        merge, folder = job.model.lora is not None, start.state / "evals"
        of = job.eval.command, job.eval.command_every, merge, folder, footing.emit
        footing.command = EvalCommand(*of, lambda: run.steps.last_step)
        stack.push_async_callback(footing.command.close)
        context.emit = events.tee(footing.emit, footing.command.take)
    return Begun(run, prepared, found)


async def _listen(start: Start, footing: Footing, begun: Begun, stack: contextlib.AsyncExitStack) -> None:
    """Start to serve: from now on nodes may join and people may look. Prints the link."""
    options, store, run, found = start.options, start.store, begun.run, begun.found
    run.record(start.state / EVENTS)
    store.hurry()
    if found.target is not None:
        keep, forget = run.context.job.checkpoint.keep, run.saving.forget_old
        run.saving.mirror = Mirror(found.target, keep, found.there, run.context, run.warn, forget)
    allowed = networks(options.dial_back)
    identity = Identity(store.get("run") or "", footing.authority, start.state, options.certificate_life, allowed)
    door = Door(footing.reserved.getsockname()[1])
    service = CoordinatorService(run, Artifacts(begun.prepared.files, found.checkpoints), identity, door)
    gate = Gate(run.sessions.knows, lambda ticket: given_out(store, ticket))
    server = server_on(footing.reserved, options.listen, footing.authority, gate)
    stack.push_async_callback(server.stop, _GRACE_S)
    rpc.add_CoordinatorServicer_to_server(service, server)
    relay = Relay(identity.run, run.sessions.knows, door, run.sessions.meets)
    server.add_generic_rpc_handlers((rpc.peer_handler(relay.serve),))
    await server.start()
    calm()
    page = _open_page(start, footing, run, door, stack)
    stack.callback(asyncio.create_task(door.watch()).cancel)
    uses, life = default_uses(run.state.rules.wanted), parse_duration(DEFAULT_TTL)
    link = str(make_link(store, start.state, life, uses))
    pages = (page.url, page.viewer_url) if page else ()
    footing.emit(events.listening(link, start.place, *pages, uses=uses, life=life))


# ---- parts of steps ------------------------------------------------------------------------------


def _authority(start: Start) -> Authority:
    """The run's identity. One from a database is also written to this machine, where the page's server reads it."""
    store, folder = start.store, start.state / IDENTITY
    if is_older(folder) if store.server is None else sealing.is_older(store):
        message = "the run has a new certificate, as nodes could pass as its old one: give nodes the link that follows"
        start.emit(events.event("warning", message=message, node=""))
    if store.server is None:
        return load_authority(folder)
    authority = sealing.shared_authority(store)
    save_authority(folder, authority)
    return authority


def _open_loggers(start: Start, job: Job, footing: Footing, stack: contextlib.AsyncExitStack) -> None:
    """From here on every event goes to people, to the metrics and to the loggers."""
    loggers = []
    for make in start.options.loggers:
        logger = make(job.run.name, job.model_dump(mode="json"), start.state)
        stack.callback(logger.close)
        loggers.append(heeded(logger, start.emit))
    footing.emit = events.tee(start.emit, footing.counts.add, *loggers)


def _remember(start: Start, job: Job, port: int) -> None:
    """Store what other commands read about a run that is being started."""
    store, options = start.store, start.options
    store.put("job", job.model_dump_json())
    store.put("insecure", "1" if options.insecure else "0")
    store.put("address", advertised(options, port))
    store.put("listening", reached_here(options.listen, port))
    store.put("phase", "preparing_start")
    store.put("why", "the coordinator reads the data and the model")
    if store.get("run") is None:
        store.put("run", secrets.token_hex(8))
    if store.get("created") is None:
        store.put("created", str(time.time()))


def _open_page(
    start: Start, footing: Footing, run: Run, door: Door, stack: contextlib.AsyncExitStack
) -> RunPage | None:
    """Start the run's web page. Beyond this machine it is served over TLS, with the run's own certificate."""
    bound, store, authority, certificate = footing.page, start.store, footing.authority, None
    if bound is None:
        return None
    if not is_loopback(bound):
        if authority is None:
            _warn(footing, "the page and its tokens go without TLS (--insecure)")
        else:
            certificate = write_certificate(start.state, authority.certificate, authority.key)
    page = RunPage(
        run,
        start.state,
        bound,
        certificate,
        run_id=store.get("run") or "",
        advertised_host=split_address(store.get("address") or "127.0.0.1:0")[0],
        counts=footing.counts,
        make_link=lambda seconds: str(make_link(store, start.state, seconds, DEFAULT_USES)),
        proved=door.proved,
    )
    door.ports.add(bound.getsockname()[1])
    page.start()
    stack.push_async_callback(page.stop)
    return page


def _warn(footing: Footing, message: str) -> None:
    footing.emit(events.event("warning", message=message, node=""))


def _note_failure(start: Start, error: FarflungError) -> None:
    start.store.put("phase", "failed")
    start.store.put("why", error.message)
