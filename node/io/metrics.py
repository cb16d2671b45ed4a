"""A node's own metrics in Prometheus' text format, served by its I/O process, which counts all traffic in any case.

docs/observing.md has the same table of names, and a test compares the two.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...proto.control_pb2 import Report, StepDone
from ...proto.errors import FarflungError
from ...proto.words.link import split_address
from ..peers.traffic import Traffic


@dataclass(frozen=True)
class Name:
    """A metric: its scraped name, ``gauge`` or ``counter``, its label (empty: none), and what it tells."""

    name: str
    kind: str
    label: str
    about: str


NAMES = (
    Name("farflung_own_step", "gauge", "", "the last step that the node finished"),
    Name("farflung_own_view", "gauge", "", "the view that it trains in; 0 for none"),
    Name("farflung_own_steps_total", "counter", "", "steps finished since the node joined"),
    Name("farflung_own_time_seconds_total", "counter", "part", "compute, codec, wire, waiting, other"),
    Name("farflung_own_trainer_idle_seconds", "gauge", "", "since the trainer last did something"),
    Name("farflung_own_sent_bytes_total", "counter", "kind", "updates, activations, other"),
    Name("farflung_own_peer_sent_bytes_total", "counter", "peer", "sent on the link to a peer"),
    Name("farflung_own_dropped_messages_total", "counter", "why", "messages that were thrown away"),
)


class NodeMetrics(Collector):
    """The collector that a scrape reads. The event loop writes the numbers and the server's thread reads them without a
    lock: each number is read by itself."""

    def __init__(self, traffic: Traffic, view: Callable[[], int], idle_s: Callable[[], float]) -> None:
        self._traffic, self._view, self._idle_s = traffic, view, idle_s
        self._step, self._steps = 0, 0
        self._parts = dict.fromkeys(("compute", "codec", "wire", "waiting", "other"), 0.0)

    def report(self, report: Report) -> None:
        """Take the numbers out of a report of the trainer."""
        if report.WhichOneof("kind") == "step":
            self._step, self._steps = report.step.step, self._steps + 1
            for part, seconds in parts_of(report.step).items():
                self._parts[part] += seconds

    def describe(self) -> Iterable[Metric]:
        """No metrics: with them, registering this collector would call `collect`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of NAMES."""
        values: dict[str, dict[str, float]] = {
            "farflung_own_step": {"": self._step},
            "farflung_own_view": {"": self._view()},
            "farflung_own_steps_total": {"": self._steps},
            "farflung_own_time_seconds_total": dict(self._parts),
            "farflung_own_trainer_idle_seconds": {"": self._idle_s()},
            "farflung_own_sent_bytes_total": dict(self._traffic.sent),
            "farflung_own_peer_sent_bytes_total": dict(self._traffic.sent_to),
            "farflung_own_dropped_messages_total": dict(self._traffic.dropped),
        }
        for name in NAMES:
            family = CounterMetricFamily if name.kind == "counter" else GaugeMetricFamily
            made = family(name.name, name.about, labels=[name.label] if name.label else [])
            for label, value in values[name.name].items():
                made.add_metric([label] if name.label else [], value)
            yield made

    def serve(self, address: str) -> Callable[[], None]:
        """Answer scrapes at HOST:PORT from a thread. Returns a function that stops it. OSError: the address cannot be
        used."""
        host, port = split_address(address, "--metrics")
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        server, thread = start_http_server(port, host, registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


def parts_of(done: StepDone) -> dict[str, float]:
    """Seconds of each part of a step."""
    known = {
        "compute": done.compute_seconds,
        "codec": done.codec_seconds,
        "wire": done.wire_seconds,
        "waiting": done.waiting_seconds,
    }
    return {**known, "other": max(0.0, done.seconds - sum(known.values()))}


def check_address(address: str | None) -> str:
    """The address of ``--metrics``, or an empty string for None. FarflungError when it is not HOST:PORT."""
    if address is None:
        return ""
    if split_address(address, "--metrics")[1] == 0:
        raise FarflungError("--metrics needs a port that Prometheus can be told", "e.g. --metrics 127.0.0.1:9464")
    return address


def check_free(address: str) -> None:
    """FarflungError if nothing can listen at this address of ``--metrics``. Called before the node joins a run."""
    if address:
        host, port = split_address(address, "--metrics")
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            raise FarflungError(
                f"nothing can listen at --metrics {address}: {error.strerror or error}", "choose another port"
            ) from error
