"""The network: devices and the directed links between them, from a cluster file or from live measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy

from ..errors import PlanError
from .blocks import WRITTEN_OUT, Blocks, Gathered
from .clusters import Cluster, parse_cluster, read_cluster
from .devices import Device, Matrix, check_device
from .guesses import cautious, fill_bandwidth, fill_latency, slowest_lines

if TYPE_CHECKING:
    import networkx

DEFAULT_LATENCY = 0.05
DEFAULT_BANDWIDTH = 100e6
"""Assumed for a link without a measurement: 50 ms one way, 100 Mbit/s."""
ALL_MEASURED = 33
"""Up to this many devices every link is measured; with more, some links are measured and the others estimated."""
NOISE = 0.12
"""Relative spread of repeated measurements of one link; a smaller gain than this is taken for noise."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices: one-way latency in seconds, bandwidth in bit/s.

    confidence is 1 for a fresh measurement and 0 for a guess; age is the seconds since the measurement.
    """

    latency: float = DEFAULT_LATENCY
    bandwidth: float = DEFAULT_BANDWIDTH
    confidence: float = 1.0
    age: float = 0.0


class Network:
    """Devices and directed links, as arrays for the search and as a networkx graph for everything else.

    latency: float64 [n, n] seconds, bandwidth: float64 [n, n] bit/s, row = sender, column = receiver. The diagonal is
    0 seconds and infinite bandwidth. A link that does not exist has infinite latency and bandwidth 0.
    site_upload, site_download: region -> bit/s that all links leaving or entering the region share.

    Where both are given as Blocks and there are more than WRITTEN_OUT devices, they stay tables by region; index them
    by [rows, columns].
    """

    def __init__(
        self,
        devices: Sequence[Device],
        latency: Matrix | Blocks,
        bandwidth: Matrix | Blocks,
        *,
        confidence: Matrix | None = None,
        age: Matrix | None = None,
        site_upload: Mapping[str, float] | None = None,
        site_download: Mapping[str, float] | None = None,
    ) -> None:
        self.devices = tuple(devices)
        count = len(self.devices)
        if count == 0:
            raise PlanError("a network needs at least one device")
        names = [device.name for device in self.devices]
        if len(set(names)) != count:
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(f"two devices are called {twice!r}")
        for device in self.devices:
            check_device(device)
        if count <= WRITTEN_OUT:
            latency, bandwidth = (one.written_out() if isinstance(one, Blocks) else one for one in (latency, bandwidth))
        for what, matrix in (("latency", latency), ("bandwidth", bandwidth)):
            if matrix.shape != (count, count):
                raise PlanError(f"{what} must be a {count} x {count} matrix, not {' x '.join(map(str, matrix.shape))}")
            entries = matrix.table if isinstance(matrix, Blocks) else matrix
            if numpy.isnan(entries).any() or (entries < 0).any():
                raise PlanError(f"{what} has a negative or undefined entry")
        self.names = tuple(names)
        self.index = {name: position for position, name in enumerate(names)}
        if isinstance(latency, Blocks) and isinstance(bandwidth, Blocks):
            missing = numpy.where(bandwidth.table == 0, math.inf, latency.table)
            self.latency = cast(Matrix, Blocks(latency.home, missing, 0.0))
            self.bandwidth = cast(Matrix, Blocks(bandwidth.home, bandwidth.table, math.inf))
        else:
            self.latency, self.bandwidth = (
                numpy.array(one.written_out() if isinstance(one, Blocks) else one, dtype=numpy.float64)
                for one in (latency, bandwidth)
            )
            numpy.fill_diagonal(self.latency, 0.0)
            numpy.fill_diagonal(self.bandwidth, math.inf)
            self.latency[self.bandwidth == 0] = math.inf
        self.confidence = confidence
        self.age = age
        self.site_upload = dict(site_upload or {})
        self.site_download = dict(site_download or {})

    def __len__(self) -> int:
        return len(self.devices)

    @classmethod
    def load(cls, path: Path | str) -> Network:
        """The network of a cluster file (JSON or TOML, see docs/scheduling.md). PlanError names what is wrong."""
        return cls._of(*read_cluster(Path(path)))

    @classmethod
    def from_mapping(cls, cluster: Mapping[str, Any], where: str = "the cluster") -> Network:
        """The network of a cluster file's content."""
        return cls._of(parse_cluster(cluster, where), where)

    @classmethod
    def _of(cls, cluster: Cluster, where: str) -> Network:
        network = cls(**cluster._asdict())
        parts = components(network)
        if len(parts) > 1:
            one, two = (network.names[part[0]] for part in parts[:2])
            raise PlanError(
                f"{where}: the network falls into {len(parts)} parts with no link between them both ways: "
                f"{one!r} and {two!r} are in different ones"
            )
        return network

    @classmethod
    def measured(
        cls,
        devices: Sequence[Device],
        latency: Mapping[tuple[str, str], float],
        bandwidth: Mapping[tuple[str, str], float],
        *,
        confidence: Mapping[tuple[str, str], float] | None = None,
        age: Mapping[tuple[str, str], float] | None = None,
        default: Link | None = None,
    ) -> Network:
        """The network of a coordinator's live measurements: (from, to) -> one-way seconds, and bit/s.

        A pair that was measured in one direction only has that number in both. A pair that was never measured gets
        `default` (50 ms, 100 Mbit/s) or the slowest measured link of either end, with confidence 0; without a `default`
        and with more than ALL_MEASURED devices its numbers are estimated from the measured links (guesses.py). Pairs
        that name an unknown device are ignored. A bandwidth of 0 means that the two can't reach each other. A rate with
        a confidence below 1 counts as less than was measured (guesses.py).
        """
        fallback = default or Link(confidence=0.0)
        index = {device.name: position for position, device in enumerate(devices)}
        count = len(devices)

        def measured(values: Mapping[tuple[str, str], float]) -> Matrix:
            result = numpy.full((count, count), numpy.nan)
            for (sender, receiver), value in values.items():
                if sender in index and receiver in index:
                    result[index[sender], index[receiver]] = value
            return numpy.where(numpy.isnan(result), result.T, result)

        def matrix(values: Mapping[tuple[str, str], float], missing: float) -> Matrix:
            result = measured(values)
            return numpy.where(numpy.isnan(result), missing, result)

        known = dict.fromkeys(bandwidth, 1.0)
        if default is not None or count <= ALL_MEASURED:
            seconds, rates = matrix(latency, fallback.latency), measured(bandwidth)
            rates = numpy.where(numpy.isnan(rates), slowest_lines(rates, fallback.bandwidth), rates)
        else:
            seconds, rates = measured(latency), measured(bandwidth)
            seconds[rates == 0] = numpy.nan  # no path may use a link that carries nothing
            seconds = fill_latency(seconds, fallback.latency)
            rates = fill_bandwidth(rates, fallback.bandwidth)
        sure = matrix(confidence or known, 0.0)
        return cls(
            devices,
            seconds,
            cautious(rates, sure, slowest_lines(measured(bandwidth), fallback.bandwidth)) if confidence else rates,
            confidence=sure,
            age=matrix(age or {}, 0.0),
        )

    @cached_property
    def tflops(self) -> Matrix:
        """float64 [n]: each device's speed."""
        return numpy.array([device.tflops for device in self.devices])

    @cached_property
    def memory(self) -> Matrix:
        """float64 [n]: bytes, infinite where not limited."""
        return numpy.array(
            [math.inf if device.memory_bytes is None else device.memory_bytes for device in self.devices]
        )

    @cached_property
    def upload(self) -> Matrix:
        """float64 [n]: bit/s that a device's outgoing links share."""
        return numpy.array([math.inf if device.upload is None else device.upload for device in self.devices])

    @cached_property
    def download(self) -> Matrix:
        """float64 [n]: bit/s that a device's incoming links share."""
        return numpy.array([math.inf if device.download is None else device.download for device in self.devices])

    @cached_property
    def evictions(self) -> Matrix:
        """float64 [n]: times an hour that each device is taken away."""
        return numpy.array([device.evictions for device in self.devices])

    @cached_property
    def rate(self) -> Matrix:
        """float64 [n, n]: bit/s that one flow alone gets: the link, the sender's uplink, the receiver's downlink."""
        if not self.written_out:
            up, down, links = self.upload, self.download, self.bandwidth

            def rates(rows: numpy.ndarray, columns: numpy.ndarray) -> Matrix:
                narrow = numpy.minimum(links[rows, columns], numpy.minimum(up[rows], down[columns]))
                return numpy.where(rows == columns, math.inf, narrow)

            return cast(Matrix, Gathered(len(self), rates))
        rate = numpy.minimum(self.bandwidth, numpy.minimum(self.upload[:, None], self.download[None, :]))
        numpy.fill_diagonal(rate, math.inf)
        return rate

    @property
    def written_out(self) -> bool:
        """Whether latency, bandwidth and rate are arrays, and not tables by region."""
        return not isinstance(self.latency, Blocks)

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions, in order of first appearance."""
        return tuple(dict.fromkeys(device.region for device in self.devices))

    def link(self, sender: str, receiver: str) -> Link:
        """The link from one device to another. PlanError for an unknown name."""
        for name in (sender, receiver):
            if name not in self.index:
                raise PlanError(f"the network has no device {name!r}")
        row, column = self.index[sender], self.index[receiver]
        return Link(
            float(self.latency[row, column]),
            float(self.bandwidth[row, column]),
            1.0 if self.confidence is None else float(self.confidence[row, column]),
            0.0 if self.age is None else float(self.age[row, column]),
        )

    @cached_property
    def graph(self) -> networkx.DiGraph[str]:
        """The directed graph: nodes carry `device`, edges carry `latency`, `bandwidth`, `confidence` and `age`."""
        import networkx  # importing networkx takes 0.1 s, and few callers need the graph

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for device in self.devices:
            graph.add_node(device.name, device=device)
        for sender in self.names:
            for receiver in self.names:
                if sender != receiver and self.bandwidth[self.index[sender], self.index[receiver]] > 0:
                    link = self.link(sender, receiver)
                    graph.add_edge(
                        sender,
                        receiver,
                        latency=link.latency,
                        bandwidth=link.bandwidth,
                        confidence=link.confidence,
                        age=link.age,
                    )
        return graph

    def subset(self, names: Sequence[str]) -> Network:
        """The network of some of its devices, in the order given."""
        if tuple(names) == self.names:
            return self
        picked = numpy.array([self.index[name] for name in names])
        square = numpy.ix_(picked, picked)
        latency: Any = self.latency
        bandwidth: Any = self.bandwidth
        return Network(
            [self.devices[position] for position in picked],
            latency[square] if self.written_out else latency.take(picked),
            bandwidth[square] if self.written_out else bandwidth.take(picked),
            confidence=None if self.confidence is None else self.confidence[square],
            age=None if self.age is None else self.age[square],
            site_upload=self.site_upload,
            site_download=self.site_download,
        )

    def with_speed(self, tflops: Mapping[str, float]) -> Network:
        """The same network with other device speeds."""
        return self.with_devices(
            [replace(device, tflops=tflops.get(device.name, device.tflops)) for device in self.devices]
        )

    def with_devices(self, devices: Sequence[Device]) -> Network:
        """The same links between devices that have other speeds, memories or prices."""
        return Network(
            devices,
            self.latency,
            self.bandwidth,
            confidence=self.confidence,
            age=self.age,
            site_upload=self.site_upload,
            site_download=self.site_download,
        )


def components(network: Network) -> list[list[int]]:
    """The connected components, as device indices, the largest first: inside one, each device can reach each other one
    in both directions."""
    if not network.written_out:
        return _parts_by_region(cast(Blocks, network.bandwidth))
    linked = (network.bandwidth > 0) & (network.bandwidth.T > 0)
    left = set(range(len(network)))
    parts: list[list[int]] = []
    while left:
        stack = [min(left)]
        part = set(stack)
        while stack:
            near = {int(other) for other in numpy.flatnonzero(linked[stack.pop()])} - part
            part |= near
            stack += near
        left -= part
        parts.append(sorted(part))
    return sorted(parts, key=lambda part: (-len(part), part))


def _parts_by_region(bandwidth: Blocks) -> list[list[int]]:
    """The same by regions: devices of one region that can't reach each other may be connected through another
    region."""
    table = bandwidth.table
    linked = (table > 0) & (table.T > 0)
    here = numpy.unique(bandwidth.home).tolist()
    left, parts = set(here), []
    while left:
        stack = [min(left)]
        part = set(stack)
        while stack:
            near = {region for region in here if linked[stack[-1], region]} - part
            stack.pop()
            part |= near
            stack += near
        left -= part
        members = numpy.flatnonzero(numpy.isin(bandwidth.home, list(part))).tolist()
        lonely = len(part) == 1 and not linked[next(iter(part)), next(iter(part))]
        parts += [[device] for device in members] if lonely else [members]
    return sorted(parts, key=lambda part: (-len(part), part))
