"""The one error of this room."""


class PlanError(ValueError):
    """A network, a workload or a wish that no plan can satisfy: one sentence that says what and why."""
