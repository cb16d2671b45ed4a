"""What a start of a run refuses of its model, said by `farflung plan` already.

A start checks: the job file (`load_job`), the model's sizes against its tokenizer (`model_sizes`), the model itself
(`profiling.cost.definition_of`), the number of stages (`check_facts`) and whether it keeps packed conversations apart
(`check_packed`). A plan calls the same functions. What it leaves to the start needs the data, the weights, or code of
the job's own.
"""

from __future__ import annotations

from pathlib import Path

from ...coordinator.data.data import model_sizes
from ...coordinator.data.facts import check_packed
from ...job.checks.counts import check_stages
from ...job.data.facts import Profile
from ...job.data.tokenizer import Tokenizer
from ...job.data.tokenizer_folder import load_tokenizer
from ...job.schema import Job
from ...proto.errors import FarflungError
from ...scheduler.errors import PlanError


def check_as_a_start(job: Job) -> None:
    """PlanError, with a start's own sentence, where a start of this job would refuse its model. Imports torch where the
    model's own code has to be asked."""
    if job.model.family or job.model.pretrained:
        try:
            _check(job)
        except FarflungError as error:
            raise PlanError(str(error)) from error


def _check(job: Job) -> None:
    tokenizer = _tokenizer(job)
    _, vocabulary = model_sizes(job, tokenizer)
    if not asks_the_model(job):
        return
    from ...node.models.definition import LanguageModel
    from ...node.models.profiling.cost import definition_of

    definition = definition_of(job, vocabulary)
    check_stages(job, len(definition.layers))
    if isinstance(definition, LanguageModel):
        found = Profile(layers=[], tied=False, family=definition.family)
        found.documents, found.balance = definition.anatomy.documents, definition.balance
        check_packed(job, found)


def asks_the_model(job: Job) -> bool:
    """Whether more is known of the job's model than its shape, so that a family may refuse it."""
    model = job.model
    own = model.pretrained or model.lora or model.dropout or job.parallel.inside != "ddp"
    return bool(own or job.data.chat or job.data.mix or job.eval.sets)


def _tokenizer(job: Job) -> Tokenizer | None:
    """The job's tokenizer, or None where its folder is not on this machine: a plan needs no data."""
    there = job.data.tokenizer == "bytes" or Path(job.data.tokenizer).exists()
    return load_tokenizer(job.data.tokenizer) if job.data.is_text and there else None
