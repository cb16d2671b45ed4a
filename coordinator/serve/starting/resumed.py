"""Whether a run may continue with a job, and the facts that an earlier start made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....job.changes import moved_files, refused_changes
from ....job.data.facts import Facts, Profile
from ....job.data.own_code import check_own_code
from ....job.data.sampling import ORDER
from ....job.schema import Job
from ....proto.errors import JobError
from ... import events
from ...data.facts import Prepared, prepare, read_profile, restore
from ...store.store import Store


def check_resumed(job: Job, store: Store, place: str) -> bool:
    """Check that a run may continue with this job. Returns whether the job names other files than at the last start.

    Steps, epochs, checkpoint, codecs, learning rate and its schedule may change too; JobError for other changes. If an
    earlier start failed on the data or the model, no run has begun and any key may change.
    """
    stored = store.get("job")
    if stored is None or store.get("facts") is None:
        return False
    before = Job.model_validate_json(stored)
    changed = refused_changes(before, job)
    if changed:
        what = "; ".join(changed)
        hint = "change it back, or start another run with another --state"
        raise JobError(f"the run in {place} cannot go on with another job: {what}", hint)
    return moved_files(before, job)


async def prepare_or_restore(
    job: Job, known: str | None, folder: Path, profile_command: Sequence[str], moved: bool, emit: events.Emit
) -> Prepared:
    """The facts of an earlier start (``known``, JSON) where they are still valid, else new ones for the same data and
    model. ``folder``: of the artifacts; ``moved``: the job names other files. JobError: the data or the model differ.
    """
    if known is None:
        return await prepare(job, folder, profile_command, emit)
    facts = Facts.model_validate_json(known)
    if facts.order != ORDER:
        raise JobError(
            f"the run began with another order of samples ({facts.order}) than this version's ({ORDER})",
            "finish it with the version of farflung that it began with, or export its checkpoint as a model folder "
            "and start another run from that with another --state",
        )
    prepared = None if moved else restore(job, facts, folder, emit)
    now: Profile | None = None
    if prepared is not None and facts.profile.own is not None:  # the code is run again to see whether it is the same
        now = await read_profile(job, facts.vocabulary if job.data.is_text else None, profile_command)
        check_counts(job, facts.profile, now)
    if prepared is None:
        prepared = await prepare(job, folder, profile_command, emit)
        found = prepared.facts
        what = {name for name, digest in facts.artifacts.items() if found.artifacts.get(name) != digest}
        what |= set(found.artifacts) - set(facts.artifacts)
        if what or (found.samples, found.validation_samples) != (facts.samples, facts.validation_samples):
            names = ", ".join(sorted(what)) or "the samples"
            hint = "give it the files that it began with, or start another run with another --state"
            raise JobError(f"the run began with other data or another model: {names} differ", hint)
    own = (now or prepared.facts.profile).own
    for sentence in check_own_code(facts.profile.own, own):
        emit(events.event("warning", message=sentence, node=""))
    profile = prepared.facts.profile.model_copy(update={"own": own})
    return Prepared(prepared.facts.model_copy(update={"profile": profile}), prepared.files)


def check_counts(job: Job, before: Profile, now: Profile) -> None:
    """JobError where ``data.build`` gives other numbers of samples than when the run began."""
    found, wanted = ((one.samples, one.validation_samples) for one in (now, before))
    if job.data.where == "coordinator" and found != wanted:
        raise JobError(
            f"data.build: the function gives {found[0]} training and {found[1]} validation samples, and "
            f"{wanted[0]} and {wanted[1]} when the run began",
            "give the function the data that the run began with",
        )
