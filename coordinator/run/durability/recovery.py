"""The checkpoint from which a start resumes: the newest whole one, in the run's folder or at its target.

The database is updated to the checkpoints that exist. Where coordinators on several machines share the database, the
database decides instead which checkpoints of the folder count: another coordinator may have made some of them void
since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ....job.changes import refused_changes
from ....job.data.facts import Facts
from ....job.schema import Job
from ....job.shared import for_nodes
from ....proto.errors import FarflungError, JobError
from ...checkpoints.checkpoints import Checkpoints, Complete
from ...checkpoints.manifest import position_in, read_manifest
from ...checkpoints.targets import Target, TargetAway, TargetDamaged, is_remote
from ...store.rows import CheckpointRow
from ...store.store import Store

HERE = "checkpoints"
"""The folder below the state folder from which checkpoints are uploaded to a target."""


@dataclass(frozen=True)
class Found:
    """The result of `find_checkpoints`. ``there``: steps at the target. ``passed``: a sentence for everything that is
    wrong."""

    checkpoints: Checkpoints
    target: Target | None
    there: set[int]
    passed: list[str] = field(default_factory=list)


def find_checkpoints(job: Job, state: Path, store: Store, facts: Facts) -> Found:
    """List, check and fetch checkpoints. JobError: no installed package supports the target's kind of address, or it
    has checkpoints of another job.

    FarflungError: the target does not answer, and its checkpoints are needed or nothing was ever written there.
    """
    about = {
        "run": store.get("run"),
        "job": for_nodes(job).model_dump(mode="json"),  # nodes may fetch manifests
        "facts": facts.model_dump(mode="json"),
    }
    to = job.checkpoint.to
    target = Target(to, job.checkpoint.options) if is_remote(to) else None
    folder = state / (HERE if target else Path(to).expanduser())
    checkpoints = Checkpoints(folder, 1 if target else job.checkpoint.keep, about)
    checkpoints.clear_receiving()
    listed = {row.step for row in store.checkpoints.all()}
    resumed = store.views.last() is not None
    newest, passed = checkpoints.newest(listed if store.server and resumed else None)
    there: set[int] = set()
    if target is not None:
        newest, there = _at_target(target, checkpoints, newest, listed, resumed, passed)
    if newest is not None and not resumed:
        _check_job(job, newest)
    if store.server is not None and target is None:
        passed.append(
            f"checkpoints are in a folder of this machine ({folder}): a coordinator that takes over elsewhere "
            "has them only if that folder is shared; or write checkpoint.to = an address, s3://..."
        )
    _agree(store, newest, checkpoints, target, there)
    return Found(checkpoints, target, there, passed)


def _at_target(
    target: Target,
    checkpoints: Checkpoints,
    newest: Complete | None,
    listed: set[int],
    resumed: bool,
    passed: list[str],
) -> tuple[Complete | None, set[int]]:
    """(the newest checkpoint of folder and target, fetched if necessary; the steps at the target)."""
    try:
        if not resumed:
            target.check()
        there = set(target.steps())
        for step in sorted(there, reverse=True):
            if newest is not None and step < newest.step:
                break
            try:
                if newest is not None and target.manifest(step).get("digests") == read_manifest(newest.path)["digests"]:
                    break
                if newest is not None and step == newest.step:
                    there.discard(step)  # it belongs to a history that was given up, and will be replaced
                    break
                path = target.fetch(step, checkpoints.folder)
            except TargetDamaged as error:
                there.discard(step)
                passed.append(f"{error.message}; an older one is taken")
                continue
            newest = Complete(step, path, position_in(read_manifest(path)))
            checkpoints.brought(step)
            break
        return newest, there
    except TargetAway as error:
        # Resuming without the target is right only if it can't have a newer checkpoint.
        if not resumed or max(listed, default=0) > (newest.step if newest else 0):
            raise
        passed.append(f"{error.message}; going on with what is in {checkpoints.folder}")
        return newest, set()


def _check_job(job: Job, newest: Complete) -> None:
    """A run that begins with another state folder's checkpoints has to have the same job."""
    try:
        before = Job.model_validate_json(json.dumps(read_manifest(newest.path)["job"]))
    except (KeyError, ValueError):
        hint = "give checkpoint.to another place, or remove it"
        raise FarflungError(f"the checkpoint in {newest.path} is of another version of farflung", hint) from None
    if changed := refused_changes(for_nodes(before), for_nodes(job)):
        what = "; ".join(changed)
        raise JobError(f"checkpoint.to has checkpoints of another job: {what}", "give checkpoint.to another place")


def _agree(
    store: Store, newest: Complete | None, checkpoints: Checkpoints, target: Target | None, there: set[int]
) -> None:
    for row in store.checkpoints.all():
        gone = checkpoints.path(row.step) is None and row.step not in there
        if gone or newest is None or row.step > newest.step:
            store.checkpoints.forget(row.step)
    if newest is not None and newest.step not in {row.step for row in store.checkpoints.all()}:
        position, path = newest.position, newest.path
        address = target.address(newest.step) if target and newest.step in there else str(path)
        redo = json.dumps(list(position.redo))
        store.checkpoints.put(CheckpointRow(newest.step, address, position.cursor, redo, path.stat().st_mtime))
