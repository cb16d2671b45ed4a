"""Goodput of a link between two nodes on the emulated WAN: our transport with TLS, beside one plain TCP connection.

    python -m benchmarks.links                          everything (under 6 minutes on a quiet machine)
    python -m benchmarks.links --size 20 --links 500x100 --cases recommended

A transfer is 200 MB in messages of 4 MB, from the sender's `Wire.send` to the receiver's `Wire.poll`; its goodput is
compared with 0.956 of the rate, which is what TCP's payload is of full frames, after half a round trip that the last
byte needs. `probe` is what a node itself measures of a new link when it joins (`--probe`: only that), `cold` the first
transfer of a new connection, `warm` the median of the next. Beside bulk, urgent messages are sent and a transfer is
cancelled, and it is measured how long that takes to arrive. Needs root, as `farflung wan` does. Results go to
benchmarks/results/links.json, with the emulator's own lateness.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.cli.doctor import machine
from farflung.coordinator.trust.authority import load_authority
from farflung.deploy.wan import build, files, kernel, lab, lateness, system
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.topology import GOODPUT
from farflung.node.device import identity

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "links.json"
PORT = 7071
STOCK = {"tcp_wmem": "4096 16384 4194304", "tcp_rmem": "4096 131072 6291456"}
"""What most Linux machines have."""
RECOMMENDED = {name.rpartition(".")[2]: value for name, value in machine.RECOMMENDED.items() if name.endswith("mem")}
URGENT, GAP = 20, 0.1
"""Urgent messages sent beside bulk, and seconds from one to the next."""
SUCCESSOR = 64_000
"""Bytes of what follows a cancelled transfer on the same connection: few, so that the time is the cancellation's."""


@dataclass(frozen=True)
class Case:
    """How two hosts are set up. ``aim``: the part of the possible goodput that a warm transfer should reach."""

    sysctls: dict[str, str]
    congestion: str
    loss: float
    aim: float | None


CASES = {
    "recommended": Case(RECOMMENDED, "bbr", 0.0, 0.95),
    "stock": Case(STOCK, "bbr", 0.0, 0.85),
    "loss": Case(RECOMMENDED, "bbr", 0.001, 0.90),
    "cubic": Case(RECOMMENDED, "cubic", 0.0, None),
}


