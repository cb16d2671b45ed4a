"""Machines that are taken away cost everybody view changes: they train where they are worth that."""

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, PlanError, Workload, plan, predict
from farflung.scheduler.networks.devices import VIEW_CHANGE_S

JOB = Workload(tuple(Layer(f"l{at}", 2_000_000, 4e11, 200_000) for at in range(4)), 40, stages=1, update_bits=0.1)


def network(evictions: float, tflops: float = 10.0) -> Network:
    """Four steady machines, and a spot machine."""
    devices = [Device(f"n{at}", tflops=10.0, price=1.0) for at in range(4)]
    devices.append(Device("spot", tflops=tflops, price=0.3, evictions=evictions))
    return Network(devices, numpy.full((5, 5), 0.005), numpy.full((5, 5), 1e9))


def test_a_machine_is_worth_what_it_brings_less_the_view_changes() -> None:
    """It brings a fifth of the speed; a view change each minute takes a third of the time."""
    assert "spot" in plan(network(1.0), JOB, time_limit=20)
    often = plan(network(60.0), JOB, time_limit=20)
    assert "spot" not in often and len(often.nodes) == 4
    assert "spot" not in plan(network(10.0, tflops=0.5), JOB, time_limit=20)


def test_a_prediction_counts_the_time_that_is_lost() -> None:
    made = plan(network(6.0), JOB, time_limit=20)
    told, steady = predict(network(6.0), JOB, made), predict(network(0.0), JOB, made)
    assert told.step_s == steady.step_s
    lost = 1 + 6.0 * VIEW_CHANGE_S / 3600
    assert told.tokens_per_second == pytest.approx(steady.tokens_per_second / lost)
    assert told.cost_per_million_tokens == pytest.approx(steady.cost_per_million_tokens * lost)
    assert "view changes" in str(told.seconds) and "view changes" not in str(steady.seconds)


def test_cluster_files_say_how_often() -> None:
    cluster = {
        "regions": ["a"], "devices_per_region": {"a": 2}, "latency_ms": [[1]], "bandwidth_gbps": [[1]],
        "devices": [{"region": "a", "evictions_per_hour": 0.5}],
    }  # fmt: skip
    assert [device.evictions for device in Network.from_mapping(cluster).devices] == [0.5, 0.0]
    with pytest.raises(PlanError, match="evictions must be from 0 to 60 an hour, not 100"):
        Network.from_mapping({**cluster, "devices": [{"region": "a", "evictions_per_hour": 100}]})
