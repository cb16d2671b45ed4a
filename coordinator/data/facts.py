"""Makes a run's facts at its start: tokens, sizes, the model's profile, the artifacts.

Tokenising and profiling run at the same time; the profile is made in another process, because it needs torch, which
this room does not import. The first error of either ends the start.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...job.checks.counts import check_facts, check_samples
from ...job.data.facts import Facts, Profile
from ...job.data.labelled import LAYOUT
from ...job.data.marks import MARKED
from ...job.data.sampling import ORDER
from ...job.data.tokenizer import Tokenizer
from ...job.data.tokenizer_folder import load_tokenizer, tokenizer_files
from ...job.model_folder import hub
from ...job.schema import Job
from ...proto.errors import JobError, RunFailed
from ...proto.process import python
from ...proto.process.files import file_digest
from ...proto.process.progress import Tell, silent
from .chat.template import find_template
from .corpus.index import SUFFIX, VERSION, Index, index_tokens
from .data import TokenFile, counts_path, model_sizes, token_dtype
from .eval_sets import TOKENS as EVAL_TOKENS
from .eval_sets import digests_of, eval_files, eval_sets
from .files.sources import Source, text_files
from .made import Made
from .making import maker_of
from .mix import tokenise_mix
from .rows.labelled import labelled_about

PROFILE_COMMAND = tuple(python.module("farflung.node.models.profiling.cost"))
_MODEL_FILES = ("*.safetensors", "config.json", "generation_config.json", "model.safetensors.index.json")
OWN_VALIDATION = 64
"""Least samples of an evaluation where every node holds out a part of its own data."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Prepared:
    """The facts for the nodes, and the local paths of the artifacts that they name."""

    facts: Facts
    files: dict[str, Path]

    def of(self, job: Job) -> Prepared:
        """The same for a job that may have another number of steps. JobError where that does not fit."""
        facts = self.facts.model_copy(update={"steps": job.steps(self.facts.samples)})
        check_facts(job, facts)
        return Prepared(facts, self.files)


