"""The data of ``[[eval.sets]]``: each set is tokenised by itself, and one file holds the rows of all, set by set.

They are not in the training data's file, because training data may be too large to keep, or be the nodes' own.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ...job.data.marks import MARKED
from ...job.data.tokenizer import Tokenizer
from ...job.schema import Job
from ...proto.errors import JobError
from ...proto.process.files import file_digest
from ...proto.process.progress import Tell
from .chat.template import find_template
from .corpus.index import SUFFIX, VERSION
from .data import TokenFile, counts_path
from .files.sources import Source, text_files
from .made import Made
from .making import maker_of
from .mix import join
from .rows.labelled import labelled_about

FOLDER = "eval"
"""Below the folder of the training data's tokens."""
TOKENS = "data/eval"
COUNTS = "data/eval_counts"


def eval_files(folder: Path, digest: str, dtype: str) -> dict[str, Path]:
    """Artifact name -> path of the evaluation sets whose rows have this digest."""
    path = folder / FOLDER / digest
    return {TOKENS: path, **({COUNTS: counts_path(path)} if dtype == MARKED else {})}


def eval_sets(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> TokenFile | None:
    """The evaluation sets of a job as one TokenFile, whose samples all are validation samples; None without sets. A
    file from an earlier start is used again.

    Raises:
        JobError: a set has no file, no sample, or more bytes than may be kept.
        OSError: the disk can't store it.
    """
    if not job.eval.sets:
        return None
    folder = folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = _made(job, tokenizer, context, folder, tell)
    tokens = made.found()
    if tokens is None or (tokens.dtype == MARKED and not counts_path(tokens.path).is_file()):
        tokens = tokenise_sets(job, tokenizer, context, folder, made.tell)
        made.keep(tokens)
    return tokens


def tokenise_sets(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> TokenFile:
    """Read every set, write FOLDER/<sha256> of all rows. JobError: what is wrong with a set."""
    room = min(int(job.data.cache_gb * 1e9), shutil.disk_usage(folder).free // 3)
    parts: list[TokenFile] = []
    for one, alone in zip(job.eval.sets, job.eval.parts(job.data), strict=True):
        make = maker_of(alone)
        try:
            part = make(job.model_copy(update={"data": alone}), tokenizer, context, folder, tell, room)
        except JobError as error:
            raise JobError(f"eval.sets {one.name!r}: {error.message}", error.hint) from None
        if part.path.suffix == SUFFIX:
            raise JobError(
                f"eval.sets {one.name!r}: its tokens are more than the {room / 1e9:.3g} GB that may be kept",
                "name fewer files, raise data.cache_gb, or make room",
            )
        room -= part.path.stat().st_size
        parts.append(part)
    joined = join(parts, context, folder)
    counts = tuple(part.samples for part in parts)
    return replace(joined, samples=0, validation_samples=sum(counts), trained=0, sets=counts)


def digests_of(tokens: TokenFile) -> dict[str, str]:
    """The digests of the sets' artifacts."""
    counted = {COUNTS: file_digest(counts_path(tokens.path))} if tokens.dtype == MARKED else {}
    return {TOKENS: tokens.digest, **counted}


def _made(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell) -> Made:
    """The inputs that decide the tokens of these sets."""
    parts = job.eval.parts(job.data)
    about = {
        "kind of data": f"{' '.join(one.source()[0] for one in parts)} {VERSION}",
        "eval.sets": " ".join(f"{one.name} {one.field}" for one in job.eval.sets),
        "data.token_type": job.data.token_type,
        "data.tokenizer": tokenizer.identity,
        "model.context": str(context),
    }
    if any(one.chat for one in parts):
        template = None if job.data.tokenizer == "bytes" else find_template(Path(job.data.tokenizer))
        about |= {"data.turns": job.data.turns, "data.pack": str(job.data.pack)}
        about["chat template"] = template.identity if template else ""
    if any(one.labelled for one in parts):
        about |= labelled_about(job)
    sources = [one for part in parts for one in (Source("", None, "a set"), *text_files(*part.source()))]
    return Made(folder, about, sources, tell)
