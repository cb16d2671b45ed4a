"""Falls back to an older checkpoint during the run, when members can't read one or do not agree on its weights.

Its files are read again or set aside, and the newest checkpoint that remains is found, in the run's folder or at its
target. Everything here blocks on disks and networks: it is called in a thread.
"""

from __future__ import annotations

from ....job.data.sampling import Position
from ...checkpoints.checkpoints import Checkpoints, Complete
from ...checkpoints.manifest import position_in, read_manifest
from ...checkpoints.targets import Target, TargetAway, TargetDamaged
from ...membership import signals as s
from ...membership.resuming.learnt import unsent_in


def answer(
    effect: s.LookAt | s.PutAside, checkpoints: Checkpoints, target: Target | None, known: set[int] | None
) -> s.Input:
    """Perform LookAt or PutAside for a checkpoint; repeating it gives the same answer. ``known``: the steps of this
    run's history, where other runs or coordinators use the folder too.

    TargetAway: the remaining checkpoints may be only at the target, which does not answer. The run does not fall back
    to initial weights then.
    """
    step = effect.step
    here = checkpoints.path(step) is not None
    if isinstance(effect, s.LookAt):
        wrong = checkpoints.wrong_with(step) if here else "it is not there any more"
        if not wrong:
            return s.CheckpointSound(step)
        why = f"the checkpoint of step {step} is damaged ({wrong})"
    else:
        why = f"the checkpoint of step {step} is not used ({effect.why})"
    passed = [f"{why}; {checkpoints.move_aside(step)}" if here else why]
    if target is not None and isinstance(effect, s.PutAside):
        target.remove(step)  # its copy at the target has the same weights
    newest, more = checkpoints.newest(known)
    if target is not None:
        newest, there = _at(target, checkpoints, newest)
        more += there
    position, unsent = Position(), None
    if newest is not None:
        position, unsent = newest.position, unsent_in(read_manifest(newest.path))
    return s.CheckpointLost(step, position, unsent, "; ".join([*passed, *more]))


def _at(target: Target, checkpoints: Checkpoints, newest: Complete | None) -> tuple[Complete | None, list[str]]:
    """The newest checkpoint, here or fetched from the target; and a sentence for each one that was passed over."""
    passed: list[str] = []
    try:
        for step in sorted(target.steps(), reverse=True):
            if newest is not None and step <= newest.step:
                break
            try:
                path = target.fetch(step, checkpoints.folder)
            except TargetDamaged as error:
                passed.append(f"{error.message}; an older one is taken")
                continue
            checkpoints.brought(step)
            return Complete(step, path, position_in(read_manifest(path))), passed
    except TargetAway as error:
        if newest is None:
            raise
        passed.append(error.message)
    return newest, passed
