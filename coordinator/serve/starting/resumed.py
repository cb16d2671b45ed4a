"""Whether a run may continue with a job, and the facts that an earlier start made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....job.changes import moved_files, refused_changes
from ....job.data.facts import Facts
from ....job.data.sampling import ORDER
from ....job.schema import Job
from ....proto.errors import JobError
from ... import events
from ...data.facts import Prepared, prepare, restore
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
    if prepared is None:
        prepared = await prepare(job, folder, profile_command, emit)
        found = prepared.facts
        what = {name for name, digest in facts.artifacts.items() if found.artifacts.get(name) != digest}
        what |= set(found.artifacts) - set(facts.artifacts)
        if what or (found.samples, found.validation_samples) != (facts.samples, facts.validation_samples):
            names = ", ".join(sorted(what)) or "the samples"
            hint = "give it the files that it began with, or start another run with another --state"
            raise JobError(f"the run began with other data or another model: {names} differ", hint)
    return prepared
