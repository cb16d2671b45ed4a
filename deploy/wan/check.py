"""Checks whether a running WAN is as its topology says: every pair's RTT, goodput and loss, set and measured.

The judgement is pure; probe.py measures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import lateness, probe
from .lab import Lab, late_between, load
from .topology import GOODPUT, Link, Pair, Topology

LOSSY, LOSSLESS = 10_000, 500  # packets that measure a direction's loss
AT_ONCE = 600e6  # bit/s that may be measured at the same time: a relay carries that within one core
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """The set and measured values of one ordered pair. RTT in ms, goodput in bit/s of TCP payload, loss of this
    direction as a fraction; None where not measured."""

    source: str
    target: str
    set_rtt: float
    set_goodput: float | None
    set_loss: float
    dialled: bool  # whether the source can open a connection to the target
    rtt: float | None = None
    goodput: float | None = None
    loss: float | None = None
    packets: int = 0  # sent to measure the loss
    misses: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """A whole check. `ok` is false where a measured value is outside its tolerance or the emulator itself was late."""

    name: str
    backend: str
    rows: tuple[Row, ...]
    late: lateness.Lateness | None
    ok: bool
    why: str
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def expectation(now: Topology, pair: Pair) -> Row:
    """The values that a pair should show in the present topology `now`."""
    i, j = pair
    links = now.links
    narrow = now.narrowest(pair)
    cut = links[pair].cut or links[pair[::-1]].cut
    dialled = not now.hosts[j].nat and not cut
    return Row(
        now.hosts[i].name,
        now.hosts[j].name,
        now.rtt_ms(pair),
        None if narrow is None else narrow * GOODPUT,
        1.0 if links[pair].cut else links[pair].loss,
        dialled,
    )


def judge(row: Row, jitter_ms: float = 0.0, lossy: bool = False) -> tuple[str, ...]:
    """In words, the values of a pair that are outside their tolerances; empty where none is.

    RTT within 2 ms or 5 %, plus the jitter of both directions; goodput within 5 % (where packets are lost, TCP decides
    and not the link, so goodput is only an upper bound); loss within a quarter or three standard deviations."""
    misses = []
    if row.dialled and row.rtt is None:
        misses.append("no answer")
    if row.rtt is not None and abs(row.rtt - row.set_rtt) > max(2.0, 0.05 * row.set_rtt) + 1.5 * jitter_ms:
        misses.append(f"RTT {row.rtt:.1f} ms instead of {row.set_rtt:.1f}")
    if row.goodput is not None and row.set_goodput is not None:
        share = row.goodput / row.set_goodput
        if share > 1.05 or (share < 0.95 and not lossy):
            misses.append(f"goodput {row.goodput / 1e6:.1f} Mbit/s instead of {row.set_goodput / 1e6:.1f}")
    if row.loss is not None and row.packets:
        chance = math.sqrt(row.set_loss * (1 - row.set_loss) / row.packets)
        if abs(row.loss - row.set_loss) > max(0.25 * row.set_loss, 3 * chance, 1.01 / row.packets):
            misses.append(f"loss {row.loss:.2%} instead of {row.set_loss:.2%}")
    return tuple(misses)


def bbr_pause(rtt_ms: float) -> float:
    """Seconds for which BBR (version 1, Linux' tcp_bbr.c) leaves a link almost empty each time its shortest round trip
    is 10 s old: one round trip until nothing is in flight, then four packets at a time for 200 ms. It stops at the
    first answer after that, so the pause is a whole number of round trips."""
    round_trip = rtt_ms / 1e3
    return round_trip + max(0.2, round_trip * math.ceil(0.2 / round_trip) if round_trip else 0.0)


def bbr_share(rtt_ms: float) -> float:
    """The largest part of a link that BBR can use over minutes: 10 s of every (10 s + a pause)."""
    return 10 / (10 + bbr_pause(rtt_ms))


def batches(topology: Topology, pairs: Iterable[Pair], at_once: float = AT_ONCE) -> list[list[Pair]]:
    """Pairs that may be measured at the same time: no host sends or receives twice, and the sum of their rates stays
    within `at_once` bit/s (a pair above that is measured alone)."""
    groups: list[tuple[float, set[int], set[int], list[Pair]]] = []
    for pair in sorted(pairs, key=lambda p: (-(topology.narrowest(p) or at_once), p)):
        rate = topology.narrowest(pair) or at_once
        for g, (total, sources, targets, members) in enumerate(groups):
            if total + rate <= at_once and pair[0] not in sources | targets and pair[1] not in sources | targets:
                groups[g] = (total + rate, sources | {pair[0]}, targets | {pair[1]}, [*members, pair])
                break
        else:
            groups.append((rate, {pair[0]}, {pair[1]}, [pair]))
    return [members for _, _, _, members in groups]


def check(lab: Lab, quick: bool = False, say: Say = lambda _: None) -> Report:
    """Measure a lab. `quick`: only round trips, in seconds; else also every pair's goodput and, by packets, its
    loss."""
    lab.require_alive()
    now, links = lab.now, lab.now.links
    pairs = sorted(links)
    rows = {pair: expectation(now, pair) for pair in pairs}
    before = lab.stat()
    jitter = {pair: links[pair].jitter_ms + links[pair[::-1]].jitter_ms for pair in pairs}

    def update(pair: Pair, **values: Any) -> None:
        rows[pair] = dataclasses.replace(rows[pair], **values)

    say(f"round trips of {len(pairs)} pairs")
    silent = [p for p in pairs if not rows[p].dialled]
    for pair, times in probe.rtt(lab, pairs, count=30 if any(jitter.values()) else 20).items():
        if times:
            update(pair, rtt=_middle(times, jitter[pair] > 0))
    notes = [
        f"{rows[p].target} answers {rows[p].source}, though it cannot be dialled"
        for p in silent
        if rows[p].rtt is not None
    ]
    if not quick:
        able = [p for p in pairs if _reachable(now, p)]
        counts = {p: LOSSY if links[p].loss else LOSSLESS for p in able}
        for number, group in enumerate(groups := _rounds(able)):
            say(f"loss {number + 1}/{len(groups)}: " + ", ".join(f"{rows[p].source}->{rows[p].target}" for p in group))
            with ThreadPoolExecutor(len(group)) as pool:
                for pair, got in zip(group, pool.map(lambda p: probe.loss(lab, p, counts[p]), group), strict=True):
                    update(pair, loss=1 - got / counts[pair], packets=counts[pair])
        groups = batches(now, able)
        for number, group in enumerate(groups):
            say(
                f"goodput {number + 1}/{len(groups)}: "
                + ", ".join(f"{rows[p].source}->{rows[p].target}" for p in group)
            )
            with ThreadPoolExecutor(len(group)) as pool:
                for pair, carried in zip(group, pool.map(lambda p: _goodput(lab, p), group), strict=True):
                    update(pair, goodput=carried)
        for pair in [p for p in able if _short(rows[p]) and not _lossy(links, p)]:
            say(f"goodput again: {rows[pair].source}->{rows[pair].target}")
            update(pair, goodput=max(_goodput(lab, pair, patience=2), rows[pair].goodput or 0.0))
    late = late_between(before, lab.stat())
    remarks = [] if quick else _remarks(now, [pair for pair in pairs if rows[pair].goodput], lab)
    if load(lab.name).now != now:
        notes.append("it was changed while it was measured")
    for pair in pairs:
        update(pair, misses=judge(rows[pair], jitter[pair], _lossy(links, pair)))
    return conclude(lab, [rows[p] for p in pairs], late, notes, remarks)


def _remarks(now: Topology, measured: Sequence[Pair], lab: Lab) -> list[str]:
    """Remarks about the goodput of BBR."""
    slow = [pair for pair in measured if probe.congestion(lab, pair[0]) == "bbr"]
    if not slow:
        return []
    rtt = max(now.rtt_ms(pair) for pair in slow)
    return [
        f"goodput is that of a whole second. TCP here is BBR, which pauses for {bbr_pause(rtt):.2f} s after every 10 s "
        f"where the round trip is {rtt:.0f} ms: over minutes it carries at most {bbr_share(rtt):.1%} of that"
    ]


def conclude(
    lab: Lab, rows: Sequence[Row], late: lateness.Lateness | None, notes: Sequence[str], remarks: Sequence[str] = ()
) -> Report:
    """The report with its one sentence. `notes` are reasons not to trust it, `remarks` only explain."""
    missed = [r for r in rows if r.misses]
    kept_up, how = lateness.verdict(late, lab.now.smallest_delay_ms()) if late else (True, "the kernel does the timing")
    if not kept_up:
        why = how
    elif missed:
        first = missed[0]
        why = f"{len(missed)} of {len(rows)} pairs miss: {first.source}->{first.target} {', '.join(first.misses)}"
    elif notes:
        why = notes[0]
    else:
        why = f"all {len(rows)} pairs are as set; {how}"
    return Report(
        lab.name,
        lab.backend,
        tuple(rows),
        late,
        kept_up and not missed and not notes,
        why,
        (*lab.notes, *notes, *remarks),
    )


def _lossy(links: Mapping[Pair, Link], pair: Pair) -> bool:
    """Whether TCP's reaction to losses, not the rate, limits a pair's goodput."""
    return any(links[p].loss or links[p].jitter_ms for p in (pair, pair[::-1]))


def _short(row: Row) -> bool:
    """Whether the goodput is too low, so that it is measured again for longer: TCP may have started badly, while a link
    never carries more than its rate."""
    return row.goodput is not None and row.set_goodput is not None and row.goodput < 0.95 * row.set_goodput


def _goodput(lab: Lab, pair: Pair, patience: float = 1.0) -> float:
    """Payload bit/s of a pair; 0 where no connection came about."""
    round_trip = lab.now.rtt_ms(pair) / 1e3
    warm_up = patience * (0.3 + 8 * round_trip)
    lossy = _lossy(lab.now.links, pair)
    # after a lost segment the receiver gets a second's bytes at once, so only a mean over several seconds is fair
    stream = probe.stream(lab, pair, seconds=patience * (5 + 10 * round_trip), warm_up=warm_up, early=not lossy)
    if stream.error:
        return 0.0
    last = stream.times[-1]
    narrow = lab.now.narrowest(pair)
    second = stream.rate(last - 1, last)
    # it ended early because this second was full; otherwise take the mean over the time after the warm-up
    ended_early = not lossy and narrow and probe.full(second, narrow)
    return second if ended_early else stream.rate(warm_up, last)


def _reachable(now: Topology, pair: Pair) -> bool:
    i, j = pair
    return not (now.hosts[i].nat and now.hosts[j].nat) and not now.links[pair].cut and not now.links[pair[::-1]].cut


def _middle(times: list[float], noisy: bool) -> float:
    """The median of an idle pair's round trips; where there is jitter, the mean."""
    return sum(times) / len(times) if noisy else sorted(times)[len(times) // 2]


def _rounds(pairs: list[Pair]) -> list[list[Pair]]:
    """Up to three pairs of different hosts at a time: loss is measured with few packets a second."""
    left, rounds = list(pairs), []
    while left:
        group: list[Pair] = []
        for pair in left:
            if len(group) < 3 and not {i for p in group for i in p} & set(pair):
                group.append(pair)
        left = [p for p in left if p not in group]
        rounds.append(group)
    return rounds


def table(report: Report) -> list[str]:
    """The report as lines for a person."""
    lines = [
        f"{report.name} ({report.backend})",
        f"{'pair':<28} {'RTT ms set':>10} {'is':>8}   {'Mbit/s set':>10} {'is':>8}   {'loss set':>8} {'is':>8}",
    ]
    for r in report.rows:
        pair = f"{r.source} -> {r.target}"
        rtt = "-" if r.rtt is None else f"{r.rtt:.1f}"
        goodput = "-" if r.goodput is None else f"{r.goodput / 1e6:.1f}"
        wanted = "-" if r.set_goodput is None else f"{r.set_goodput / 1e6:.1f}"
        loss = "-" if r.loss is None else f"{r.loss:.2%}"
        mark = "" if not r.misses else "   " + "; ".join(r.misses)
        mark = mark or ("" if r.dialled else "   cut" if r.set_loss == 1 else "   cannot be dialled, as set")
        lines.append(
            f"{pair:<28} {r.set_rtt:>10.1f} {rtt:>8}   {wanted:>10} {goodput:>8}   {r.set_loss:>8.2%} {loss:>8}{mark}"
        )
    return [*lines, *(f"note: {n}" for n in report.notes), ("ok: " if report.ok else "NOT AS SET: ") + report.why]
