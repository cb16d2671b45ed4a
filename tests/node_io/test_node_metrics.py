"""A node's own metrics: what its I/O process counts, over HTTP."""

import re
import urllib.request
from pathlib import Path

import pytest
from numbered import numbered
from ports import free_port
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from wires import receive

from farflung.node.io.metrics import NAMES, NodeMetrics, check_address
from farflung.node.peers.traffic import ACTIVATIONS, Traffic
from farflung.proto.control_pb2 import Heartbeat, Report, StepDone
from farflung.proto.data_pb2 import Kind
from farflung.proto.errors import FarflungError

ROOT = Path(__file__).parents[2]


def test_what_a_scrape_finds():
    traffic = Traffic()
    made = NodeMetrics(traffic, lambda: 3, lambda: 0.5)
    traffic.wrote([(ACTIVATIONS, 95)], "b")
    traffic.dropped["twice"] += 2
    done = StepDone(step=9, seconds=2.0, compute_seconds=1.0, codec_seconds=0.25, waiting_seconds=0.5)
    for report in (Report(step=done), Report(step=done), Report(heartbeat=Heartbeat())):
        made.report(report)
    registry = CollectorRegistry()
    registry.register(made)
    text = generate_latest(registry).decode()
    for line in (
        "farflung_own_step 9.0",
        "farflung_own_view 3.0",
        "farflung_own_steps_total 2.0",
        'farflung_own_time_seconds_total{part="compute"} 2.0',
        'farflung_own_time_seconds_total{part="other"} 0.5',
        'farflung_own_sent_bytes_total{kind="activations"} 100.0',
        'farflung_own_peer_sent_bytes_total{peer="b"} 100.0',
        'farflung_own_dropped_messages_total{why="twice"} 2.0',
        "farflung_own_trainer_idle_seconds 0.5",
    ):
        assert line in text.splitlines(), line
    named = set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))
    assert {name.removesuffix("_total") for name in named} == {one.name.removesuffix("_total") for one in NAMES}


def test_a_node_answers_prometheus(thread_nodes):
    address = f"127.0.0.1:{free_port()}"
    a, b = thread_nodes.start("a", metrics=address), thread_nodes.start("b")
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.ACTIVATION), bytes(100_000))
    receive(b)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    [sent] = re.findall(r'farflung_own_peer_sent_bytes_total\{peer="b"\} (\S+)', text)
    assert 100_000 < float(sent) < 101_000 and "farflung_own_view 1.0" in text
    with pytest.raises(FarflungError, match=f"cannot show metrics at {address}"):
        thread_nodes.start("c", metrics=address)


def test_addresses():
    assert check_address(None) == "" and check_address("127.0.0.1:9464") == "127.0.0.1:9464"
    for wrong in ("9464", "127.0.0.1:0"):
        with pytest.raises(FarflungError, match="--metrics"):
            check_address(wrong)


def test_the_documents_have_the_table():
    text = (ROOT / "docs" / "observing.md").read_text()
    rows = [f"| `{one.name}` | {one.kind} | {f'`{one.label}`' if one.label else ''} | {one.about} |" for one in NAMES]
    missing = [row for row in rows if row not in text]
    assert not missing, "\n".join(missing)
    assert set(re.findall(r"^\| `(farflung_own_\w+)`", text, re.MULTILINE)) == {one.name for one in NAMES}
