"""Whether a file of a checkpoint is accepted: pure functions of the announced views and the sender's metadata.

A file is accepted only from the keeper of its stage in the file's view, for a step that was finished in that view and
at which a checkpoint is due, under the plan's name for it, and up to the model's size. Its position in the stream of
samples has to follow from the view's plan. ``tensor_header.py`` checks the file's content when it has arrived whole.

Not checked here: whether the weights in a file of the right shape are the group's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ...job.chosen import every_of
from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto.words.loss_scale import is_state
from ...proto.words.sections import stage_file
from ...scheduler.plans import Plan
from ..membership.signals import Announcement
from .tensor_header import LONGEST_HEADER, OUTER, Tensors

MOMENTS: Mapping[str, tuple[str, ...]] = {
    "adafactor": ("v",),
    "adamw": ("m", "v"),
    "lamb": ("m", "v"),
    "lion": ("m",),
    "muon": ("m", "v"),
    "onebit_adam": ("m", "v"),
    "sgd": ("m",),
}
"""Names of each optimiser's moments, as nodes write them (node/state/optimizers/optimizers.py)."""
_LEAST_REPORTS = 2
_OWN_MOMENTS = 4
"""The most kinds of moments that a file may have where only the members know the optimiser."""


class NotAccepted(Exception):
    """Why a file is not accepted, as a sentence. ``early``: it may be accepted soon, when reports of its step have
    arrived."""

    def __init__(self, why: str, early: bool = False) -> None:
        super().__init__(why)
        self.why, self.early = why, early


@dataclass(frozen=True)
class Expected:
    """What an accepted file has to be. ``most``: bytes, at most. ``cursor``: the stream's first position that no step
    has taken. ``redo``: the most positions that may have to be trained again."""

    view: int
    step: int
    file: str
    files: int
    most: int
    tensors: Tensors
    _: KW_ONLY
    cursor: int
    redo: int

    def complaint(self, files: int, said: Mapping[str, Any]) -> str:
        """Why the metadata in the last piece of a file (``files``, and its JSON) is impossible; empty where it is
        possible."""
        if files != self.files:
            return f"the checkpoint of step {self.step} has {self.files} files, not {files}"
        if said.get("view", self.view) != self.view:
            return f"it is of view {str(said['view'])[:20]}, not {self.view}"
        if said.get("step", self.step) != self.step or said.get("cursor", 0) != self.cursor:
            return f"after step {self.step} the stream is at {self.cursor}, not at {str(said.get('cursor'))[:20]}"
        redo = said.get("redo", [])
        if not isinstance(redo, list) or len(redo) > self.redo or not all(_is_count(one, self.cursor) for one in redo):
            return f"it lists samples to train again that were never trained before step {self.step}"
        if not _is_count(said.get("optimizer_steps", 0), self.step + 1):
            return f"its optimiser cannot have made {str(said['optimizer_steps'])[:20]} of {self.step} steps"
        if "loss_scale" in said and not is_state(said["loss_scale"], self.step):
            return f"no loss scale is {str(said['loss_scale'])[:40]} after step {self.step}"
        return ""


