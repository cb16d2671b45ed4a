"""Checks of a run that this machine may join: its coordinator, certificate, ticket, clocks, and links."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...coordinator.trust.authority import NODE_LIFE
from ...coordinator.trust.clocks import check_clock, span
from ...node.device.large_packets import HINT, black_hole
from ...proto.errors import FarflungError
from ...proto.words.border import harmless_values, printable
from ...proto.words.fields import checked
from ...proto.words.link import Link, split_address
from ..screen.units import seconds_text
from .findings import Finding

_SECONDS = 5.0


_AT_ONCE, _NAMED = 16, 5


def coordinator(link: Link) -> Iterator[Finding]:
    """Name, connection, certificate and clock of the coordinator, in this order; the first failure ends it."""
    try:
        found = socket.getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
    except OSError as error:
        hint = "check the spelling, or ask for a link with an IP address (coordinator start --advertise IP:PORT)"
        yield Finding("name", False, f"{link.host} does not resolve: {error.strerror or error}", hint)
        return
    yield Finding("name", True, f"{link.host} is {found[0][4][0]}")
    began = time.perf_counter()
    try:
        with socket.create_connection((link.host, link.port), timeout=_SECONDS):
            took = time.perf_counter() - began
    except OSError as error:
        hint = "is the coordinator running, and does its firewall let this port in?"
        yield Finding("connection", False, f"{link.address} does not answer: {error.strerror or error}", hint)
        return
    yield Finding("connection", True, f"{link.address} answers in {seconds_text(took)}")
    hole = black_hole(link.host, link.port)
    yield Finding("packets", not hole, hole or "large ones get through as well", HINT)
    if hole:
        return
    if link.insecure:
        yield Finding("certificate", True, "none: this run has no TLS (--insecure)")
        yield from _ticket(link, b"")
        return
    yield from _certificate(link, _server_certificate)


def _server_certificate(link: Link) -> bytes:
    """The certificate (DER) that the coordinator shows; it is compared with the link's fingerprint, nothing else."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((link.host, link.port), timeout=_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="coordinator") as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def _certificate(link: Link, fetch: Callable[[Link], bytes]) -> Iterator[Finding]:
    try:
        shown = fetch(link)
    except OSError as error:
        hint = "something else may listen on that port, or the run was started with --insecure: ask for a new link"
        yield Finding("certificate", False, f"no TLS connection: {error}", hint)
        return
    if hashlib.sha256(shown).digest() != link.fingerprint:
        hint = "ask for a new link; if it is new, someone stands between this machine and the coordinator"
        yield Finding("certificate", False, "it is not the one that the link names", hint)
        return
    yield Finding("certificate", True, "the one that the link names")
    yield _clock(shown)
    yield from _ticket(link, ssl.DER_cert_to_PEM_cert(shown).encode())


def _ticket(link: Link, pinned: bytes) -> Iterator[Finding]:
    """Whether the coordinator takes the ticket, asked with a question that uses nothing up; and the answer's links."""
    import grpc

    from ...proto.connections import rpc
    from ...proto.control_pb2 import StatusRequest

    with rpc.blocking_coordinator_channel(link.address, pinned) as channel:
        try:
            request = StatusRequest(run=link.run, ticket=link.ticket)
            reply = rpc.coordinator_stub(channel).Status(request, timeout=_SECONDS)
        except grpc.RpcError as error:
            words = printable((isinstance(error, grpc.Call) and error.details()) or str(error))
            yield Finding("ticket", False, f"the coordinator did not say: {words}", "copy the whole link again")
            return
    if checked(reply).refused:
        refused = FarflungError.of(reply.refused)
        yield Finding("ticket", False, refused.message, refused.hint)
        return
    yield Finding("ticket", True, "the coordinator takes it")
    status = harmless_values(json.loads(reply.status))
    yield beside(time.time(), float(status.get("time") or 0.0))
    yield from terms_of(status, link)
    yield from ways(status, _dial)


def beside(ours: float, theirs: float) -> Finding:
    """Whether this machine's clock, at ``ours``, is near enough to the coordinator's. Seconds since the epoch."""
    try:
        check_clock(ours, theirs or ours, NODE_LIFE)
    except FarflungError as error:
        return Finding("clocks", False, error.message, error.hint)
    return Finding("clocks", True, f"{span(abs(ours - (theirs or ours)))} from the coordinator's")


def terms_of(status: dict[str, Any], link: Link) -> Iterator[Finding]:
    """What the run would do with this machine."""
    from ...node.promises import job_in, terms

    try:
        job = job_in(status)
    except FarflungError as error:
        yield Finding("the run", False, error.message, error.hint)
        return
    for line in terms(job, None, not link.insecure) if job is not None else ():
        yield Finding("the run", True, line)


def ways(status: dict[str, Any], dial: Callable[[str], str]) -> Iterator[Finding]:
    """Which way links between this machine and the nodes of the run would go, and which way the run's own links go.

    ``dial(HOST:PORT)``: empty where something answers, else why not. Whether others can dial this machine only a join
    shows.
    """
    nodes = [node for node in status["nodes"] if not node["left"]]
    if not nodes:
        return
    hidden = [node["node"] for node in nodes if node["dials_out"]]
    open_ones = [node for node in nodes if not node["dials_out"]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(dial, (str(node["address"]) for node in open_ones)))
    direct = [node["node"] for node, why in zip(open_ones, answers, strict=True) if not why]
    silent = [f"{node['node']} ({why})" for node, why in zip(open_ones, answers, strict=True) if why]
    parts = []
    if direct:
        parts.append(f"direct to {_some(direct)}")
    if hidden:
        parts.append(
            f"{_some(hidden)} would dial this machine, or meet it at the coordinator if nobody can dial it either"
        )
    if silent:
        parts.append(f"{_some(silent)} cannot be reached from here")
    better = "open a port and say where it leads: farflung join ... --listen 0.0.0.0:PORT --advertise HOST:PORT"
    yield Finding("links", True, "; ".join(parts), better=better if hidden else "")
    present = {node["node"] for node in nodes}
    going: dict[str, list[str]] = {}
    for one in status["links"]:
        if {one["from"], one["to"]} <= present:
            going.setdefault(str(one["way"]), []).append(f"{one['from']} > {one['to']}")
    if going:
        yield Finding("run's links", True, "; ".join(f"{_some(pairs)} {way}" for way, pairs in sorted(going.items())))


def _some(words: list[str]) -> str:
    return ", ".join(words[:_NAMED]) + (f" and {len(words) - _NAMED} more" if len(words) > _NAMED else "")


def _dial(address: str) -> str:
    try:
        host, port = split_address(address)
        with socket.create_connection((host, port), timeout=_SECONDS):
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except FarflungError as error:
        return error.message


def _clock(certificate: bytes) -> Finding:
    """A clock that is far off makes a valid certificate invalid; small skews have no effect."""
    from cryptography import x509

    read = x509.load_der_x509_certificate(certificate)
    now = time.time()
    first, last = read.not_valid_before_utc.timestamp(), read.not_valid_after_utc.timestamp()
    stated = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    return Finding("clock", first <= now <= last, stated, "set this machine's clock (timedatectl set-ntp true)")
