"""Builds a WAN and takes it down. `up` lists everything in the lab's state before making it, so that `down` finds all
of it after a crash at any point.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import netem, system
from .errors import WanError
from .kernel import NETNS
from .lab import Lab, lock, state_root
from .lab import state as read_state
from .topology import Topology, dns_name

BACKENDS = ("netem", "relay")
PREFIX = "wan-"
CLOUD = ".cloud"  # the namespace of the bridge (backend netem); no host's name starts with a dot
_NEEDED = 1 << 21 | 1 << 12  # CAP_SYS_ADMIN, CAP_NET_ADMIN
_children: dict[int, subprocess.Popen[bytes]] = {}  # children of this process, which it has to wait for


def why_not() -> str | None:
    """Why this machine can't emulate a WAN, in a sentence; None where it can."""
    if not sys.platform.startswith("linux"):
        return "the WAN emulator needs Linux network namespaces"
    if os.geteuid() != 0:
        return "the WAN emulator needs root: it makes network namespaces"
    if system.capabilities() & _NEEDED != _NEEDED:
        return "the WAN emulator needs the capabilities SYS_ADMIN and NET_ADMIN (docker run --privileged has them)"
    if shutil.which("ip") is None:
        return "the WAN emulator needs the ip command: apt-get install iproute2"
    return None


def require() -> None:
    """Raise WanError where this machine can't emulate a WAN."""
    why = why_not()
    if why:
        raise WanError(why, "run it as root on Linux, or use `farflung run`, which needs no emulated network")


def choose(backend: str | None) -> str:
    """The backend to use: the one asked for, else netem where the kernel has it, else relay."""
    require()
    if backend not in (None, "auto", *BACKENDS):
        raise WanError(f"no backend {backend!r}", "use netem, relay or auto")
    netem_here = shutil.which("tc") is not None and system.has_netem() if backend != "relay" else False
    if backend == "netem" and not netem_here:
        raise WanError("this kernel has no sch_netem", "use --backend relay, or load it: modprobe sch_netem")
    if netem_here:
        return "netem"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise WanError("this machine has neither sch_netem nor /dev/net/tun", "modprobe sch_netem or modprobe tun")
    return "relay"


def up(topology: Topology, backend: str | None = None) -> Lab:
    """Build a WAN. WanError where that fails; everything made before is removed again."""
    backend = choose(backend)
    name = topology.name
    folder = state_root() / name
    with lock(state_root() / ".lock"):
        if (folder / "state.json").exists():
            raise WanError(
                f"a WAN {name} is up, or was not taken down", f"farflung wan down {name}, or give this one --name"
            )
        spaces = [f"{PREFIX}{name}-{dns_name(h.name)}" for h in topology.hosts]
        if len(set(spaces)) < len(spaces):
            raise WanError(f"{name}: two hosts are the same word in small letters", "give them clearer names")
        if backend == "netem":
            spaces.append(f"{PREFIX}{name}-{CLOUD}")
        taken = [s for s in spaces if os.path.exists(f"{NETNS}/{s}")]
        if taken:
            raise WanError(
                f"network namespace {taken[0]} exists and is not ours",
                f"ip netns del {taken[0]}, or give this WAN --name",
            )
        folder.mkdir(parents=True, exist_ok=True)
        lab = Lab(name, backend, topology, topology, spaces, {}, [])
        lab.save()
        try:
            _make(lab)
        except BaseException:
            _remove(name, lab.namespaces, lab.process)
            raise
        lab.save()
    return lab


def _make(lab: Lab) -> None:
    topology = lab.topology
    known = Path("/etc/hosts").read_text() if Path("/etc/hosts").exists() else ""
    book = "".join(f"{topology.address(i)}\t{dns_name(h.name)}\n" for i, h in enumerate(topology.hosts))
    (lab.folder / "hosts").write_text(known.rstrip("\n") + "\n" + book)
    system.ip([f"netns add {space}" for space in lab.namespaces])
    device = netem.DEVICE
    if lab.backend == "netem":
        cloud = lab.namespaces[-1]
        system.ip(["link add br0 type bridge mcast_snooping 0", "link set br0 up", "link set lo up"], cloud)
        for i in range(len(topology.hosts)):
            system.ip([f"link add {device} type veth peer name port{i} netns {cloud}"], lab.namespace(i))
        system.ip(
            [
                line
                for i in range(len(topology.hosts))
                for line in (f"link set port{i} master br0", f"link set port{i} up")
            ],
            cloud,
        )
    else:
        _start_relay(lab)
    for i, host in enumerate(topology.hosts):
        lab.notes += _sysctls(lab, i)
        lines = ["link set lo up", f"addr add {topology.address(i)}/16 dev {device}"]
        if lab.backend == "netem":
            lines.append(f"link set {device} gso_max_segs 1")
        else:
            lines.append(f"link set {device} txqueuelen 10000")  # waits while the relay does not run
        system.ip([*lines, f"link set {device} up"], lab.namespace(i))
        if lab.backend == "netem":
            system.tc(netem.egress(topology, i), lab.namespace(i))
            system.tc(netem.ingress(topology, i, f"port{i}"), lab.namespaces[-1])
            if host.nat:
                _close_doors(lab.namespace(i))
    if topology.congestion:
        _congestion(lab, topology.congestion)


