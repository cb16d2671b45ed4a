"""The terms that a node's owner agreed to, enforced by the node itself: the coordinator is not trusted with them.

The owner sees the job once, at the join (`terms`); so every view is compared with that job. A node refuses a view that
breaks it, with an error that has the view's number, and leaves. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from ..job.changes import refused_changes
from ..job.checks.whole import job_mistakes
from ..job.chosen import MICROBATCH_KEY, OFFLOAD_KEY, RECOMPUTE_KEY, left_open, microbatch_of, mistakes
from ..job.data.facts import Facts
from ..job.schema import SECURE_MEMBERS, CheckCodec, Job
from ..proto.control_pb2 import View
from ..proto.errors import FarflungError, Refused
from ..proto.words import border
from ..proto.words.border import Hostile
from ..scheduler.plans import Plan
from ..scheduler.workloads.ladder import link_ladder
from ..scheduler.workloads.offload import MOVABLE, PARAMETERS
from .device.limits import Limits

_MOST = 1 << 53
"""Integers up to here are exact as a float64 too, and far larger than any number of a run."""
_PREFIXES = ("model", "tokenizer")
_DATA = ("data/tokens", "data/counts", "data/eval", "data/eval_counts")
_MOST_SETS = 64
_MOST_TRIALS = 8
_SAME_VERSION = "has the coordinator the same version of farflung?"


class Broken(Refused):
    """The coordinator asks for something else than this node's owner agreed to."""


# ---- what may be insisted on ----------------------------------------------------------------


def _private(job: Job) -> str:
    return "" if job.data.where == "node" else "the coordinator has the data, and hands them to the nodes"


def _secure(job: Job) -> str:
    return "" if job.updates.secure else "updates.secure is false: each node's updates are seen by others"


def _robust(job: Job) -> str:
    return "" if job.updates.robust_average else 'updates.robust is "none": plausible lies are averaged in'


def _no_code(job: Job) -> str:
    return f"the job calls {', '.join(job.calls)}" if job.calls else ""


def _tls(job: Job) -> str:
    return ""  # not the job's matter: `check_secure` of node/agent.py


REQUIREMENTS: dict[str, tuple[str, Callable[[Job], str]]] = {
    "private": ("every node trains on data of its own, which stay there", _private),
    "secure": ("updates go masked, and only sums of three or more are seen", _secure),
    "robust": ("what is far from the others counts less", _robust),
    "no-code": ("the job calls no functions of a module", _no_code),
    "tls": ("nobody on the way reads or changes anything", _tls),
}
"""The words that ``join --require`` takes: what each means, and why a job lacks it."""


def required_of(text: str | None) -> frozenset[str]:
    """The words of ``--require``, separated by commas. FarflungError: an unknown one."""
    words = frozenset(word.strip() for word in (text or "").split(",") if word.strip())
    if unknown := sorted(words - REQUIREMENTS.keys()):
        known = "; ".join(f"{word}: {about}" for word, (about, _) in REQUIREMENTS.items())
        raise FarflungError(f"--require {unknown[0]}: there is no such thing", known)
    return words


