"""``farflung doctor``: what would stop this machine from joining, without joining.

Each check answers in one line: fine, or what to type next. A check never raises; whatever it can't find out is
its answer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..coordinator.trust.clocks import check_clock, span
from ..coordinator.trust.identity import NODE_LIFE
from ..node.device.large_packets import HINT, black_hole
from ..node.device.memory import available_memory
from ..proto import python
from ..proto.border import harmless_values, printable
from ..proto.errors import FarflungError
from ..proto.fields import checked
from ..proto.link import Link, parse_link, split_address
from .screen.output import DONE, WRONG, Output
from .screen.units import bytes_text, seconds_text

_SECONDS = 5.0
_AT_ONCE, _NAMED = 16, 5
_FREE_DISK = 2_000_000_000
_FREE_FILES = 1024

_PROBE = """
import json, sys, time, torch
wish = sys.argv[1]
mps = getattr(torch.backends, "mps", None)
if wish == "auto":
    wish = "cuda" if torch.cuda.is_available() else ("mps" if mps and mps.is_available() else "cpu")
device = torch.device(wish)
x = torch.randn(1024, 1024, device=device)
def settle():
    if device.type == "cuda": torch.cuda.synchronize(device)
    elif device.type == "mps": torch.mps.synchronize()
(x @ x); settle()
began, count = time.perf_counter(), 0
while time.perf_counter() - began < 0.3:
    x @ x; settle(); count += 1
rate = 2 * 1024**3 * count / (time.perf_counter() - began)
name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
print(json.dumps({"device": str(device), "name": name, "tflops": rate / 1e12, "torch": torch.__version__}))
"""


@dataclass(frozen=True)
class Finding:
    """One check: ``ok``, what was found, and the next thing to do where it is not ok."""

    check: str
    ok: bool
    found: str
    hint: str = ""
    better: str = ""
    """What would make it better, where it is good enough to join."""


def examine(link: str | None, device: str = "auto") -> Iterator[Finding]:
    """Run every check, one after the other; those of the coordinator only with a link."""
    yield _disk()
    yield _files()
    yield _memory()
    yield _device(device)
    yield network()
    if link is None:
        return
    try:
        address = parse_link(link)
    except FarflungError as error:
        yield Finding("link", False, error.message, error.hint)
        return
    yield from _coordinator(address)


def show(output: Output, findings: Iterator[Finding]) -> int:
    """Write the findings as they come; the exit status is 2 when something would stop a join."""
    good = True
    for finding in findings:
        good = good and finding.ok
        if output.json:
            output.record(asdict(finding))
        else:
            output.say("\n".join(found_lines(finding, shutil.get_terminal_size().columns if output.rich else 0)))
            if not finding.ok and finding.hint:
                output.say(f"{'':16} next: {finding.hint}")
            if finding.better:
                output.say(f"{'':16} faster over long ways: {finding.better}")
    return DONE if good else WRONG


def found_lines(finding: Finding, columns: int) -> list[str]:
    """What was found, as lines of at most so many columns with the text below itself; 0: one line."""
    head = f"{'ok ' if finding.ok else 'NO '} {finding.check:<12} "
    if columns <= len(head) + 20:
        return [head + finding.found]
    return textwrap.wrap(head + finding.found, columns, subsequent_indent=" " * len(head), break_long_words=False)


def _disk() -> Finding:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    found = f"{bytes_text(free)} free in {folder}"
    return Finding("disk", free >= _FREE_DISK, found, "free some space, or set TMPDIR to a folder on a larger disk")


def _files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", True, "this system has no limit to ask for")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f"ulimit -n {_FREE_FILES if hard == resource.RLIM_INFINITY else min(hard, 65536)}"
    return Finding("open files", soft >= _FREE_FILES, f"{soft} at most", hint)


def _memory() -> Finding:
    free = available_memory()
    hint = "end programs that hold memory, or give the container more"
    return Finding("memory", free >= 500_000_000, f"{bytes_text(free)} available", hint)


RECOMMENDED = {
    "net.ipv4.tcp_congestion_control": "bbr",
    "net.ipv4.tcp_wmem": "4096 16384 33554432",
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}
"""With these one connection fills 500 Mbit/s at 300 ms, and a loss is no reason for it to slow down."""


def network(settings: Path = Path("/proc/sys")) -> Finding:
    """How far one TCP connection carries with this machine's settings, and what would carry further."""
    now = {}
    for name in RECOMMENDED:
        try:
            now[name] = (settings / name.replace(".", "/")).read_text().split()
        except OSError:
            return Finding("network", True, "this system does not show its TCP settings")
    congestion, largest = now["net.ipv4.tcp_congestion_control"][0], int(now["net.ipv4.tcp_wmem"][-1])
    found = (
        f"{congestion}, {bytes_text(largest)} to send: up to {8 * 0.62 * largest / 0.1 / 1e6:.0f} Mbit/s a connection"
    )
    better = [
        f"{name}='{value}'"
        for name, value in RECOMMENDED.items()
        if (int(now[name][-1]) < int(value.split()[-1]) if name.endswith("mem") else now[name] != [value])
    ]
    advice = f"sysctl -w {' '.join(better)}" if better else ""
    return Finding("network", True, f"{found} at 100 ms", better=advice)


def _device(device: str) -> Finding:
    """Import torch in a process of its own: a broken installation must not end the examination."""
    try:
        done = subprocess.run(
            python.code(_PROBE, device),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError) as error:
        return Finding("device", False, f"torch did not answer: {error}", "python -c 'import torch'")
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("device", False, f"torch can't use {device!r}: {last}", "farflung doctor --device cpu")
    found = f"{answer['device']} ({answer['name']}), {answer['tflops']:.3g} Tflop/s, torch {answer['torch']}"
    return Finding("device", True, found)


def _coordinator(link: Link) -> Iterator[Finding]:
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

    from ..proto import rpc
    from ..proto.control_pb2 import StatusRequest

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
    yield from _terms(status, link)
    yield from ways(status, _dial)


def beside(ours: float, theirs: float) -> Finding:
    """Whether this machine's clock, at ``ours``, is near enough to the coordinator's. Seconds since the epoch."""
    try:
        check_clock(ours, theirs or ours, NODE_LIFE)
    except FarflungError as error:
        return Finding("clocks", False, error.message, error.hint)
    return Finding("clocks", True, f"{span(abs(ours - (theirs or ours)))} from the coordinator's")


def _terms(status: dict[str, Any], link: Link) -> Iterator[Finding]:
    """What the run would do with this machine."""
    from ..node.promises import job_in, terms

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
