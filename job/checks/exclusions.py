"""Keys that exclude others: patterns without agreement, judges, and masked contributions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schema import SECURE_MEMBERS, UNAGREED, Job
from ..sentences import Mistake


def unagreed_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with patterns in which members have no common reference."""
    updates = job.updates
    pattern = f"updates.pattern = {updates.pattern!r}"
    if updates.pattern not in ("gossip", "async"):
        yield (
            ("updates", "agreed"),
            f"updates.agreed = false: {pattern} agrees; allowed: true, or pattern gossip or async",
        )
        return
    if updates.agreed:
        yield (
            ("updates", "pattern"),
            f"{pattern} has no common reference: {UNAGREED}; to accept that write agreed = false",
        )
    needed: dict[str, tuple[Any, Any]] = {
        "mode": (updates.mode, "delta"),
        "outer": (updates.outer, "average"),
        "fragments": (updates.fragments, 1),
        "dense_rounds": (updates.dense_rounds, 0),
    }
    if updates.pattern == "async":
        needed["overlap"] = (updates.overlap, 0)
    for key, (value, wanted) in needed.items():
        if value != wanted:
            yield ("updates", key), f"updates.{key} = {value!r} does not go with {pattern}; allowed: {wanted!r}"
    for key in ("codec", "overlap"):
        if getattr(updates, key) == "auto":
            yield ("updates", key), f'updates.{key} = "auto" does not go with {pattern}; write a value'


def judge_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with judges, who need every contribution and its samples."""
    updates, sentence = job.updates, f"updates.judge = {job.updates.judge} does not go with"
    if updates.mode != "delta":
        yield ("updates", "mode"), f'{sentence} updates.mode = {updates.mode!r} yet; allowed: "delta"'
    if updates.secure:
        yield ("updates", "secure"), f"{sentence} updates.secure: a masked contribution cannot be looked at"
    elif updates.pattern != "all_to_all":
        why = "only where everybody gets every contribution can everybody judge it"
        yield ("updates", "pattern"), f'{sentence} updates.pattern = {updates.pattern!r}: {why}; allowed: "all_to_all"'
    if job.data.where == "node":
        yield ("data", "where"), f'{sentence} data.where = "node": nobody else has a member\'s samples'
    if job.parallel.stages not in ("auto", 1):
        why = "a judge needs the whole model"
        yield ("parallel", "stages"), f"{sentence} parallel.stages = {job.parallel.stages}: {why}; allowed: 1"


def secure_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with masks, which cancel only in complete sums of integers."""
    updates, parallel = job.updates, job.parallel
    name, _, values = updates.codec.partition(":")
    if name.strip() != "intsgd" or "max" in values:
        sentence = f"updates.codec = {updates.codec!r} does not go with updates.secure: a masked number has to be whole"
        yield ("updates", "codec"), f'{sentence}, and the scale that all agree on a sum; allowed: "intsgd"'
    if updates.pattern in ("gossip", "async", "all_to_all"):
        sentence = f"updates.pattern = {updates.pattern!r} does not go with updates.secure"
        yield ("updates", "pattern"), f"{sentence}: masks come off in one sum of everybody; allowed: auto, publishers"
    if updates.robust_average:
        sentence = f"updates.robust = {updates.robust!r} looks at each member's numbers, which updates.secure hides"
        yield ("updates", "robust"), f'{sentence}; allowed: "none"'
    if updates.dense_rounds:
        sentence = f"updates.dense_rounds = {updates.dense_rounds} does not go with updates.secure"
        yield ("updates", "dense_rounds"), f"{sentence}: these rounds have no codec, so nothing to mask; allowed: 0"
    pipelines = job.train.most_microbatches if parallel.pipelines == "auto" else parallel.pipelines
    if pipelines < SECURE_MEMBERS:
        sentence = f"updates.secure needs {SECURE_MEMBERS} pipelines or more, and here are at most {pipelines}"
        key = ("train", "microbatch") if parallel.pipelines == "auto" else ("parallel", "pipelines")
        yield key, f"{sentence}: of two members each could take its own update off the sum"