async def prepare(
    job: Job, folder: Path, profile_command: Sequence[str] = PROFILE_COMMAND, tell: Tell = silent
) -> Prepared:
    """Make the facts; token files are written to ``folder``. JobError or RunFailed for the first error."""
    loop = asyncio.get_running_loop()

    def tell_here(event: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(tell, event)

    tokenizer = load_tokenizer(job.data.tokenizer) if job.data.is_text else None
    context, vocabulary = model_sizes(job, tokenizer)
    asked = asyncio.create_task(read_profile(job, vocabulary if tokenizer else None, profile_command))
    try:
        tokens, sets, files, digests = await in_thread(_files, job, tokenizer, context, folder, tell_here)
        if tokens is not None:
            check_samples(job, tokens.samples, job.steps(tokens.samples))  # before the profile, which takes seconds
        profile = await asked
        check_packed(job, profile)
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    if job.data.where == "node":
        samples = job.steps(0) * job.train.batch
        held = max(job.train.batch, OWN_VALIDATION) if job.data.validation else 0
    elif tokens is not None:
        samples, held = tokens.samples, tokens.validation_samples
    elif profile.samples is not None:
        samples, held = profile.samples, profile.validation_samples or 0
    else:
        raise RunFailed("the profile does not say how many samples the data has")
    facts = Facts(
        samples=samples,
        validation_samples=held,
        context=context,
        vocabulary=vocabulary,
        token_dtype=tokens.dtype if tokens else token_dtype(tokenizer.vocabulary if tokenizer else 1),
        steps=job.steps(samples),
        tokens_digest=tokens.digest if tokens else "",
        profile=profile,
        artifacts=digests,
        end_of_text=tokenizer.end if tokenizer else None,
        order=ORDER,
        packed=tokens is not None and tokens.packed,
        trained=tokens.trained if tokens else 0,
        mix=list(tokens.mix) if tokens else [],
        sets=[(one.name, count) for one, count in zip(job.eval.sets, sets.sets, strict=True)] if sets else [],
        sets_dtype=sets.dtype if sets else "",
        sets_packed=sets is not None and sets.packed,
        layout=LAYOUT if job.train.task == "classification" else "",
    )
    check_facts(job, facts)
    return Prepared(facts, files)


def restore(job: Job, facts: Facts, folder: Path, tell: Tell = silent) -> Prepared | None:
    """The facts of an earlier start, for a job that may have another number of steps now; None where a file is gone or
    has changed. ``tell`` gets a notice of an index that this version can't read. SourceUnreachable: a storage does not
    answer, so whether a file has changed is unknown."""
    files = _model_files(job)
    if facts.tokens_digest:
        whole, index = folder / facts.tokens_digest, folder / (facts.tokens_digest + SUFFIX)
        files["data/tokens"] = index if index.is_file() else whole
        if facts.token_dtype == MARKED:
            files["data/counts"] = counts_path(whole)
    if facts.sets:
        files |= eval_files(folder, facts.artifacts[EVAL_TOKENS], facts.sets_dtype)
    if set(files) != set(facts.artifacts) or not all(path.is_file() for path in files.values()):
        return None
    if facts.tokens_digest and files["data/tokens"] == index:
        found = Index.load(index)
        if found is None:
            message = f"{index} is of another version of farflung: the training data are read again"
            tell({"event": "notice", "time": time.time(), "message": message})
        if found is None or not found.unchanged():
            return None
    return Prepared(facts, files).of(job)


async def read_profile(job: Job, vocabulary: int | None, command: Sequence[str]) -> Profile:
    """The model's profile from its process. JobError with the process's error message, RunFailed if the process
    crashes."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    asked = json.dumps({"job": json.loads(job.model_dump_json()), "vocabulary": vocabulary}).encode()
    try:
        out, errors = await process.communicate(asked)
    except asyncio.CancelledError:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    try:
        answer: dict[str, Any] = json.loads(out)
        if "error" in answer:
            raise JobError(str(answer["error"]), str(answer.get("hint", "")))
        return Profile.model_validate(answer)
    except ValueError:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise RunFailed(f"the model's profile failed (exit status {process.returncode}): {last}") from None


def check_packed(job: Job, profile: Profile) -> None:
    """JobError where the job packs several conversations into a sample and the model can't keep them apart."""
    talks = job.data.chat or any(one.chat for one in (*(job.data.mix or ()), *job.eval.sets))
    if not talks or not job.data.pack:
        return
    hint = "write pack = false under [data]: each conversation then has a sample of its own"
    if not profile.documents:
        raise JobError(
            f"data.pack = true: the attention of the model family {profile.family!r} can't tell several conversations "
            "of a sample apart",
            hint,
        )
    if profile.balance:
        raise JobError("not yet: model.router_loss with several conversations in a sample (data.pack = true)", hint)


async def in_thread(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """``work(*arguments)`` in a daemon thread: unlike an executor's, it does not hold up an interrupted start."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        try:
            result = work(*arguments)
        except BaseException as error:
            outcome: tuple[_Result | None, BaseException | None] = (None, error)
        else:
            outcome = (result, None)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=body, daemon=True, name=work.__name__).start()
    return await done


def _files(
    job: Job, tokenizer: Tokenizer | None, context: int, folder: Path, tell: Tell
) -> tuple[TokenFile | None, TokenFile | None, dict[str, Path], dict[str, str]]:
    """(the token file, None where the data are no text or the nodes' own; that of the evaluation sets; artifact ->
    path; artifact -> sha256)."""
    files = _model_files(job)
    digests = {name: file_digest(path) for name, path in files.items()}
    for name, path in files.items():
        hub.check(path, digests[name])
    if tokenizer is None:
        return None, None, files, digests
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".tokens-*"):  # left by a start that was killed
            left.unlink()
        tokens = None if job.data.where == "node" else _trained_on(job, tokenizer, context, folder, tell)
        sets = eval_sets(job, tokenizer, context, folder, tell)
    except OSError as error:
        hint = "make room there, or lower data.cache_gb"
        raise JobError(f"cannot keep the training data in {folder}: {error.strerror or error}", hint) from None
    if tokens is not None:
        files["data/tokens"], digests["data/tokens"] = tokens.path, tokens.digest
        if tokens.dtype == MARKED:
            files["data/counts"] = counts_path(tokens.path)
            digests["data/counts"] = file_digest(files["data/counts"])
    if sets is not None:
        files |= eval_files(folder, sets.digest, sets.dtype)
        digests |= digests_of(sets)
    return tokens, sets, files, digests


def _trained_on(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> TokenFile:
    """The training data's tokens: those that an earlier start made, or new ones."""
    made = _made(job, tokenizer, context, folder, tell)
    tokens = made.found()
    if tokens is None or (tokens.dtype == MARKED and not counts_path(tokens.path).is_file()):
        tokens = _tokens(job, tokenizer, context, folder, made.tell)
        made.keep(tokens)
    return tokens


def _made(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> Made:
    """The inputs that decide the tokens of this job."""
    each = [*job.data.parts()] or [job.data]
    held_out = job.data.held_out()
    about = {
        "kind of data": f"{' '.join(one.source()[0] for one in each)} {VERSION}",
        "data.field": " ".join(one.field for one in each),
        "data.token_type": job.data.token_type,
        "data.mix": str([one.weight for one in job.data.mix or ()]),
        "data.tokenizer": tokenizer.identity,
        "model.context": str(context),
        "data.validation": "files" if held_out else str(job.data.validation),
    }
    if any(one.chat for one in each):
        template = None if job.data.tokenizer == "bytes" else find_template(Path(job.data.tokenizer))
        about |= {"data.turns": job.data.turns, "data.pack": str(job.data.pack)}
        about["chat template"] = template.identity if template else ""
    if any(one.labelled for one in each):
        about |= labelled_about(job)
    sources = [source for one in each for source in text_files(*one.source())]
    sources += [Source("", None, "held out"), *text_files(each[0].source()[0], held_out)]
    return Made(folder, about, sources, tell)


def _tokens(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> TokenFile:
    if job.data.tokens:
        dtype = token_dtype(tokenizer.vocabulary)
        index = index_tokens(job, tokenizer.vocabulary, dtype, context, folder, tell)
        return TokenFile(index.path, index.digest, dtype, context, index.corpus.samples, index.corpus.held)
    begun = sum(path.stat().st_size for path in folder.glob(".reading-*.tokens"))  # counted already
    room = min(int(job.data.cache_gb * 1e9), (shutil.disk_usage(folder).free + begun) // 3)
    if job.data.mix:
        return tokenise_mix(job, tokenizer, context, folder, tell, room)
    return maker_of(job.data)(job, tokenizer, context, folder, tell, room)


def _model_files(job: Job) -> dict[str, Path]:
    """Artifacts of the model and tokenizer folders."""
    files: dict[str, Path] = {}
    if job.model.pretrained:
        for pattern in _MODEL_FILES:
            files |= {f"model/{path.name}": path for path in sorted(Path(job.model.pretrained).glob(pattern))}
    if job.data.is_text and job.data.tokenizer != "bytes":
        files |= {f"tokenizer/{path.name}": path for path in tokenizer_files(Path(job.data.tokenizer))}
    return files
