"""Links of a large network that nobody measured are estimated from those that were."""

import numpy

from farflung.coordinator.membership.measuring import ALL, LINKS, chosen
from farflung.scheduler import Device, Network
from farflung.scheduler.networks.network import ALL_MEASURED

COUNT = 200


def places(seed=0):
    """Where devices are, and what their lines carry: seconds one way follow from the places."""
    random = numpy.random.default_rng(seed)
    return random.integers(0, 5, COUNT), random.choice([1e7, 1e8, 1e9], COUNT)


def true_latency(city, one, other):
    return 0.001 + 0.02 * abs(int(city[one]) - int(city[other]))


def measured(city, line, without=()):
    names = [f"n{number}" for number in range(COUNT)]
    latency, rate = {}, {}
    for one, name in enumerate(names):
        for other in chosen(name, names[:one] + names[one + 1 :]):
            two = int(other[1:])
            latency[name, other] = true_latency(city, one, two)
            rate[name, other] = min(line[one], line[two])
    for pair in without:
        latency[pair] = latency[pair[::-1]] = rate[pair] = rate[pair[::-1]] = 0.0
    return Network.measured([Device(name) for name in names], latency, rate)


def test_few_nodes_measure_all_and_many_a_few_each():
    names = [f"n{number}" for number in range(1000)]
    assert chosen("a", names[:ALL]) == names[:ALL]
    picked = {name: chosen(name, [other for other in names if other != name]) for name in names}
    assert {len(found) for found in picked.values()} == {LINKS}
    asked = numpy.bincount([int(other[1:]) for found in picked.values() for other in found], minlength=1000)
    assert asked.max() < 3 * LINKS  # nobody is measured by much more than others
    assert chosen("a", names) == chosen("a", names)


def test_estimates_keep_the_order_of_near_and_far():
    city, line = places()
    network = measured(city, line)
    true = numpy.array([[true_latency(city, one, two) for two in range(COUNT)] for one in range(COUNT)])
    off = ~numpy.eye(COUNT, dtype=bool)
    error = numpy.abs(network.latency - true)[off]
    assert numpy.median(error) < 0.005 and numpy.quantile(error, 0.99) < 0.045
    near = (city[:, None] == city[None, :]) & off
    assert network.latency[near].mean() < 0.3 * network.latency[~near & off].mean()
    narrow = numpy.minimum(line[:, None], line[None, :])[off]
    assert numpy.mean(network.bandwidth[off] == narrow) > 0.9
    assert network.confidence is not None and set(numpy.unique(network.confidence)) == {0.0, 1.0}


def test_a_link_that_carries_nothing_is_no_way():
    city, line = places()
    network = measured(city, line, without=[("n0", "n1")])
    assert network.bandwidth[0, 1] == 0 and numpy.isinf(network.latency[0, 1])
    assert (network.latency[0, 2:] >= 0.001).all()  # not 0, over the broken one


def test_a_small_network_takes_the_default():
    names = [f"n{number}" for number in range(ALL_MEASURED)]
    network = Network.measured([Device(name) for name in names], {("n0", "n1"): 0.001}, {("n0", "n1"): 1e9})
    assert network.latency[0, 2] == 0.05 and network.bandwidth[0, 2] == 1e8
