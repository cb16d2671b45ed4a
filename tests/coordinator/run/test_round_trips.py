"""The round trips of control streams: measured by a question, never longer than what a node may pretend."""

from farflung.coordinator.run.nodes.round_trips import EVERY_S, LONGEST_S, RoundTrips
from farflung.proto.connections.patience import patience
from farflung.proto.control_pb2 import ClockAnswer


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_satellite_has_the_patience_of_its_round_trip():
    clock, asked = Clock(), []
    trips = RoundTrips(lambda name, order: asked.append((name, order.clock.number)), clock)
    trips.came("a")
    assert trips.of("a") == 0.0 and trips.of("b") == 0.0
    clock.now += 2.0
    trips.answered("a", ClockAnswer(number=7))  # a profile's
    assert trips.of("a") == 0.0
    trips.answered("a", ClockAnswer(number=asked[-1][1]))
    assert trips.of("a") == 2.0 and patience(2.0, trips.of("a")) == 12.0


def test_it_is_asked_again_and_the_shorter_of_two_counts():
    clock, asked = Clock(), []
    trips = RoundTrips(lambda name, order: asked.append(order.clock.number), clock)
    for seconds, shortest in ((50.0, LONGEST_S), (0.3, 0.3), (4.0, 0.3), (4.0, 4.0)):
        trips.came("a") if not asked else trips.tick(["a"])
        clock.now += seconds
        trips.answered("a", ClockAnswer(number=asked[-1]))
        assert round(trips.of("a"), 6) == shortest
        trips.tick(["a"])
        clock.now += EVERY_S + 1
    assert len(asked) == 4