# ---- the promises ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Promises:
    """The job that this node's owner agreed to. ``check_codec`` raises if a codec does not exist or fit its place."""

    name: str
    job: Job
    facts: Facts
    required: Collection[str] = ()
    check_codec: CheckCodec | None = None

    def check_join(self) -> None:
        """Broken: the job lacks what the owner insists on, or breaks the rules of jobs."""
        for word in sorted(self.required):
            if why := REQUIREMENTS[word][1](self.job):
                hint = f"leave out --require {word}, or ask whoever started the run"
                raise Broken(f"this node is to join only with {word!r}, and in this run {why}", hint)
        if why := self._rule(self.job):
            raise Broken(f"the job of this run breaks a rule: {why}", _SAME_VERSION)

    def read_view(self, view: View) -> tuple[Plan, Job]:
        """The plan and the job of a view. Broken, with the view's number: they cannot be read, or break a promise."""
        try:
            plan = Plan.from_json(view.plan)
            job = read_job(view.job) if view.job else self.job
            why = next(self._broken(view, plan, job), "")
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Hostile) as problem:
            why = border.printable(problem.message if isinstance(problem, Hostile) else str(problem))
        if why:
            raise Broken(
                f"view {view.number} is refused: {why}", "leave this run, and ask whoever started it what it is to do"
            )
        return plan, job

    def _broken(self, view: View, plan: Plan, job: Job) -> Iterator[str]:
        members = {member.name for member in view.members}
        if self.name not in members:
            yield "it is another node's"
        if strangers := sorted({*plan.nodes} - members):
            yield f"its plan names {border.quoted(strangers[0])}, who is no member"
        if changes := refused_changes(self.job, job):
            yield f"a run cannot change {border.printable('; '.join(changes))}"
        if why := self._rule(job):
            yield why
        for word in sorted(self.required):
            if why := REQUIREMENTS[word][1](job):
                yield f"this node joined only with {word!r}: {why}"
        yield from mistakes(job, plan.chosen)
        if job.data.where == "node" and len(plan.stages) != 1:
            yield (
                f"its plan has {len(plan.stages)} stages, and this node's data are private: with more than one stage "
                "another node would get what they can be rebuilt from"
            )
        if job.updates.secure:
            if len(plan.pipelines) < SECURE_MEMBERS:
                yield f"updates are to be masked, and of {len(plan.pipelines)} members a sum hides nothing"
            for stage in range(len(plan.stages)):
                codec = plan.update_codec(stage)
                if codec is not None and codec.partition(":")[0].strip() != "intsgd":
                    yield f"updates are to be masked, and with the codec {border.quoted(codec)} they would not be"
        for link, codec in plan.codecs.items():
            if ">" in link and not _may_have(job, codec):
                yield f"its plan has {border.quoted(codec)} for {border.quoted(link)}, which the job does not allow"
        layers = len(self.facts.profile.layers)
        if layers and plan.layers != layers:
            yield f"its plan is for {plan.layers} layers, and the model has {layers}"
        microbatches = job.train.batch // max(1, microbatch_of(job, plan.chosen))
        if sum(plan.microbatches) != microbatches:
            yield f"its plan has {sum(plan.microbatches)} microbatches a step, and the job {microbatches}"
        yield from _wrong_trials(job, plan)

    def _rule(self, job: Job) -> str:
        return next((border.printable(why) for _, why in job_mistakes(job, self.check_codec, files=False)), "")


def _wrong_trials(job: Job, plan: Plan) -> Iterator[str]:
    """Sentences that say why a view can't try what its plan has: only what the job leaves open, and whole shares."""
    trials = plan.tuning.trials if plan.tuning is not None else ()
    own, wanted = microbatch_of(job, plan.chosen), left_open(job)
    if len(trials) > _MOST_TRIALS:
        yield f"its plan has {len(trials)} trials, where {_MOST_TRIALS} are enough"
    for trial in trials[:_MOST_TRIALS]:
        size = trial.microbatch
        whole = size >= 1 and all(count * own % size == 0 for count in plan.microbatches)
        whole = whole and all(size % count == 0 for count in trial.pieces)
        if not whole or (size != own and MICROBATCH_KEY not in wanted):
            yield f"its plan tries microbatches of {size}, which the job and its shares do not allow"
        if trial.recompute is not None and RECOMPUTE_KEY not in wanted:
            yield f"its plan tries {RECOMPUTE_KEY}, which the job does not leave to it"
        if trial.recompute is False and plan.chosen.get(OFFLOAD_KEY) == PARAMETERS:
            yield f'its plan tries {RECOMPUTE_KEY} = false, which does not go with {OFFLOAD_KEY} = "parameters"'
        if trial.offload is not None and not {trial.offload, plan.chosen.get(OFFLOAD_KEY)} <= MOVABLE:
            yield f"its plan tries {OFFLOAD_KEY}, of which the job leaves only where the moments lie to trials"


def _may_have(job: Job, codec: str) -> bool:
    """Whether a plan may choose this codec for a link between stages."""
    activations = job.activations
    return activations.by_link and codec in dict(link_ladder(activations.forward, activations.backward))


# ---- what the owner is told -----------------------------------------------------------------


