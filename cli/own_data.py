"""A node's private data (``[data] where = "node"``): read and tokenised on the node, which sends none of it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..job.checks.data import leaves_its_folder
from ..job.data.facts import Facts
from ..job.schema import Job
from ..proto.errors import FarflungError
from ..proto.process.progress import Tell
from ..proto.words.border import Hostile, below

if TYPE_CHECKING:
    from ..node.data.dataset import Dataset

Fetch = Callable[..., bytes]


def opener(folder: Path) -> Callable[[Job, Facts, Fetch, Path, Tell], Dataset]:
    """A function that the node calls when it has the job; it makes samples of the text below ``folder``. FarflungError:
    there is no such folder."""
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise FarflungError(f"--data {folder} is no folder", "name the folder that the job's file patterns start from")

    def open_own_data(job: Job, facts: Facts, fetch: Fetch, cache: Path, tell: Tell) -> Dataset:
        """Tokenises the files below the folder that match the job's patterns, into ``cache``.

        JobError: no text, or too little. FarflungError: a pattern leads outside the folder; the job comes from another
        machine and may read only this folder.
        """
        from ..coordinator.data.data import tokenise
        from ..job.data.tokenizer_folder import load_tokenizer
        from ..node.data.dataset import Tokens

        def inside(pattern: str) -> str:
            if leaves_its_folder(pattern):
                raise FarflungError(f"the job asks for {pattern}, which is not below {folder}", "do not join this run")
            return str(folder / pattern)

        kind, patterns = job.data.source()
        found: dict[str, Any] = {kind: [inside(pattern) for pattern in patterns]}
        if job.data.held_out():
            found["validation"] = [inside(pattern) for pattern in job.data.held_out()]
        here = job.model_copy(update={"data": job.data.model_copy(update=found)})
        tokenizer = load_tokenizer(_tokenizer_of(job, facts, fetch, cache))
        if facts.end_of_text is not None:  # the coordinator has the model's configuration, which may name the end token
            tokenizer.end = facts.end_of_text
        tokens = tokenise(here, tokenizer, facts.context, cache, tell)
        tokens.path.replace(below(cache, f"tokens-{tokens.digest}"))
        own: dict[str, Any] = {"samples": tokens.samples, "validation_samples": tokens.validation_samples}
        own |= {"tokens_digest": tokens.digest, "token_dtype": tokens.dtype}
        return Tokens(facts.model_copy(update=own), fetch, cache)

    return open_own_data


def _tokenizer_of(job: Job, facts: Facts, fetch: Fetch, cache: Path) -> str:
    """ "bytes", or a folder with the run's tokenizer, which comes from the coordinator."""
    from ..job.data.tokenizer_folder import FILES

    if job.data.tokenizer == "bytes":
        return "bytes"
    names = [name for name in FILES if f"tokenizer/{name}" in facts.artifacts]
    digest = sha256("".join(facts.artifacts[f"tokenizer/{name}"] for name in names).encode()).hexdigest()
    folder = below(cache, f"tokenizer-{digest[:16]}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        content = fetch(f"tokenizer/{name}")
        if sha256(content).hexdigest() != facts.artifacts[f"tokenizer/{name}"]:  # another run may use the folder too
            raise Hostile(f"{name} of the run's tokenizer has another digest than the coordinator says")
        below(folder, name).write_bytes(content)
    return str(folder)
