"""The coordinator's metrics in Prometheus' text: one table of names, filled from the status record when it is scraped.

docs/observing.md has the same table, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ... import __version__
from .advice import phase_of
from .observed import PARTS, Observed

Record = Mapping[str, Any]
PHASES = ("preparing_start", "waiting", "flushing", "preparing", "training", "paused", "done", "failed", "interrupted")
_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Name:
    """A metric: its name as it is scraped, ``gauge``, ``counter`` or ``histogram``, its labels, what it says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


NAMES = (
    Name("farflung_run_info", "gauge", ("run", "name", "version"), "always 1"),
    Name("farflung_phase", "gauge", ("phase",), "1 for the phase that the run is in, 0 for the others"),
    Name("farflung_step", "gauge", (), "the last finished step"),
    Name("farflung_steps_planned", "gauge", (), "the run's last step"),
    Name("farflung_view", "gauge", (), "number of the newest view"),
    Name("farflung_loss_nats_per_token", "gauge", (), "training loss of the last step"),
    Name("farflung_eval_loss_nats_per_token", "gauge", (), "loss of the last evaluation"),
    Name("farflung_eval_set_loss_nats_per_token", "gauge", ("set",), "its loss on one of eval.sets"),
    Name("farflung_step_duration_seconds", "histogram", (), "steps finished since the coordinator started"),
    Name("farflung_samples_total", "counter", (), "samples trained since the coordinator started"),
    Name("farflung_tokens_total", "counter", (), "target tokens trained since the coordinator started"),
    Name("farflung_sent_bytes_total", "counter", ("kind",), "sent by all nodes: updates, activations, other"),
    Name("farflung_dense_bytes_total", "counter", (), "what ring all-reduce and activations in fp16 would have sent"),
    Name("farflung_warnings_total", "counter", (), "warnings since the coordinator started"),
    Name("farflung_nodes", "gauge", ("role",), "nodes that are in: trains, spare, waits"),
    Name("farflung_node_heartbeat_age_seconds", "gauge", ("node",), "since the node was last heard"),
    Name("farflung_node_utilisation_ratio", "gauge", ("node",), "part of a step in the model, optimiser and codecs"),
    Name("farflung_node_time_seconds_total", "counter", ("node", "part"), "compute, codec, wire, waiting, other"),
    Name("farflung_link_sent_bytes_total", "counter", ("source", "target"), "sent on the link"),
    Name("farflung_link_bandwidth_bytes_per_second", "gauge", ("source", "target"), "as measured"),
    Name("farflung_link_latency_seconds", "gauge", ("source", "target"), "one way, as measured"),
    Name("farflung_bottleneck_load_ratio", "gauge", ("kind", "node"), "how busy the bottleneck is; absent without one"),
    Name("farflung_checkpoint_step", "gauge", (), "step of the newest checkpoint"),
)


class Counts:
    """Sums over the events of a run since this process started: what counters need, which never go back."""

    def __init__(self) -> None:
        self.steps = self.samples = self.tokens = self.dense = self.warnings = 0
        self.seconds = 0.0
        self.sent = {"updates": 0, "activations": 0, "other": 0}
        self.buckets = [0] * (len(_BUCKETS) + 1)

    def add(self, event: Record) -> None:
        """Take one event of docs/reference.md in."""
        if event["event"] == "warning":
            self.warnings += 1
        if event["event"] != "step":
            return
        seconds = float(event["seconds"])
        self.steps, self.seconds = self.steps + 1, self.seconds + seconds
        self.samples += int(event["samples"])
        self.tokens += round(float(event["tokens_per_second"]) * seconds)
        self.dense += int(event["bytes_dense"])
        for kind in self.sent:
            self.sent[kind] += int(event[f"bytes_{kind}"])
        self.buckets[sum(seconds > limit for limit in _BUCKETS)] += 1


