"""Joining a run: find the coordinator, check that it is the right one, show the ticket, get a certificate."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from .. import __version__
from ..job.data.facts import Facts
from ..job.schema import Job
from ..proto import OLDEST_PROTOCOL, PROTOCOL
from ..proto.connections import rpc
from ..proto.control_pb2 import Device, Goodbye, Hello, JoinReply, JoinRequest, Report
from ..proto.errors import FarflungError, NotNow, Refused, Unreachable
from ..proto.words import names
from ..proto.words.border import LEAVE, Hostile, printable, whole
from ..proto.words.fields import checked
from ..proto.words.link import Link, join_address, split_address
from .device import identity
from .device.large_packets import HINT, black_hole
from .device.own_folder import own_folder, writable
from .ipc.config import WireConfig
from .promises import read_facts, read_job
from .rejoin import RunOver

_STOOD_STILL = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE})
CONNECT_TIMEOUT = 10.0
JOIN_TIMEOUT = 60.0
"""Seconds for the coordinator's answer: it dials back first, and may still be preparing its data."""
PART_TIMEOUT = 6.0
LONGEST_LIFE = 10 * 366 * 86400.0
"""Seconds: a node refuses a certificate that is to live so long, or longer."""


@dataclass(frozen=True)
class Joined:
    """What the coordinator answered. ``config`` starts the Wire on the port that the coordinator dialled back."""

    name: str
    session: str
    secret: str = field(repr=False)
    credentials: rpc.Credentials
    job: Job
    facts: Facts
    term: int
    address: str  # HOST:PORT where peers reach this node, unless it dials out
    dials_out: bool  # nobody can dial this node: it dials its peers
    config: WireConfig = field(repr=False)


@dataclass(frozen=True)
class Found:
    """A coordinator that answers at the link's address and is the one that the link names."""

    pinned: bytes  # its certificate, PEM; empty for a run without TLS
    local_host: str  # this machine's address on the way there


def find(link: Link) -> Found:
    """Resolves, connects and checks the fingerprint, without joining (`farflung doctor` calls this too).

    Unreachable, each with a hint: the name does not resolve, nothing listens there, the machine does not answer.
    FarflungError: another coordinator is there.
    """
    try:
        socket.getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Unreachable(
            f"the coordinator's name {link.host} does not resolve: {error.strerror}",
            "check the link; from outside, the coordinator needs --advertise HOST:PORT with a name known here",
        ) from error
    try:
        with socket.create_connection((link.host, link.port), CONNECT_TIMEOUT) as connection:
            local_host = str(connection.getsockname()[0])
    except ConnectionRefusedError as error:
        raise Unreachable(
            f"nothing listens at {link.address}: connection refused",
            "is `farflung coordinator start` running there, and the port open?",
        ) from error
    except (TimeoutError, OSError) as error:
        raise Unreachable(
            f"no connection to the coordinator at {link.address}: {error}",
            "check the network and the firewall between here and there",
        ) from error
    pinned = b""
    if not link.insecure:
        pinned = identity.pinned_certificate(link.host, link.port, link.fingerprint, CONNECT_TIMEOUT)
    return Found(pinned, local_host)


def join(
    link: Link, device: Device, name: str = "", advertise: str = "", cache: Path | None = None, listen: str = ""
) -> Joined:
    """Joins the run of `link` and returns what the coordinator gave.

    name       wished for; empty: the coordinator picks one.
    advertise  HOST or HOST:PORT where peers reach this node; empty: this machine's address on the way to the
               coordinator. The node listens on that port (any free one without it). An address that is given is
               insisted on; without one, a node that the coordinator cannot dial (behind NAT) dials its peers.
    cache      folder that keeps the node's key for the next join.
    listen     HOST:PORT to listen on, where it differs from what is advertised (behind a forwarded port).

    FarflungError as in `find`, and when the port is taken. Refused with the coordinator's sentence (NotNow: a later try
    may succeed). Hostile where its answer is not valid (`proto.words.border`): then no file has been written.
    """
    if name and (why := names.mistake(name)):
        raise FarflungError(why, f"use {names.RULE}, e.g. --name lab-3")
    cache = writable(own_folder(cache))
    found = find(link)
    host, port = _advertised(advertise, found.local_host)
    with _reserve(listen or _listen_on(host, port, bool(advertise))) as waiting:
        bound_host, bound_port = waiting.getsockname()[:2]
        address = join_address(host, port or bound_port)
        key = identity.load_key(cache, link.run, name) if name else None
        key = key or identity.make_key()
        request = JoinRequest(
            version=__version__,
            protocol=PROTOCOL,
            oldest_protocol=OLDEST_PROTOCOL,
            run=link.run,
            ticket=link.ticket,
            name=name,
            address=address,
            may_dial_out=not advertise,
            time=time.time(),
        )
        request.device.CopyFrom(device)
        if found.pinned:
            request.certificate_request = identity.certificate_request(key, name)
        reply = _ask(link, found.pinned, request)
    try:
        job, facts = read_job(reply.job), read_facts(reply.facts)
        if found.pinned and not (reply.authority and reply.certificate):
            # Without them this node would talk to its peers without TLS.
            raise FarflungError(f"the coordinator at {link.address} gave no certificate", LEAVE)
        if not link.insecure:
            identity.save_key(cache, link.run, reply.name, key)
    except FarflungError as problem:
        part(link.address, found.pinned, (reply.name, reply.session, reply.secret), problem.message)
        raise
    credentials = rpc.Credentials()
    if found.pinned:
        credentials = rpc.Credentials(reply.authority, reply.certificate, key, found.pinned)
    config = WireConfig(
        run=link.run,
        name=reply.name,
        session=reply.session,
        secret=reply.secret,
        coordinator=link.address,
        listen=join_address(bound_host, bound_port),
        dials_out=reply.dials_out,
        authority=credentials.authority,
        certificate=credentials.certificate,
        key=credentials.key,
        pinned=credentials.pinned,
        protocol=reply.protocol or PROTOCOL,
        certificate_life=reply.certificate_life if credentials.secure else 0.0,
    )
    return Joined(
        reply.name,
        reply.session,
        reply.secret,
        credentials,
        job,
        facts,
        reply.term,
        address,
        reply.dials_out,
        config,
    )


