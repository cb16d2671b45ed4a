"""A planner for tests that wait for their plans."""

from farflung.coordinator.planning.planner import questions_of


def planner_of(*about, **more):
    """A planner that works a plan out while its caller waits; arguments: of ``questions_of``."""
    questions = questions_of(*about, **more)
    return lambda names, current, broken: questions(names, current, broken)()
