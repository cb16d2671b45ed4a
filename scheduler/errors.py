"""PlanError: the one error that `scheduler` raises on purpose."""


class PlanError(ValueError):
    """No plan can satisfy this network, workload or wish. The message is one sentence: what is impossible, and why."""
