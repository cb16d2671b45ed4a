"""What would help a plan most: a few single changes, each simulated as the plan is, and the best of them in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy

from ..networks.network import Network
from ..workloads.workload import Workload

Timed = Callable[[Network, Workload], float]
"""Seconds of a step of the plan on another network, or of another workload with the same layers."""
GAIN = 0.01
"""A change that shortens a step by less than this part is not mentioned."""


def best_help(
    network: Network, workload: Workload, pair: tuple[int, int], stages: int, pipelines: int, now: float, timed: Timed
) -> str:
    """The change that shortens a step most, in words, with the seconds of a step after it. pair: the two devices of the
    bottleneck; the same device twice where compute is the bottleneck. now: seconds of a step without a change."""
    made = changes(network, workload, pair, stages, pipelines)
    trials = [(timed(other, changed), words) for words, other, changed in made]
    took, words = min(trials, default=(now, ""), key=lambda item: item[0])
    if took > now * (1 - GAIN):
        return f"no single change that was tried gains {GAIN:.0%}"
    return f"{words}: {took:.3g} s a step instead of {now:.3g} s"


def changes(
    network: Network, workload: Workload, pair: tuple[int, int], stages: int, pipelines: int
) -> Iterator[tuple[str, Network, Workload]]:
    """(words, network, workload) of each change."""
    sender, receiver = pair
    if sender == receiver:
        name = network.names[sender]
        twice = network.with_speed({name: network.devices[sender].tflops * 2})
        yield f"a device twice as fast in the place of {name}", twice, workload
    else:
        yield from faster_lines(network, workload, sender, receiver)
    if stages > 1:
        halves = tuple(replace(one, forward=one.forward / 2, backward=one.backward / 2) for one in workload.codecs)
        fewer = replace(
            workload,
            activation_bits=workload.activation_bits / 2,
            gradient_bits=workload.gradient_bits / 2,
            codecs=halves,
        )
        yield "half the bits of activations and gradients", network, fewer
    if pipelines > 1 or (workload.tied and stages > 1):
        bits = workload.update_bits
        half = tuple(each / 2 for each in bits) if isinstance(bits, tuple) else bits / 2
        yield "half the bits of updates", network, replace(workload, update_bits=half)
        if not workload.overlap and workload.mode == "delta":
            yield "rounds that overlap the next step", network, replace(workload, overlap=1)


def faster_lines(
    network: Network, workload: Workload, sender: int, receiver: int
) -> Iterator[tuple[str, Network, Workload]]:
    """The link with twice the bandwidth in both directions; or, where a device's own line limits the link, that
    line."""
    names, rate = network.names, float(network.bandwidth[sender, receiver])
    up, down = float(network.upload[sender]), float(network.download[receiver])
    if min(up, down) <= rate:
        at, what = (sender, "uplink") if up <= down else (receiver, "downlink")
        devices = list(network.devices)
        one = devices[at]
        devices[at] = (
            replace(one, upload=2 * (one.upload or 0.0))
            if what == "uplink"
            else replace(one, download=2 * (one.download or 0.0))
        )
        words = f"twice the {what} of {names[at]} ({min(up, down) / 1e6:.4g} Mbit/s)"
        yield words, network.with_devices(devices), workload
        return
    if not network.written_out:
        return  # links are one table by region here: it can't hold a change of a single link
    bandwidth = network.bandwidth.copy()
    for row, column in ((sender, receiver), (receiver, sender)):
        bandwidth[row, column] *= 2
    faster = Network(
        network.devices,
        numpy.where(numpy.isinf(network.latency), 0.0, network.latency),
        bandwidth,
        site_upload=network.site_upload,
        site_download=network.site_download,
    )
    latency = network.latency[sender, receiver]
    words = f"{names[sender]} > {names[receiver]} ({rate / 1e6:.4g} Mbit/s, {latency * 1e3:.3g} ms)"
    yield f"twice the bandwidth of {words}", faster, workload