def _is_count(value: Any, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def expected(
    views: Sequence[Announcement],
    job: Job,
    facts: Facts,
    reached: int,
    last: int,
    sender: tuple[str, str],
    *,
    step: int,
    file: str,
    view: int = 0,
) -> Expected:
    """What ``file`` of ``step`` has to be, if ``sender`` (name, session) may send it. NotAccepted says why not.

    views: the recently announced views, in order; the last is the present one. reached: the step that the present
    view's nodes have finished, see `finished`. last: the run's last step. view: the file's view; 0: the newest one that
    fits.
    """
    name, session = sender
    if not views:
        raise NotAccepted("no view has trained yet")
    of_step = [one for one in views if one.position.step <= step and view in (0, one.number)]
    kept = [one for one in of_step if one.session_of(name) == session and file in kept_by(one.plan, name)]
    if not kept:
        number = views[-1].number
        if all(one.session_of(name) is None for one in views):
            raise NotAccepted(f"{name} is in no view")
        raise NotAccepted(f"{name} keeps no file {file[:40]!r} of step {step} in view {view or number}")
    if step > last:
        raise NotAccepted(f"the run ends with step {last}")
    mine = kept[-1]
    later = next((one for one in views if one.number > mine.number), None)
    end = later.position.step if later is not None else max(reached, mine.position.step)
    job = Job.model_validate_json(mine.job) if mine.job else job
    if not is_due(mine, job, step, last):
        raise NotAccepted(f"no checkpoint is due at step {step}")
    if step > end:
        raise NotAccepted(f"step {step} was not finished in view {mine.number}", early=later is None)
    tensors = tensors_of(job, facts, mine.plan, kept_by(mine.plan, name)[file])
    position = mine.position.after(step, job.train.batch)
    again = len(mine.position.redo) + (step - mine.position.step) * job.train.batch
    most = tensors.most_bytes + LONGEST_HEADER
    return Expected(mine.number, step, file, len(mine.plan.stages), most, tensors, cursor=position.cursor, redo=again)


def kept_by(plan: Plan, name: str) -> dict[str, int]:
    """Name of each file that a node sends of a checkpoint -> its stage."""
    return {stage_file(stage): stage for stage in range(len(plan.stages)) if plan.keeper(stage) == name}


def lacking(view: Announcement, step: int, has_whole: Callable[[int, int, str], bool]) -> tuple[str, ...]:
    """The nodes of a view that have not sent their file of a step's checkpoint. ``has_whole(view, step, file)``:
    whether the file has arrived."""
    stages = range(len(view.plan.stages))
    late = {view.plan.keeper(stage) for stage in stages if not has_whole(view.number, step, stage_file(stage))}
    return tuple(sorted(late))


def is_due(view: Announcement, job: Job, step: int, last: int) -> bool:
    """Whether nodes of a view may make a checkpoint at ``step``: at the view's beginning, every ``checkpoint.every``
    steps, and at the end; in ``delta`` mode also in the first rounds, when g takes up what earlier views left in x."""
    begin, every = view.position.step, job.checkpoint.every
    if step in (begin, last) or (every and step % every == 0):
        return True
    return job.updates.mode == "delta" and step <= begin + 3 * every_of(job, view.plan.chosen) + 2


def tensors_of(job: Job, facts: Facts, plan: Plan, stage: int) -> Tensors:
    """The tensors that a stage's file holds: the reference, its outer momentum, the optimiser's moments."""
    first, last = plan.stages[stage]
    layers = facts.profile.layers
    most = least = sum(layer.parameters for layer in layers[first : last + 1])
    if facts.profile.tied and last == len(layers) - 1:  # tied weights are only in the first file
        least -= min(layers[0].parameters, layers[-1].parameters)
    kinds = {"": "F32"}
    if job.updates.mode == "delta" and job.updates.outer_optimizer.momentum:
        kinds[OUTER] = "F32"
    if job.updates.mode == "gradient" or not job.updates.secure:
        if job.model.parameters is not None or ":" in job.train.optimizer:
            return Tensors(least, most, kinds, _OWN_MOMENTS)
        moments = MOMENTS[job.train.optimizer] if job.train.optimizer != "sgd" or job.train.momentum else ()
        kinds |= {f"optimizer.{name}.": "BF16" if job.train.moments == "bf16" else "F32" for name in moments}
    return Tensors(least, most, kinds, factored=job.train.optimizer == "adafactor")


def finished(plan: Plan, begin: int, reported: Mapping[str, int], job: Job) -> int:
    """The last step that a view's nodes have finished, by the reports of more than one of them; ``begin``: the step at
    which the view began.

    In ``delta`` mode each pipeline ends steps independently, and is ahead of the others by no more than rounds allow.
    """
    nodes = set(plan.nodes)
    steps = sorted((max(begin, reported.get(name, begin)) for name in nodes), reverse=True)
    believed = steps[max(len(nodes) // 2, min(_LEAST_REPORTS, len(nodes)) - 1)] if len(nodes) > 1 else steps[0]
    ahead = 3 * every_of(job, plan.chosen) if job.updates.mode == "delta" else 0
    return min(steps[0], believed + ahead)
