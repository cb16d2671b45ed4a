"""Mistakes in ``[updates]`` and ``[activations]``: the mode and the codecs."""

from __future__ import annotations

from collections.abc import Iterator

from ..schema import EVERY, CheckCodec, Job
from ..sentences import Mistake
from .counts import AQSGD_ONCE, uses_aqsgd
from .exclusions import judge_mistakes, secure_mistakes, unagreed_mistakes


def update_mistakes(job: Job, check_codec: CheckCodec | None) -> Iterator[Mistake]:
    """Mistakes of modes and codecs. ``check_codec``: None where codecs are not checked."""
    updates, activations = job.updates, job.activations
    if updates.mode == "gradient":
        if updates.every != 1:
            yield (
                ("updates", "every"),
                f"updates.every = {updates.every}: mode gradient exchanges every step; allowed: 1",
            )
        if updates.overlap:
            sentence = f"updates.overlap = {updates.overlap}: a step of mode gradient waits for its round; allowed: 0"
            yield ("updates", "overlap"), sentence
        if updates.outer != "average":
            sentence = f"updates.outer = {updates.outer!r}: mode gradient has the one optimiser of [train]"
            yield ("updates", "outer"), f'{sentence}; allowed: "average", or mode = "delta"'
        if updates.fragments != 1:
            sentence = f"updates.fragments = {updates.fragments}: a step of mode gradient needs the whole gradient"
            yield ("updates", "fragments"), f"{sentence}; allowed: 1"
    elif updates.every == "auto":
        if updates.fragments != 1:
            sentence = f'updates.fragments = {updates.fragments} needs an updates.every that it divides, not "auto"'
            yield ("updates", "fragments"), f"{sentence}; allowed: 1"
        if updates.overlap != "auto" and updates.overlap > EVERY[-1]:
            sentence = f'updates.overlap = {updates.overlap} is more than the {EVERY[-1]} steps that "auto" may choose'
            yield ("updates", "overlap"), f"{sentence}: a round would overtake the next"
        if not updates.agreed:
            sentence = 'not yet: updates.every = "auto" without agreed weights'
            yield ("updates", "every"), f"{sentence}; allowed: a whole number"
    elif updates.every % updates.fragments:
        sentence = f"updates.fragments = {updates.fragments} does not divide updates.every = {updates.every}"
        yield ("updates", "fragments"), f"{sentence}: a round begins every (every / fragments) steps"
    elif updates.overlap != "auto" and updates.overlap > updates.interval:
        sentence = f"updates.overlap = {updates.overlap} is more than the {updates.interval} step(s)"
        yield ("updates", "overlap"), f"{sentence} between rounds: a round would overtake the next"
    if updates.pattern in ("gossip", "async") or not updates.agreed:
        yield from unagreed_mistakes(job)
    if updates.robust_average and updates.pattern in ("two_level", "gossip", "async"):
        sentence = f"updates.robust = {updates.robust!r} has to see every member's numbers in one place"
        yield ("updates", "robust"), f"{sentence}; allowed with updates.pattern auto, publishers, all_to_all"
    if updates.residual != "fp32" and (where := _no_residual(job)):
        sentence = f'updates.residual = "{updates.residual}" has no meaning {where}'
        yield ("updates", "residual"), f'{sentence}; allowed: "fp32"'
    if updates.secure:
        yield from secure_mistakes(job)
    if updates.judge:
        yield from judge_mistakes(job)
    role = "gradient" if updates.mode == "gradient" else "update" if updates.agreed else "difference"
    role = f"robust_{role}" if updates.robust_average and updates.agreed else role
    roles = {("updates", "codec"): (updates.codec, role)}
    roles["activations", "forward"] = (activations.forward, "activation")
    roles["activations", "backward"] = (activations.backward, "activation_gradient")
    for key, (spec, wanted) in roles.items():
        chosen = (("updates", "codec"), ("activations", "forward"), ("activations", "backward"))
        if check_codec is not None and not (spec == "auto" and key in chosen):
            try:
                check_codec(spec, wanted)
            except ValueError as error:
                yield key, f"{'.'.join(key)} = {spec!r}: {error}"
    if activations.backward == "auto" and activations.forward != "auto":
        sentence = 'activations.backward = "auto" is chosen for each link with the forward codec'
        yield ("activations", "backward"), f'{sentence}: it needs activations.forward = "auto"'
    if uses_aqsgd(job) and job.run.epochs == 1:
        yield ("activations", "forward"), AQSGD_ONCE


def _no_residual(job: Job) -> str:
    """Why nodes keep no residual beside their weights; empty: they do, or a plan may choose a codec with one."""
    updates = job.updates
    if not updates.agreed:
        return "without agreed rounds, which send weights"
    if updates.codec == "none":
        return 'with codec "none", which leaves nothing out'
    explicit = updates.mode == "gradient" or "feedback=true" in updates.codec.replace(" ", "")
    if not explicit and updates.pattern == "all_to_all":
        why = "what a codec without feedback=true leaves out stays in the weights, and nobody publishes sums"
        return f"in delta mode with pattern all_to_all: {why}"
    return ""
