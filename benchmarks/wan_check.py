"""How true the WAN emulator is: RTT, goodput and loss set beside measured, and what it costs. Needs root.

    python benchmarks/wan_check.py                 everything (about 8 minutes on a quiet machine)
    python benchmarks/wan_check.py goodput --rates 10,500 --rtts 1,250 --congestion cubic
    python benchmarks/wan_check.py loss aggregate  --json

Goodput is set to 0.956 of the rate, which is TCP's payload of full frames; with BBR to that times the share of its time
that it sends at all (`check.bbr_share`), measured over 10 s and one of its pauses, and its median second to 0.956.
A figure that was taken while the emulator itself was late is thrown away and taken again (at most 3 times); one that
stays rejected is printed as rejected. Exit status 1 where anything is off or rejected.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from farflung.deploy.wan import build, check, files, lab, lateness, probe
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.topology import GOODPUT, Change

TRIES = 3


def bench(name: str, hosts: int, **defaults: Any) -> Lab:
    """A lab whose hosts are all the same distance apart, with buffers in which one connection can fill a link."""
    table = {"name": name, "regions": {"bench": {"hosts": hosts}}, "defaults": defaults, "tcp_memory": "64MiB"}
    return build.up(files.parse(table, name, "wan_check"), options.backend)


def taken(made: Lab, measure: Callable[[], Any]) -> tuple[Any, lateness.Lateness | None, bool, str]:
    """A measurement with the emulator's lateness while it was taken; repeated while that is not good enough."""
    for _ in range(TRIES):
        before = made.stat()
        value = measure()
        late = lab.late_between(before, made.stat())
        usable, why = lateness.verdict(late, made.now.smallest_delay_ms()) if late else (True, "in the kernel")
        if usable:
            break
    return value, late, usable, why


