"""Runs as root inside a User-mode Linux guest whose kernel has sch_netem: builds a lab with the backend netem, measures
it with ping, a TCP transfer and our own check, changes it live, and writes what it found to OUT/result.json.

    uml_guest.py OUT MODULE...          started by uml_init.sh; MODULE are kernel modules in the order of insertion
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

SYS_FINIT_MODULE = 313  # x86-64


def insert(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SYS_FINIT_MODULE, handle, b"", 0) < 0 and ctypes.get_errno() != 17:  # 17: it is there
        raise OSError(ctypes.get_errno(), f"insert {path}")
    os.close(handle)


def ping(made, source: str, target: str, count: int = 20) -> dict[str, float]:
    """iputils ping, not our own: loss in percent, least in ms (a host that is busy makes a guest late, never early)."""
    space = made.namespace(made.topology.index(source))
    address = made.topology.address(made.topology.index(target))
    words = ["ip", "netns", "exec", space, "ping", "-q", "-c", str(count), "-i", "0.02", "-W", "2", address]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    times = re.search(r"= ([\d.]+)/", said)
    return {"loss": float(re.search(r"([\d.]+)% packet loss", said)[1]), "least": float(times[1]) if times else -1.0}


def carried(made, pair: tuple[int, int], mbit: float) -> float:
    """Mbit/s of one cubic connection. A guest that the host starves carries too little and never too much, and has no
    lateness report: so up to five times."""
    from farflung.deploy.wan import probe
    from farflung.deploy.wan.topology import GOODPUT

    best = 0.0
    for _ in range(5):
        stream = probe.stream(made, pair, 6, 3, "cubic", count=1)
        best = max(best, stream.rate(3, 9) / 1e6)
        if best > 0.95 * GOODPUT * mbit:
            break
    return best


def main() -> dict[str, object]:
    from farflung.deploy.wan import build, check, files, probe
    from farflung.deploy.wan.topology import Change

    table = {
        "regions": {"a": {}, "b": {}, "c": {"uplink": "20mbit", "downlink": "30mbit", "nat": True}},
        "defaults": {"delay_ms": 25, "rate": "50mbit"},
        "congestion": "cubic",
    }
    found: dict[str, object] = {"chosen": build.choose(None)}
    made = build.up(files.parse(table, "uml", "uml_guest"), "netem")
    found["qdiscs"] = subprocess.run(
        ["tc", "-n", made.namespace(0), "qdisc"], capture_output=True, text=True, check=True
    ).stdout
    found["ping"] = ping(made, "a", "b")
    found["first_ping"] = ping(made, "c", "b", 1)  # with ARP before it: it must not cross the delay twice more
    found["mbit"] = carried(made, (0, 1), 50)
    found["uplink_mbit"] = carried(made, (2, 0), 20)
    found["downlink_mbit"] = carried(made, (0, 2), 30)
    found["dial_nat"] = probe.answers(made, 0, 2, 1.0)
    found["dial_out"] = probe.answers(made, 2, 0, 2.0)
    made.change(Change(0, "set", "a->b", {"delay_ms": 60.0, "rate": 10e6}))
    found["ping_set"] = ping(made, "a", "b")
    found["mbit_set"] = carried(made, (0, 1), 10)
    made.change(Change(0, "cut", "a->b"))
    found["ping_cut"] = ping(made, "a", "b", 3)
    made.change(Change(0, "restore", "a->b"))
    made.change(Change(0, "set", "a->b", {"loss": 0.02, "jitter_ms": 2.0}))
    found["lost"] = 1 - probe.loss(made, (0, 1), 10_000) / 10_000
    made.change(Change(0, "restore", "a->b"))
    made.change(Change(0, "set", "c", {"uplink": 8e6, "downlink": 12e6}))
    found["uplink_set"] = carried(made, (2, 0), 8)
    found["downlink_set"] = carried(made, (0, 2), 12)
    made.change(Change(0, "set", "c", {"uplink": None, "downlink": None, "delay_ms": 40.0}))
    found["ping_host"] = ping(made, "c", "a")
    found["uplink_gone"] = carried(made, (2, 0), 50)
    found["downlink_gone"] = carried(made, (0, 2), 50)
    made.change(Change(0, "restore", "*"))
    for _ in range(5):
        report = check.check(made, quick=True)
        if report.ok:
            break
    found["quick"] = dataclasses.asdict(report)
    found["down"] = build.down("uml")
    return found


if __name__ == "__main__":
    out = Path(sys.argv[1])
    try:
        for module in sys.argv[2:]:
            insert(module)
        result = main()
    except BaseException as error:  # it crosses to the host as data: a guest has no other way to fail
        result = {"error": str(error), "hint": str(getattr(error, "hint", "")), "trace": traceback.format_exc()}
    (out / "result.json").write_text(json.dumps(result))
