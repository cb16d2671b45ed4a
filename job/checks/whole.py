"""Runs all checks of combinations of a job's values."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ..schema import CheckCodec, Job
from ..sentences import Mistake
from .data import data_mistakes
from .evaluation import command_mistakes, set_mistakes
from .model import model_mistakes
from .train import train_mistakes
from .updates import update_mistakes


def job_mistakes(job: Job, check_codec: CheckCodec | None = None, files: bool = True) -> Iterator[Mistake]:
    """(key, sentence) of each mistake in a job whose values are each allowed alone. ``files``: the files that it names
    are on this machine, so check that they exist; a node must not do this with the coordinator's job."""
    yield from model_mistakes(job, files)
    yield from data_mistakes(job, files)
    yield from set_mistakes(job, files)
    yield from train_mistakes(job)
    yield from update_mistakes(job, check_codec)
    yield from command_mistakes(job)
    kind, _, path = job.checkpoint.to.partition("://")
    if path and kind == "memory":
        yield (
            ("checkpoint", "to"),
            "checkpoint.to: memory:// ends with the coordinator; allowed: a folder, s3://... and so on",
        )
    if path and kind in ("file", "local"):
        yield ("checkpoint", "to"), f"checkpoint.to: write the folder itself: {path}"
    if urlsplit(job.checkpoint.to).password:
        yield (
            ("checkpoint", "to"),
            "checkpoint.to has a password, and every node sees the job: write it as checkpoint.options.password",
        )
    if job.checkpoint.options and not path:
        yield ("checkpoint", "options"), "checkpoint.options belong to an address (s3://...); checkpoint.to is a folder"