def part(address: str, pinned: bytes, session: tuple[str, str, str], why: str) -> None:
    """Say goodbye for a session (name, id, secret) that has no I/O process, so that the coordinator does not wait for
    it. No error if the coordinator cannot be reached; it then notices later, by its patience."""
    with contextlib.suppress(grpc.RpcError), rpc.blocking_coordinator_channel(address, pinned) as channel:
        words = [Report(hello=Hello(session=session[1])), Report(goodbye=Goodbye(why=why))]
        orders = rpc.coordinator_stub(channel).Attend(
            iter(words), metadata=rpc.session_metadata(*session), timeout=PART_TIMEOUT
        )
        for _ in orders:
            pass


def _ask(link: Link, pinned: bytes, request: JoinRequest) -> JoinReply:
    with rpc.blocking_coordinator_channel(link.address, pinned) as channel:
        try:
            reply: JoinReply = rpc.coordinator_stub(channel).Join(request, timeout=JOIN_TIMEOUT)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
            details = (error.details() or "") if isinstance(error, grpc.Call) else str(error)
            if code in _STOOD_STILL and (hole := black_hole(link.host, link.port)):
                raise Unreachable(hole, HINT) from error
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Unreachable(
                    f"the coordinator at {link.address} did not answer within {JOIN_TIMEOUT:.0f} s",
                    "look at its terminal: it may still be preparing the data",
                ) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise FarflungError(
                    f"what answers at {link.address} is no farflung coordinator", "check HOST:PORT of the link"
                ) from error
            raise Unreachable(
                f"the coordinator at {link.address} ended the connection: " + ended_by(details, code.name),
                "is it a run with TLS and the link without, or the reverse? copy the whole join line again",
            ) from error
    return _accepted(reply, request.name)


def ended_by(details: str, code: str) -> str:
    """The informative part of gRPC's ``details``: the last one that is not "OK" (a failed handshake ends in "OK")."""
    parts = [part for one in details.split(": ") if (part := printable(one).strip()) and part != "OK"]
    return parts[-1] if parts else code


def _accepted(reply: JoinReply, wished: str) -> JoinReply:
    """The checked answer. Refused (or NotNow, RunOver): the coordinator refuses the node. Hostile: it is not valid."""
    checked(reply)
    if reply.refused:
        raise (RunOver if reply.over else NotNow if reply.passes else Refused).of(reply.refused)
    if not (reply.name and reply.session and reply.secret) or (wished and reply.name != wished):
        raise Hostile(f"the coordinator calls this node {reply.name!r}, asked for {wished!r}", LEAVE)
    if reply.protocol:
        whole(reply.protocol, OLDEST_PROTOCOL, PROTOCOL, "protocol of this version of farflung")
    if not 0 <= reply.certificate_life < LONGEST_LIFE:
        raise Hostile(f"a certificate that lives {reply.certificate_life:.3g} s is absurd", LEAVE)
    return reply


def _advertised(advertise: str, local_host: str) -> tuple[str, int]:
    """(host, port) that peers are told; port 0: any free one."""
    if not advertise:
        return local_host, 0
    if re.fullmatch(r"[^:]+|\[[^\]]+\]", advertise):  # a host alone
        return advertise.strip("[]"), 0
    return split_address(advertise, "--advertise")


def _listen_on(host: str, port: int, advertised: bool) -> str:
    """Where to listen: on loopback alone where the coordinator is on this machine, else on every interface."""
    if ":" in host:
        return join_address("::1" if host == "::1" and not advertised else "::", port)
    return join_address(host if host.startswith("127.") else "0.0.0.0", port)


def _reserve(listen: str) -> socket.socket:
    """A listening socket: the coordinator dials the node back before it accepts it, and the port is then the node's."""
    host, port = split_address(listen, "the address to listen on")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    waiting = socket.socket(family, socket.SOCK_STREAM)
    try:
        waiting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        waiting.bind((host, port))
        waiting.listen(16)
    except OSError as error:
        waiting.close()
        raise FarflungError(
            f"cannot listen on {listen}: {error.strerror or error}",
            "stop what listens there, or choose another port with --advertise HOST:PORT",
        ) from error
    return waiting
