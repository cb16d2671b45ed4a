"""A planner for tests that wait for their plans."""

from dataclasses import replace

from farflung.coordinator.membership.questions import Question
from farflung.coordinator.planning.planner import Search, search


def planner_of(workload, device_of, links, seed=0, reached=lambda: 1.0, least=1):
    """A planner that works a plan out while its caller waits. ``links()``: what was measured by then."""

    def plan(names, current, broken):
        devices = tuple(device_of(name) for name in names)
        measured = tuple((*pair, *found) for pair, found in links().items())
        asked = Question(tuple(names), current, broken)
        return search(Search(replace(workload, reached=reached()), asked, devices, measured, least, seed))

    return plan