class RunCollector(Collector):
    """Makes the metrics of ``record()``, ``counts`` and ``observed`` at the moment of a scrape."""

    def __init__(self, record: Callable[[], Record], counts: Counts, observed: Observed) -> None:
        self._record, self._counts, self._observed = record, counts, observed

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not make a record."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of NAMES, those without a value left out."""
        values = values_of(self._record(), self._counts, self._observed)
        for name in NAMES:
            if name.kind == "histogram":
                yield _histogram(name, self._counts)
                continue
            family = CounterMetricFamily if name.kind == "counter" else GaugeMetricFamily
            made = family(name.name, name.about, labels=name.labels)
            for labels, value in values.get(name.name, ()):
                made.add_metric(labels, value)
            yield made


Values = dict[str, list[tuple[list[str], float]]]


def values_of(record: Record, counts: Counts, observed: Observed) -> Values:
    """name -> [(label values, value)]."""
    found: Values = {}

    def put(name: str, value: Any, *labels: Any) -> None:
        if value is not None:
            found.setdefault(name, []).append(([str(label) for label in labels], float(value)))

    put("farflung_run_info", 1, record.get("run"), record.get("name"), __version__)
    for phase in PHASES:
        put("farflung_phase", phase_of(record) == phase, phase)
    put("farflung_step", record.get("step"))
    put("farflung_steps_planned", record.get("steps"))
    put("farflung_view", (record.get("view") or {}).get("view"))
    put("farflung_loss_nats_per_token", record.get("loss"))
    put("farflung_eval_loss_nats_per_token", (record.get("eval") or {}).get("loss"))
    for name, tested in ((record.get("eval") or {}).get("sets") or {}).items():
        put("farflung_eval_set_loss_nats_per_token", tested["loss"], name)
    put("farflung_samples_total", counts.samples)
    put("farflung_tokens_total", counts.tokens)
    for kind, count in counts.sent.items():
        put("farflung_sent_bytes_total", count, kind)
    put("farflung_dense_bytes_total", counts.dense)
    put("farflung_warnings_total", counts.warnings)
    present = [node for node in record.get("nodes") or () if node["in"]]
    for role in ("trains", "spare", "waits"):
        put("farflung_nodes", sum(str(node["role"]).startswith(role) for node in present), role)
    for node in present:
        put("farflung_node_heartbeat_age_seconds", node.get("heard_s"), node["node"])
        parts = node.get("parts")
        put("farflung_node_utilisation_ratio", parts["compute"] + parts["codec"] if parts else None, node["node"])
    for name, sums in observed.parts_total.items():
        for part, seconds in zip(PARTS, sums, strict=True):
            put("farflung_node_time_seconds_total", seconds, name, part)
    for (source, target), count in observed.sent_total.items():
        put("farflung_link_sent_bytes_total", count, source, target)
    names = {node["node"] for node in present}
    for link in record.get("links") or ():
        if {link["from"], link["to"]} <= names and link["bandwidth_bps"]:
            put("farflung_link_bandwidth_bytes_per_second", link["bandwidth_bps"] / 8, link["from"], link["to"])
            put("farflung_link_latency_seconds", link["latency_s"], link["from"], link["to"])
    held = record.get("bottleneck")
    if held:
        put("farflung_bottleneck_load_ratio", held["load"], held["kind"], held["node"])
    put("farflung_checkpoint_step", (record.get("checkpoints") or [{}])[-1].get("step"))
    return found


def registry_of(record: Callable[[], Record], counts: Counts, observed: Observed) -> CollectorRegistry:
    """A registry of its own: these metrics and this process's."""
    registry = CollectorRegistry()
    registry.register(RunCollector(record, counts, observed))
    ProcessCollector(registry=registry)
    return registry


def text_of(registry: CollectorRegistry) -> tuple[bytes, str]:
    """(text, content type) of a scrape."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _histogram(name: Name, counts: Counts) -> Metric:
    made = HistogramMetricFamily(name.name, name.about)
    reached, buckets = 0, []
    for limit, count in zip((*map(str, map(float, _BUCKETS)), "+Inf"), counts.buckets, strict=True):
        reached += count
        buckets.append((limit, reached))
    made.add_metric([], buckets, counts.seconds)
    return made
