"""The published cost of DT-FM (Yuan et al. 2022), exactly.

    w_dp(i,j) = latency + 8 * c_dp / (k * bandwidth)        c_dp = fp32 gradient of a stage, GB
    w_pp(i,j) = latency + 8 * c_pp / bandwidth              c_pp = a pipeline's whole batch of activations, GiB
    DataP     = max over groups and members of the sum of 2 w_dp to the others
    PipeP     = shortest open path over the groups, a step = bottleneck matching of w_pp
    TOTAL     = DataP + 2 PipeP

The formula ignores that hops overlap, so it serves only to compare with published numbers. The paper's constants are
kept with their mistakes (hidden size 2024, GiB against Gbit). Where the two directions of a link differ, w is the mean
of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy

from ..errors import PlanError
from ..networks.devices import Matrix
from ..networks.network import Network
from .matching import bottleneck_matching
from .paths import short_path

PARAMETERS_GB = 1.3 * 4
BATCH_SEQUENCES = 1e6 / 2048
HIDDEN, SEQUENCE = 2024, 2048
Groups = numpy.ndarray
"""int [stages, pipelines] of device indices."""


@dataclass(frozen=True)
class DtfmCost:
    """TOTAL and its parts in seconds, the order of the groups on the path, and the matching of each step, as pipelines.

    pipelines: int [pipelines, stages] of device indices.
    """

    total: float
    data: float
    pipe: float
    pipelines: numpy.ndarray


class Dtfm:
    """The cost for one network and one shape."""

    def __init__(self, network: Network, stages: int, pipelines: int) -> None:
        if stages * pipelines > len(network):
            raise PlanError(
                f"{pipelines} pipelines of {stages} stages need {stages * pipelines} devices: {len(network)} joined"
            )
        self.stages, self.pipelines = stages, pipelines
        data_gb = PARAMETERS_GB / stages
        pipe_gb = HIDDEN * SEQUENCE * 2 * (BATCH_SEQUENCES / pipelines) / 2**30
        with numpy.errstate(divide="ignore"):
            gbps = network.bandwidth / 1e9
            data = network.latency + 8 * data_gb / (pipelines * gbps)
            pipe = network.latency + 8 * pipe_gb / gbps
        self.data, self.pipe = ((matrix + matrix.T) / 2 for matrix in (data, pipe))
        for matrix in (self.data, self.pipe):
            matrix[~numpy.isfinite(matrix)] = 1e6
            numpy.fill_diagonal(matrix, 0.0)
        self.kind = _link_rows(self.pipe, network)

    def data_seconds(self, groups: Groups) -> Matrix:
        """float64 [stages]: the slowest member's sum of 2 w_dp in each group."""
        return numpy.array([2 * self.data[numpy.ix_(group, group)].sum(axis=1).max() for group in groups])

    def cost(self, groups: Groups) -> DtfmCost:
        """The exact cost of a partition into groups."""
        count = len(groups)
        between = numpy.zeros((count, count))
        partner: dict[tuple[int, int], numpy.ndarray] = {}
        for one in range(count):
            for two in range(one + 1, count):
                square = self.pipe[numpy.ix_(groups[one], groups[two])]
                value, match = bottleneck_matching(square)
                between[one, two] = between[two, one] = value
                partner[one, two], partner[two, one] = match, numpy.argsort(match)
        pipe, order = short_path(between)
        data = float(self.data_seconds(groups).max())
        columns = [groups[order[0]]]
        at = numpy.arange(groups.shape[1])
        for left, right in pairwise(order):
            at = partner[left, right][at]
            columns.append(groups[right][at])
        return DtfmCost(data + 2 * pipe, data, pipe, numpy.array(columns).T)

    def cost_of(self, pipelines: numpy.ndarray) -> DtfmCost:
        """The cost of the groups of a plan, int [pipelines, stages]."""
        return self.cost(pipelines.T)


def _link_rows(pipe: Matrix, network: Network) -> numpy.ndarray:
    """int [n]: a label for each device; devices of one region with equal links have the same label."""
    labels: dict[bytes, int] = {}
    regions = numpy.array([device.region for device in network.devices])
    result = []
    for device in range(len(network)):
        parts = [regions[device].encode()] if regions[device] else [str(device).encode()]
        for region in dict.fromkeys(regions.tolist()):
            values = numpy.unique(pipe[device, (regions == region) & (numpy.arange(len(network)) != device)])
            parts.append(numpy.round(values, 9).tobytes())
        result.append(labels.setdefault(b"|".join(parts), len(labels)))
    return numpy.array(result)
