"""Rebuilds the run's state at a restart from the database and the checkpoints."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from ....scheduler.plans import Plan
from ...checkpoints.checkpoints import Checkpoints
from ...checkpoints.manifest import read_manifest
from ...membership import signals as s
from ...membership.resuming.learnt import from_json, unsent_in
from ...membership.resuming.resume import planned_nodes
from ...membership.rules import Rules
from ...membership.state import State
from ...observe.status import position_of
from ...planning.measured import Measured
from ...store.store import Store
from ..context import RunContext
from .stand import reported_in, stand_in


def measured_before(context: RunContext) -> Measured:
    """The measurements of devices and links that earlier coordinators of this run stored."""
    store, now = context.store, context.clock()
    devices = {row.name: json.loads(row.device or "{}") for row in store.nodes.all()}
    links = {(source, target): (latency, rate) for source, target, latency, rate in store.links.all()}
    when = {pair: now - age for pair, age in store.links.ages(time.time()).items()}
    return Measured(context.job, context.facts, devices, links, when)


def restored(rules: Rules, store: Store, checkpoints: Checkpoints) -> State:
    """The machine's state at a start: no node is in the run, and nodes of the last view, if there was one, may come
    back."""
    row, newest, steps = store.views.last(), store.checkpoints.all(), store.steps.newest(1)
    state = State(rules, slowest_s=steps[-1].seconds if steps else 0.0)
    if newest:
        last = newest[-1]
        position = position_of(last)
        path = checkpoints.path(last.step)
        unsent = unsent_in(read_manifest(path)) if path is not None else None
        state = replace(state, newest=position, unsent=unsent, kept=from_json(store.get("kept") or ""))
    if row is None:
        return state
    members = tuple(s.Member(*member) for member in json.loads(row.members))
    plan = Plan.from_json(row.plan)
    stand = stand_in(store.get("stand") or "", row.number)
    view = s.Announcement(
        row.number,
        plan,
        members,
        position_of(row),
        sections=stand.sections,
        checkpoint=row.checkpoint,
        norm=stand.norm,
        why=row.why,
    )
    finished = steps[-1].step if steps and steps[-1].view == row.number else 0
    reported = reported_in(store.get("reported") or "", view, finished)
    state = replace(state, number=row.number, view=view, reported=reported, restored=True)
    return replace(state, eligible=planned_nodes(plan, view))