def goodput(tell: Callable[..., None]) -> None:
    made = bench(f"bench{os.getpid()}", 2, delay_ms=1, rate="10mbit")
    try:
        for rtt in numbers(options.rtts):
            for rate in numbers(options.rates):
                changed = made.change(
                    Change(0, "set", "*->*", {"delay_ms": rtt / 2, "rate": rate * 1e6, "queue_ms": options.queue})
                )
                assert changed or made.now.links[0, 1].delay_ms == rtt / 2
                times, late, usable, why = taken(made, lambda: probe.rtt(made, [(0, 1)], count=30)[0, 1])
                middle = sorted(times)[len(times) // 2]
                tell("rtt", f"RTT {rtt:g} ms", rtt, middle, abs(middle - rtt) <= max(2, 0.05 * rtt), usable, why)
                for name in options.congestion.split(","):
                    warm = 1 + 20 * rtt / 1e3

                    length = 10 + check.bbr_pause(rtt) if name == "bbr" else 10.0

                    def measure(name: str = name, warm: float = warm, length: float = length) -> tuple[float, float]:
                        stream = probe.stream(made, (0, 1), length, warm, name, count=1)
                        seconds = sorted(stream.seconds(warm, warm + length))
                        return stream.rate(warm, warm + length) / 1e6, seconds[len(seconds) // 2] / 1e6

                    (mean, middle), late, usable, why = taken(made, measure)
                    wanted = rate * GOODPUT
                    ceiling = wanted * (check.bbr_share(rtt) if name == "bbr" else 1.0)
                    ok = abs(mean / ceiling - 1) <= 0.05 and abs(middle / wanted - 1) <= 0.05
                    what = f"{name} {rate:g} Mbit/s {rtt:g} ms (median second {middle:.4g})"
                    tell("goodput", what, ceiling, mean, ok, usable, why, core=late and late.core)
    finally:
        build.down(made.name)


def loss(tell: Callable[..., None]) -> None:
    made = bench(f"bench{os.getpid()}", 2, delay_ms=10, rate="100mbit")
    try:
        for share in (0.001, 0.01, 0.05):
            made.change(Change(0, "set", "*->*", {"loss": share}))
            sent = 10_000 if share >= 0.01 else 100_000  # 10 lost of 10,000 would be within a quarter by luck only
            got, _, usable, why = taken(made, lambda sent=sent: probe.loss(made, (0, 1), sent))
            found = 1 - got / sent
            tell(
                "loss",
                f"loss {share:.1%} of {sent} packets",
                share,
                found,
                abs(found - share) <= 0.25 * share,
                usable,
                why,
            )
    finally:
        build.down(made.name)


def aggregate(tell: Callable[..., None]) -> None:
    """Eight hosts in a ring that send 62.5 Mbit/s each, all at once, and an idle pair's round trip beside it."""
    made = bench(f"bench{os.getpid()}", 8, delay_ms=20, rate="62.5mbit")
    ring = [(i, (i + 1) % 8) for i in range(8)]
    try:

        def measure() -> tuple[list[float], float]:
            with ThreadPoolExecutor(9) as pool:
                streams = [pool.submit(probe.stream, made, pair, 10.0, 2.0, None, 1) for pair in ring]
                times = pool.submit(probe.rtt, made, [(0, 4)], 100, 0.1)
                rates = [s.result().rate(2, 12) / 1e6 for s in streams]
                echoes = sorted(times.result()[0, 4])
            return rates, echoes[len(echoes) // 2]

        (rates, echo), late, usable, why = taken(made, measure)
        wanted = 8 * 62.5 * GOODPUT
        core = late.core if late else 0.0
        tell(
            "aggregate",
            f"8 hosts, {min(rates):.1f}-{max(rates):.1f} Mbit/s each",
            wanted,
            sum(rates),
            abs(sum(rates) / wanted - 1) <= 0.05 and core < 1,
            usable,
            why,
            core=core,
        )
        tell("rtt", "RTT of an idle pair meanwhile", 40, echo, abs(echo - 40) <= 2, usable, why)
    finally:
        build.down(made.name)


def ready(tell: Callable[..., None]) -> None:
    """`wan check` of every ready topology, as it is."""
    for name in files.ready():
        made = build.up(dataclasses.replace(files.load(name), name=f"bench{os.getpid()}"), options.backend)
        try:
            report = check.check(made, say=lambda _: None)
        finally:
            build.down(made.name)
        bad = sum(bool(r.misses) for r in report.rows)
        tell("ready", f"check {name}", 0, bad, report.ok, True, report.why)


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main() -> int:
    failed = 0

    def tell(
        kind: str, what: str, wanted: float, value: float, ok: bool, usable: bool, why: str, core: float | None = None
    ) -> None:
        nonlocal failed
        mark = "rejected" if not usable else "ok" if ok else "OFF"
        failed += mark != "ok"
        if options.json:
            print(
                json.dumps(
                    {
                        "kind": kind,
                        "what": what,
                        "set": wanted,
                        "measured": value,
                        "mark": mark,
                        "why": why,
                        "core": core,
                    }
                ),
                flush=True,
            )
        else:
            cost = "" if core is None else f"{core:5.2f} core"
            print(
                f"{what:<52} {wanted:>9.4g} {value:>9.4g}  {mark:<8} {cost}  {'' if mark == 'ok' else why}", flush=True
            )

    parts = {"goodput": goodput, "loss": loss, "aggregate": aggregate, "ready": ready}
    for part in options.parts or ["goodput", "loss", "aggregate"]:
        parts[part](tell)
    return int(failed > 0)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("parts", nargs="*", choices=["goodput", "loss", "aggregate", "ready", []])
parser.add_argument("--rates", default="10,100,500", help="Mbit/s")
parser.add_argument("--rtts", default="1,20,100,250", help="ms")
parser.add_argument("--congestion", default="bbr,cubic")
parser.add_argument("--queue", type=float, default=100.0, help="ms that the bottleneck's queue holds")
parser.add_argument("--backend", default="auto")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