class Peer:
    """The process of one node in its host."""

    def __init__(self, made: Lab, index: int, folder: Path, dials_out: bool) -> None:
        self.name, self.address = f"n{index}", made.topology.address(index)
        self.member = {"name": self.name, "address": f"{self.address}:{PORT}", "dials_out": dials_out}
        words = [sys.executable, "-m", "benchmarks.links_end", json.dumps(self.member), str(folder)]
        with kernel.inside(made.namespace(index)):
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.answer()

    def ask(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"do": do, **arguments}), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line or '{"problem": "it has ended"}')
        if "problem" in found:
            raise RuntimeError(f"{self.name}: {found['problem']}")
        return found

    def do(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.ask(do, **arguments)
        return self.answer()


@contextlib.contextmanager
def link(rate: float, rtt: float, case: Case, nat: bool = False) -> Iterator[tuple[Lab, Peer, Peer]]:
    """Two nodes on a link of their own, connected and in one view. ``nat``: the second cannot be dialled."""
    name = f"links{os.getpid()}"
    table: dict[str, Any] = {
        "name": name,
        "congestion": case.congestion,
        "regions": {"bench": {"hosts": 2}},
        "defaults": {"rtt_ms": rtt, "rate": f"{rate:g}mbit", "loss": case.loss, "queue_ms": 100},
    }
    made = build.up(files.parse(table, name, "links"), None)
    peers: list[Peer] = []
    try:
        for index in range(2):
            refused = system.sysctl(
                made.namespace(index), {f"ipv4.{key}": value for key, value in case.sysctls.items()}
            )
            if refused:
                raise RuntimeError(refused[0])
        with tempfile.TemporaryDirectory() as folder:
            certify(Path(folder))
            peers += [Peer(made, index, Path(folder), nat and index == 1) for index in range(2)]
            for peer in peers:
                peer.do("enter", view=1, members=[one.member for one in peers])
            yield made, peers[0], peers[1]
            for peer in peers:
                peer.do("close")
    finally:
        for peer in peers:
            peer.process.kill()
            peer.process.wait()
        build.down(name)


def certify(folder: Path) -> None:
    """Keys and certificates of both nodes."""
    authority = load_authority(folder)
    for name in ("n0", "n1"):
        key = identity.make_key()
        certificate, _ = authority.sign(identity.certificate_request(key, name), name)
        for kind, data in (("authority", authority.nodes), ("certificate", certificate), ("key", key)):
            (folder / f"{name}.{kind}").write_bytes(data)


def transfer(one: Peer, other: Peer, size: int, step: int) -> float:
    """Seconds of one transfer by our transport."""
    other.ask("receive", size=size, step=step)
    began = one.do("send", to=other.name, size=size, step=step)["began"]
    return float(other.answer()["ended"] - began)


def plain(one: Peer, other: Peer, size: int) -> float:
    """Seconds of one transfer on the plain connection."""
    other.ask("tcp_receive", size=size)
    began = one.do("tcp_send", size=size)["began"]
    return float(other.answer()["ended"] - began)


def goodput(seconds: float, size: int, rate: float, rtt: float) -> float:
    """Part of what TCP's payload can carry, half a round trip for the last byte allowed."""
    return (8 * size / (rate * 1e6 * GOODPUT) + rtt / 1e3) / seconds


def measure(rate: float, rtt: float, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One row: parts of the possible goodput, and seconds that urgent messages and a cancellation took."""
    size, result = options.size * 1_000_000, dict[str, Any]()
    with link(rate, rtt, case, options.nat) as (_, one, other):
        found = one.do("measure", member=other.member)
        result["probe"] = round(found["bps"] / (rate * 1e6 * GOODPUT), 4)
    if options.probe:
        return result
    with link(rate, rtt, case, options.nat) as (made, one, other):
        before = made.stat()
        score = lambda seconds: round(goodput(seconds, size, rate, rtt), 4)  # noqa: E731
        result["cold"] = score(transfer(one, other, size, 1))
        result["warm"] = score(statistics.median(transfer(one, other, size, 2 + i) for i in range(options.repeat)))
        other.ask("listen")
        time.sleep(0.2)
        one.do("dial", address=other.address)
        other.answer()
        plain(one, other, size // 4)
        result["plain"] = score(statistics.median(plain(one, other, size) for _ in range(options.repeat)))
        result |= beside(one, other, rate, rtt)
        late = lab.late_between(before, made.stat())
    result["usable"], result["why"] = lateness.verdict(late, rtt / 2) if late else (True, "in the kernel")
    return result


def beside(one: Peer, other: Peer, rate: float, rtt: float) -> dict[str, Any]:
    """Seconds from `Wire.send` to `Wire.poll` of urgent messages while bulk fills the link, and from the end of a view,
    which cancels the bulk, until the first bulk message of the next view has arrived, behind what was on its way."""
    found: dict[str, Any] = {}
    seconds = 1.0 + 4 * rtt / 1e3  # for windows to open again
    other.ask("arrivals", count=2 * URGENT)  # takes the bulk in, too
    sent = []
    for label, size in (("urgent_1kB", 1_000), ("urgent_256kB", 256_000)):
        share = URGENT * size if size > 10_000 else 0
        one.do("send", to=other.name, size=int(rate * 1e6 / 8 * (URGENT * GAP + seconds)) - share, step=500)
        time.sleep(seconds)
        sent.append((label, one.do("urgent", to=other.name, size=size, count=URGENT, gap=GAP)["at"]))
    arrived = other.answer()["at"]
    for index, (label, at) in enumerate(sent):
        there = arrived[index * URGENT : (index + 1) * URGENT]
        took = sorted(late - here for here, late in zip(at, there, strict=True))
        found[label] = [round(took[len(took) // 2], 4), round(took[-1], 4)]
    one.do("send", to=other.name, size=int(rate * 1e6 / 8 * 3), step=500)
    time.sleep(seconds)
    left = one.do("leave")["at"]
    other.do("leave")
    for peer in (one, other):
        peer.do("enter", view=2, members=[one.member, other.member])
    other.ask("receive", size=SUCCESSOR, step=900)
    one.do("send", to=other.name, size=SUCCESSOR, step=900)
    found["cancelled"] = round(other.answer()["ended"] - left, 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="100x200,500x100,1000x30", help="Mbit/s x ms of round trip")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--size", type=int, default=200, help="MB of a transfer")
    parser.add_argument("--repeat", type=int, default=1, help="warm transfers of which the median counts")
    parser.add_argument("--nat", action="store_true", help="the receiver cannot be dialled and opens the connections")
    parser.add_argument("--probe", action="store_true", help="only what a node itself measures; writes no results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    head = " ".join(f"{word:>6}" for word in ("probe", "cold", "warm", "plain"))
    if not options.probe:
        print(f"{'link':>12} {'case':<12} {head} {'aim':>5}   1 kB       256 kB     cancelled")
    for name in options.cases.split(","):
        for pair in options.links.split(","):
            rate, rtt = map(float, pair.split("x"))
            row = measure(rate, rtt, CASES[name], options)
            if options.probe:
                print(f"{rate:g} Mbit/s x {rtt:g} ms, {name}: {row['probe']:.0%} of what it carries", flush=True)
                continue
            rows.append({"rate_mbit": rate, "rtt_ms": rtt, "case": name, **row, "aim": CASES[name].aim})
            print(line(rows[-1]), flush=True)
    if options.probe:
        return
    what = {"size_mb": options.size, "nat": options.nat}
    result = {**what, "kernel": os.uname().release, "time": time.time(), "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    missed = [row for row in rows if row["aim"] and row["warm"] < row["aim"]]
    sys.exit(1 if missed else 0)


def line(row: dict[str, Any]) -> str:
    """A row of the table; parts in per cent, times in milliseconds (median / longest)."""
    parts = " ".join(f"{100 * row[key]:5.1f}%" for key in ("probe", "cold", "warm", "plain"))
    aim = f"{100 * row['aim']:4.0f}%" if row["aim"] else "    -"
    times = " ".join(f"{1e3 * row[key][0]:4.0f}/{1e3 * row[key][1]:<5.0f}" for key in ("urgent_1kB", "urgent_256kB"))
    late = "" if row["usable"] else f"   not usable: {row['why']}"
    link = f"{row['rate_mbit']:g} x {row['rtt_ms']:g}"
    return f"{link:>12} {row['case']:<12} {parts} {aim}   {times} {1e3 * row['cancelled']:5.0f}{late}"


if __name__ == "__main__":
    main()