def terms(job: Job, limits: Limits | None = None, secure_link: bool = True) -> list[str]:
    """What a run does with a node's machine, and which limits its owner set: a sentence for each."""
    updates, data = job.updates, job.data
    alone = data.where == "node" or job.parallel.stages == 1
    model = job.model.family or job.model.pretrained or job.model.build or "a model that its members bring"
    how_long = f"{job.run.steps} steps" if job.run.steps else f"{job.run.epochs or 1} passes over the data"
    lines = [f"trains {border.printable(str(model))}, for {how_long}"]
    if data.where == "node" and data.is_text:
        kind, patterns = data.source()
        lines.append(
            f"reads {kind} files of this machine ({border.printable(', '.join(patterns))}, below --data FOLDER); they "
            "and their tokens stay here"
        )
    elif data.where == "node":
        lines.append("reads private data of this machine; they stay here")
    else:
        lines.append("reads no files of this machine: the coordinator sends it the training data that it needs")
    if masked := updates.secure:
        lines.append("sends the others masked updates of the weights: only sums of all are seen")
    else:
        lines.append("sends the others updates of the weights, from which data can partly be rebuilt")
    if not alone:
        lines.append("sends its neighbours activations, from which its samples can be rebuilt")
    lines.append(
        "tells the coordinator its device, address, links, losses and times"
        + ("" if masked else ", and parts of checkpoints")
    )
    if job.calls:
        lines.append(f"calls {', '.join(map(border.printable, job.calls))} of this machine, if --allow-code says so")
    else:
        lines.append("runs no code from elsewhere")
    if not secure_link:
        lines.append("has no TLS: anybody on the way can read and change everything")
    if limits is not None:
        kept = [
            f"{limits.upload / 1e6:g} Mbit/s up" if limits.upload else "",
            f"{limits.memory / 1e9:g} GB of memory" if limits.memory else "",
            f"{limits.disk / 1e9:g} GB of disk" if limits.disk else "",
            f"{limits.hours:g} hours" if limits.hours else "",
        ]
        none = "has no limits (--max-upload, --max-memory, --max-disk, --hours)"
        lines.append(f"takes at most {', '.join(filter(None, kept))}" if any(kept) else none)
    return lines


# ---- reading --------------------------------------------------------------------------------


def read_job(text: str) -> Job:
    """The job that a coordinator sent. Hostile: the text is no valid job."""
    try:
        return Job.model_validate_json(text)
    except ValidationError as error:
        raise Hostile(f"the coordinator's job makes no sense: {_first(error)}", _SAME_VERSION) from None


def read_facts(text: str) -> Facts:
    """The facts that a coordinator sent. Hostile: a number out of range, or an invalid digest or name."""
    try:
        facts = Facts.model_validate_json(text)
    except ValidationError as error:
        raise Hostile(f"what the coordinator says of the data makes no sense: {_first(error)}", _SAME_VERSION) from None
    for name in ("samples", "validation_samples", "context", "vocabulary", "steps"):
        border.whole(getattr(facts, name), 0, _MOST, f"number of {name}")
    if len(facts.sets) > _MOST_SETS or (facts.sets and "data/eval" not in facts.artifacts):
        raise Hostile("what the coordinator says of its evaluation sets makes no sense", border.LEAVE)
    for _, count in facts.sets:
        border.whole(count, 0, _MOST, "number of an evaluation set's samples")
    if facts.tokens_digest:
        border.digest(facts.tokens_digest)
    for name, digest in facts.artifacts.items():
        kind, _, file = name.partition("/")
        if name not in _DATA and (kind not in _PREFIXES or not border.is_file_name(file)):
            raise Hostile(f"{border.quoted(name)} is no name for an artifact", border.LEAVE)
        border.digest(digest)
    for layer in facts.profile.layers:
        sizes = (layer.parameters, layer.frozen, layer.activation_elements_per_sample)
        if not all(0 <= size <= _MOST for size in sizes) or not 0 <= layer.flops_per_sample < math.inf:
            raise Hostile(f"the layer {border.quoted(layer.name)} has impossible sizes", border.LEAVE)
    return facts


def job_in(status: dict[str, object]) -> Job | None:
    """The job in a coordinator's status; None if the status has none. Hostile: it is no valid job."""
    told = status.get("job")
    return read_job(json.dumps(told)) if isinstance(told, dict) else None


def _first(error: ValidationError) -> str:
    """The first mistake and the key that has it, as "KEY: MESSAGE"."""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return border.printable(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}")
