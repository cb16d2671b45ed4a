"""The finished step and the last step of a run. Pure."""

from __future__ import annotations

from ....job.data.facts import Facts
from ....job.schema import Job
from ....proto.control_pb2 import Ledger
from ...checkpoints.acceptance import finished
from ...membership.state import State


def last_step(state: State, job: Job, facts: Facts) -> int:
    """The run's last step in the view's count: samples that are trained again take further steps."""
    view = state.pinned or state.view
    if job.run.steps is not None or view is None:
        return facts.steps
    return view.position.last_step((job.run.epochs or 1) * facts.samples, job.train.batch)


def reached(state: State, ledger: Ledger, job: Job) -> int:
    """The step that the view has finished, by the reports of more than one of its nodes; 0 without a view.

    ``ledger``: the last step whose row is complete.
    """
    view = state.view
    if view is None:
        return 0
    begin = max(view.position.step, ledger.step if ledger.view == view.number else 0)
    return finished(view.plan, begin, state.reported, job)
