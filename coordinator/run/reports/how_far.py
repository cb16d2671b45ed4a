"""How far a run has come, and where it ends, in steps. Pure."""

from __future__ import annotations

from ....job.data.facts import Facts
from ....job.schema import Job
from ....proto.control_pb2 import Ledger
from ...checkpoints.acceptance import finished
from ...membership.state import State


def last_step(state: State, job: Job, facts: Facts) -> int:
    """The run's last step, as the view counts it: samples that are trained again take steps of their own."""
    view = state.pinned or state.view
    if job.run.steps is not None or view is None:
        return facts.steps
    return view.position.last_step((job.run.epochs or 1) * facts.samples, job.train.batch)


def reached(state: State, ledger: Ledger, job: Job) -> int:
    """The step that the view has finished, as more than one of its nodes say; 0 without a view.

    ``ledger``: up to where rows of the view are complete.
    """
    view = state.view
    if view is None:
        return 0
    begin = max(view.position.step, ledger.step if ledger.view == view.number else 0)
    return finished(view.plan, begin, state.reported, job)
