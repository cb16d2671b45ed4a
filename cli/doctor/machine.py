"""Checks of this machine: disk, open files, memory, device, TCP settings."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...node.device.memory import available_memory
from ...proto.process import python
from ..screen.units import bytes_text
from .findings import Finding

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


def disk() -> Finding:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    found = f"{bytes_text(free)} free in {folder}"
    return Finding("disk", free >= _FREE_DISK, found, "free some space, or set TMPDIR to a folder on a larger disk")


def files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", True, "this system has no limit to ask for")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f"ulimit -n {_FREE_FILES if hard == resource.RLIM_INFINITY else min(hard, 65536)}"
    return Finding("open files", soft >= _FREE_FILES, f"{soft} at most", hint)


def memory() -> Finding:
    free = available_memory()
    hint = "end programs that hold memory, or give the container more"
    return Finding("memory", free >= 500_000_000, f"{bytes_text(free)} available", hint)


RECOMMENDED = {
    "net.ipv4.tcp_congestion_control": "bbr",
    "net.ipv4.tcp_wmem": "4096 16384 33554432",
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}
"""Congestion controls under which one connection fills 500 Mbit/s at 300 ms and does not slow down at each loss."""


def network(settings: Path = Path("/proc/sys")) -> Finding:
    """The rate of one TCP connection with this machine's settings, and which settings would allow more."""
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


def device_of(device: str) -> Finding:
    """Import torch in another process, because a broken installation must not end the other checks."""
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
