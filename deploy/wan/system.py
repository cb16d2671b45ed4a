"""Runs `ip`, `tc` and `nft`, and ends processes in given namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import WanError
from .kernel import NETNS, inside


def tool(words: Sequence[str], text: str | None = None) -> str:
    """Run a tool and wait for it; WanError with its error message where it fails."""
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        package = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}.get(words[0], words[0])
        raise WanError(f"{words[0]} is not installed", f"apt-get install {package}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise WanError(
            f"{' '.join(words)}: {said[-1] if said else 'failed'}", "\n".join(said[:-1]) or (text or "").strip()[:2000]
        )
    return done.stdout


def ip(lines: Iterable[str], namespace: str | None = None) -> None:
    """`ip -batch` in a namespace."""
    where = ["-n", namespace] if namespace else []
    tool(["ip", *where, "-batch", "-"], "\n".join(lines) + "\n")


def tc(lines: Sequence[str], namespace: str) -> None:
    """`tc -batch` in a namespace; all lines or WanError."""
    if lines:
        tool(["tc", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def has_netem() -> bool:
    """Whether this kernel has sch_netem, found by trying in a temporary namespace."""
    name = f"wan-try-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
    tool(["ip", "netns", "add", name])
    try:
        tool(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except WanError:
        return False
    finally:
        tool(["ip", "netns", "del", name])
    return True


def sysctl(namespace: str, values: dict[str, str]) -> list[str]:
    """Write /proc/sys/net keys inside a namespace; returns those that this kernel does not have or refuses."""
    refused = []
    with inside(namespace):
        for key, value in values.items():
            try:
                Path("/proc/sys/net", *key.split(".")).write_text(value)
            except OSError as error:
                refused.append(f"{key}: {error.strerror}")
    return refused


def capabilities() -> int:
    """The effective capabilities of this process, one bit each."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def dropped(namespace: str, device: str) -> int:
    """Packets that a device could not take from its host's kernel."""
    with inside(namespace):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    for line in lines:
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[11])
    return 0


def started(pid: int) -> str | None:
    """When a process started (clock ticks since boot), which with its id names it for good; None where it is gone."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if rest[0] == "Z" else rest[19]


def inhabitants(namespaces: Iterable[str]) -> list[int]:
    """The processes in these namespaces, by the identity of the namespace and not by any name."""
    wanted = set()
    for name in namespaces:
        try:
            stat = os.stat(f"{NETNS}/{name}")
        except OSError:
            continue
        wanted.add((stat.st_dev, stat.st_ino))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                stat = os.stat(entry / "ns" / "net")
            except OSError:
                continue
            if (stat.st_dev, stat.st_ino) in wanted:
                found.append(int(entry.name))
    return found


def end(pids: Sequence[int], patience: float = 3.0) -> None:
    """Send SIGTERM, and after `patience` seconds SIGKILL to processes that are still alive."""
    known = {pid: started(pid) for pid in pids}
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 2.0)):
        alive = [pid for pid, when in known.items() if when is not None and started(pid) == when]
        for pid in alive:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + wait
        while any(started(pid) == known[pid] for pid in alive) and time.monotonic() < until:
            time.sleep(0.02)