def _close_doors(namespace: str) -> None:
    """Let only answers into a host behind NAT (backend netem; the relay has a NAT of its own)."""
    inside = ["ip", "netns", "exec", namespace]
    try:
        system.tool([*inside, "nft", "-f", "-"], netem.NFT_NAT)
    except WanError as first:
        command = next((c for c in ("iptables-legacy", "iptables") if shutil.which(c)), None)
        if command is None:
            raise WanError("a host behind NAT needs nft or iptables", "apt-get install nftables") from first
        for words in netem.IPTABLES_NAT:
            system.tool([*inside, command, *words])


def _sysctls(lab: Lab, i: int) -> list[str]:
    values = {
        "ipv6.conf.all.disable_ipv6": "1",
        "ipv6.conf.default.disable_ipv6": "1",
        "ipv4.ping_group_range": "0 2147483647",
    }
    values["ipv4.tcp_no_metrics_save"] = "1"  # else a connection would start with the last one's metrics
    memory = lab.topology.tcp_memory
    if memory:
        values["ipv4.tcp_rmem"] = f"4096 131072 {memory}"
        values["ipv4.tcp_wmem"] = f"4096 65536 {memory}"
    refused = system.sysctl(lab.namespace(i), values)
    return [f"{lab.topology.hosts[i].name}: {r}" for r in refused if "ipv6" not in r]


def _congestion(lab: Lab, wanted: str) -> None:
    """Set a namespace's TCP congestion control. Only those on the machine's list of allowed ones can be set, so the
    list is extended for a moment and then restored; the file `allowed` keeps the old list in case this process dies in
    between."""
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    note = state_root() / "allowed"
    with lock(state_root() / ".allowed.lock"):
        put_back_allowed()
        before = allowed.read_text().strip()
        try:
            if wanted not in before.split():
                note.write_text(before)
                try:
                    allowed.write_text(f"{before} {wanted}")
                except OSError:
                    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().strip()
                    raise WanError(f"this kernel has no congestion control {wanted!r}", f"it has {offered}") from None
            for i in range(len(lab.topology.hosts)):
                refused = system.sysctl(lab.namespace(i), {"ipv4.tcp_congestion_control": wanted})
                if refused:
                    raise WanError(f"congestion control {wanted}: {refused[0]}", "leave out `congestion`")
        finally:
            put_back_allowed()


def put_back_allowed() -> None:
    """Restore the machine's list of allowed congestion controls, if a killed `up` has left it changed."""
    note = state_root() / "allowed"
    if note.exists():
        Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").write_text(note.read_text())
        note.unlink()


def _start_relay(lab: Lab) -> None:
    ready = lab.folder / "relay.ready"
    ready.unlink(missing_ok=True)
    process = spawn(lab, "relay", [sys.executable, "-m", "farflung.deploy.wan.relay", str(lab.folder)])
    until = time.monotonic() + 30
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > until:
            log = (lab.folder / "relay.log").read_text().strip().splitlines()
            raise WanError("the relay did not start: " + (log[-1] if log else "no word"), "\n".join(log[-8:]), 4)
        time.sleep(0.02)
    missing = json.loads(ready.read_text())["missing"]
    lab.notes += [f"the relay runs without {m}" for m in missing]


def spawn(lab: Lab, role: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and that `down` ends; its output goes to ROLE.log in the state folder."""
    with (lab.folder / f"{role}.log").open("wb") as sink:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, cwd="/"
        )
    _children[process.pid] = process
    lab.process[role] = (process.pid, system.started(process.pid) or "")
    lab.save()
    return process


def down(name: str) -> dict[str, Any]:
    """Remove everything that `up` made. Works after a crash too, and on a WAN built by another version. Returns what
    was removed."""
    with lock(state_root() / ".lock"):
        state = read_state(name)
        report = _remove(name, state["namespaces"], state["process"])
    with lock(state_root() / ".allowed.lock"):
        put_back_allowed()
    return report


def _remove(name: str, namespaces: Sequence[str], process: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    people = system.inhabitants(namespaces)
    mine = [pid for pid, when in process.values() if when and system.started(pid) == when]
    system.end(people)
    system.end(mine)
    for pid, _ in process.values():  # also one that was killed before
        child = _children.pop(pid, None)
        if child is not None:
            child.wait()
    there = [space for space in namespaces if os.path.exists(f"{NETNS}/{space}")]
    for space in there:
        system.tool(["ip", "netns", "del", space])
    shutil.rmtree(state_root() / name, ignore_errors=True)
    return {"name": name, "namespaces": there, "processes": len(people) + len(mine)}
