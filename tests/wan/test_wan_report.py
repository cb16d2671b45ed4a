"""Judging a check, the table, the picture, the emulator's own lateness."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.deploy.wan import check, cli, files, lateness, picture
from farflung.deploy.wan.check import Report, Row
from farflung.deploy.wan.errors import WanError
from farflung.deploy.wan.lab import Lab

ROW = Row("a/0", "b/0", 50.0, 95.6e6, 0.0, True, rtt=50.4, goodput=95.0e6)


@pytest.mark.parametrize(
    ("values", "misses"),
    [
        ({}, ()),
        ({"rtt": 51.9}, ()),
        ({"rtt": 53.0}, ("RTT 53.0 ms instead of 50.0",)),
        ({"set_rtt": 300.0, "rtt": 314.0}, ()),
        ({"set_rtt": 1.0, "rtt": 2.9}, ()),
        ({"rtt": None}, ("no answer",)),
        ({"rtt": None, "dialled": False}, ()),
        ({"goodput": 80e6}, ("goodput 80.0 Mbit/s instead of 95.6",)),
        ({"goodput": 102e6}, ("goodput 102.0 Mbit/s instead of 95.6",)),
        ({"set_goodput": None, "goodput": 9e9}, ()),
        ({"set_loss": 0.01, "loss": 0.0121, "packets": 10_000}, ()),
        ({"set_loss": 0.01, "loss": 0.02, "packets": 10_000}, ("loss 2.00% instead of 1.00%",)),
        ({"set_loss": 0.0, "loss": 0.0001, "packets": 10_000}, ()),
        ({"set_loss": 0.0, "loss": 0.001, "packets": 10_000}, ("loss 0.10% instead of 0.00%",)),
    ],
)
def test_what_a_pair_misses(values: dict, misses: tuple[str, ...]) -> None:
    assert check.judge(dataclasses.replace(ROW, **values)) == misses


def test_where_packets_are_lost_tcp_decides_and_not_the_link() -> None:
    slow = dataclasses.replace(ROW, goodput=3e6)
    assert check.judge(slow, lossy=True) == () and check.judge(slow)
    assert check.judge(dataclasses.replace(ROW, rtt=56.0), jitter_ms=10) == ()


@given(st.integers(2, 6), st.floats(1e6, 2e9))
def test_batches_measure_every_pair_once_and_never_a_host_twice(hosts: int, rate: float) -> None:
    topology = files.parse({"regions": {"a": {"hosts": hosts}}, "defaults": {"rate": f"{rate:.0f}bit"}}, "b", "b")
    groups = check.batches(topology, topology.links)
    assert sorted(p for g in groups for p in g) == sorted(topology.links)
    for group in groups:
        ends = [i for pair in group for i in pair]
        assert len(set(ends)) == len(ends)
        assert len(group) == 1 or len(group) * rate <= check.AT_ONCE * 1.01


def lab() -> Lab:
    topology = files.parse({"regions": {"a": {}, "b": {}}, "defaults": {"delay_ms": 25}}, "two", "two")
    return Lab("two", "relay", topology, topology, [], {}, [])


def test_a_check_through_a_late_emulator_is_rejected() -> None:
    fine = lateness.Lateness(1000, 0.05, 0.5, 2.0, 0.3, 10.0)
    good = check.conclude(lab(), [ROW], fine, [])
    assert good.ok and good.why.startswith("all 1 pairs are as set; the emulator kept up")
    late = check.conclude(lab(), [ROW], dataclasses.replace(fine, p99_ms=7.0), [])
    assert not late.ok and late.why.startswith("the emulator was late")
    busy = check.conclude(lab(), [ROW], dataclasses.replace(fine, core=0.95), [])
    assert not busy.ok and "0.8 core is allowed" in busy.why
    full = check.conclude(lab(), [ROW], dataclasses.replace(fine, missed=3), [])
    assert not full.ok and full.why.startswith("the emulator missed 3 packets")
    missed = check.conclude(lab(), [dataclasses.replace(ROW, misses=("no answer",))], fine, [])
    assert not missed.ok and missed.why == "1 of 1 pairs miss: a/0->b/0 no answer"


def test_bbr_pauses_for_a_round_trip_and_whole_round_trips_of_200_ms() -> None:
    pauses = [(0, 0.2), (1, 0.201), (20, 0.22), (90, 0.36), (250, 0.5), (476, 0.952)]
    assert [round(check.bbr_pause(rtt), 6) for rtt, _ in pauses] == [pause for _, pause in pauses]
    assert check.bbr_share(250) == pytest.approx(10 / 10.5)


def test_a_remark_is_printed_and_no_reason_to_reject() -> None:
    report = check.conclude(lab(), [ROW], None, [], ["TCP here is BBR"])
    assert report.ok and "note: TCP here is BBR" in check.table(report)
    assert not check.conclude(lab(), [ROW], None, ["it was changed while it was measured"]).ok


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=300))
def test_percentiles_are_the_upper_edge_of_their_step(lates: list[float]) -> None:
    counts = [0] * (lateness.STEPS + 1)
    for late in lates:
        counts[min(lateness.STEPS, int(late / lateness.STEP))] += 1
    for share in (0.5, 0.99):
        edge = lateness.percentile(counts, share) / 1e3
        below = sum(late <= edge + 1e-12 for late in lates)
        assert below >= share * len(lates) - 1e-9 or edge >= lateness.STEPS * lateness.STEP


def test_lateness_between_two_moments() -> None:
    before, after = [5] + [0] * lateness.STEPS, [5, 90, *[0] * (lateness.STEPS - 2), 10]
    late = lateness.between(before, after, cpu=3.0, seconds=10.0)
    assert (late.packets, late.p50_ms, late.core) == (100, pytest.approx(0.1), 0.3)
    assert late.p99_ms > 100
    assert lateness.verdict(lateness.between(before, before, 0.0, 10.0), 25)[0]
    assert lateness.verdict(lateness.Lateness(9, 0, 1.9, 2, 0.1, 1), 0.1)[0], "2 ms are always allowed"
    assert not lateness.verdict(lateness.Lateness(9, 0, 2.4, 3, 0.1, 1), 0.1)[0]
    assert lateness.verdict(lateness.Lateness(9, 0, 4.9, 9, 0.1, 1), 100)[0]
    assert not lateness.verdict(lateness.Lateness(9, 0, 5.1, 9, 0.1, 1), 100)[0]


def report() -> Report:
    rows = (
        ROW,
        dataclasses.replace(ROW, source="b/0", target="a/0", rtt=70.0, misses=("RTT 70.0 ms instead of 50.0",)),
        Row("a/0", "<c>&/0", 5.0, None, 0.01, False),
    )
    return Report("two", "relay", rows, None, False, "1 of 3 pairs miss", ("a note",))


def test_the_picture_is_a_whole_svg_with_every_pair() -> None:
    text = picture.svg(report())
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    words = " ".join(root.itertext())
    for part in ("50.0 ms → 70.0", "50.0 ms → 50.4", "95.6 Mbit/s → 95", "<c>&/0", "Not as set"):
        assert part in words
    assert text.count("<title>") == 3


def test_a_picture_that_cannot_be_written_is_refused_before_measuring() -> None:
    for path in ("check.png", "/no/such/folder/check.svg"):
        with pytest.raises(WanError, match="cannot draw"):
            cli.check("lan", path)


def test_colours_tell_how_far_apart() -> None:
    assert picture.colour(ROW) == "#d7efdb"
    assert picture.colour(dataclasses.replace(ROW, goodput=92e6)) == "#fff1c2"
    assert picture.colour(dataclasses.replace(ROW, misses=("x",))) == "#f7cfc9"
    assert picture.colour(dataclasses.replace(ROW, rtt=None, goodput=None)) == "#eeeeee"


def test_the_table_and_json() -> None:
    lines = check.table(report())
    assert "RTT 70.0 ms instead of 50.0" in "\n".join(lines)
    assert lines[-1] == "NOT AS SET: 1 of 3 pairs miss"
    assert "cannot be dialled, as set" in "\n".join(lines)
    gone = dataclasses.replace(ROW, set_loss=1.0, dialled=False, rtt=None, goodput=None)
    cut = dataclasses.replace(report(), rows=(gone,))
    assert check.table(cut)[2].endswith("   cut") and ">cut<" in picture.svg(cut)
    assert json.loads(json.dumps(report().plain()))["rows"][0]["rtt"] == 50.4
