"""Text from a trained language model: `farflung generate STATE PROMPT`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch

from ...job.data.tokenizer import Tokenizer
from ...job.data.tokenizer_folder import load_tokenizer, model_ends
from ...job.model_folder.positions import longest_of
from ...proto.errors import FarflungError
from ..device.memory import available_memory
from ..models.decoders.families import DEFAULT_CONTEXT
from ..models.factory import model_of
from .checkpoint import Checkpoint, find_checkpoint
from .export import LARGEST_FILE, write_export


def generate(
    folder: Path,
    prompt: str,
    tokens: int = 200,
    seed: int = 1,
    temperature: float = 0.8,
    *,
    step: int | None = None,
    through: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> str:
    """The text that a model adds to ``prompt``: ``tokens`` tokens, fewer where the model ends the text itself.

    ``folder`` is an exported folder, or the state folder of a run, whose checkpoint of ``step`` (the newest unless
    given) is used. The same ``seed`` gives the same text; ``temperature`` 0 always takes the likeliest token. Runs on
    the CPU. ``through`` "model": the whole model in memory, from an export to a temporary folder; "layers": one layer
    in memory at a time, which reads the checkpoint once per token; None: "layers" if the model does not fit the
    available memory (``say`` is called with a sentence then), else "model". Raises FarflungError for an empty prompt or
    a model that writes no text.
    """
    folder = Path(folder)
    if not prompt:
        raise FarflungError("the prompt is empty", hint="give at least one word to go on from")
    if (folder / "config.json").is_file():
        if through == "layers":
            raise FarflungError(
                f"{folder} is an exported folder, which is loaded whole", hint="give the run's state folder"
            )
        return _continue(folder, prompt, tokens, seed, temperature)
    checkpoint = find_checkpoint(folder, step)
    model = checkpoint.job.model
    if model.build is not None or model.parameters is not None:
        message = f"{folder} trained {model.build or 'a model of its members'}, which is no language model"
        raise FarflungError(message, hint=f"get its weights with farflung export {folder} OUT")
    if checkpoint.job.train.task == "classification":
        message = f"{folder} trained a classifier, which names a text's class and writes none"
        raise FarflungError(message, hint=f"export it: farflung export {folder} OUT")
    if through is None and (why := _too_large(checkpoint)):
        say(f"{why}: one layer after the other, which takes long (--through layers)")
        through = "layers"
    if through == "layers":
        return _by_layers(checkpoint, prompt, tokens, seed, temperature)
    with tempfile.TemporaryDirectory() as exported:
        write_export(checkpoint, Path(exported), merge=model.lora is not None)
        return _continue(Path(exported), prompt, tokens, seed, temperature)


def _too_large(checkpoint: Checkpoint) -> str:
    """Why the whole model can't be loaded here; empty where it can."""
    definition = model_of(checkpoint.job, checkpoint.facts)
    # Loading needs memory for a weights file beside the model; so does the export before it.
    size = 4 * sum(math.prod(shape) for shape in definition.stored.values())
    needed, available = size + min(size, LARGEST_FILE), available_memory()
    if needed <= available:
        return ""
    return f"the model needs {needed / 1e9:.3g} GB of memory, {available / 1e9:.3g} GB are available"


def _by_layers(checkpoint: Checkpoint, prompt: str, tokens: int, seed: int, temperature: float) -> str:
    from .layered import tokens_by_layers

    tokenizer, ends = text_of(checkpoint)
    ids = tokenizer.prompt(prompt)
    new = takewhile(lambda token: token not in ends, tokens_by_layers(checkpoint, ids, seed, temperature))
    return added(tokenizer, ids, list(islice(new, tokens)))


def text_of(checkpoint: Checkpoint) -> tuple[Tokenizer, set[int]]:
    """The tokenizer of a run, and the tokens that end a text."""
    job = checkpoint.job
    tokenizer = load_tokenizer(job.data.tokenizer)
    ends = set() if job.model.pretrained is None else set(model_ends(Path(job.model.pretrained)))
    return tokenizer, ends if tokenizer.end is None else {*ends, tokenizer.end}


def added(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text that new tokens add to a prompt's."""
    return tokenizer.text([*prompt, *new])[len(tokenizer.text(prompt)) :]


def _continue(folder: Path, prompt: str, tokens: int, seed: int, temperature: float) -> str:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = load_tokenizer(str(folder))
    prompt_ids = tokenizer.prompt(prompt)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).float().eval()
    except (OSError, ValueError) as error:
        raise FarflungError(f"{folder} can't be loaded: {error}", hint="export the model again") from error
    ids = torch.tensor([prompt_ids])
    start = ids.shape[1]
    longest = longest_of(model.config.to_dict()) or DEFAULT_CONTEXT
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        while (left := start + tokens - ids.shape[1]) > 0:
            # A model sees at most `longest` tokens: of a longer text it is given the last `longest` // 2.
            seen = ids if ids.shape[1] < longest else ids[:, -max(1, longest // 2) :]
            count = min(left, longest - seen.shape[1])
            new = model.generate(seen, **_settings(model, tokenizer.end, seen, count, temperature))[:, seen.shape[1] :]
            ids = torch.cat([ids, new], dim=1)
            if new.shape[1] < count:
                break
    return added(tokenizer, prompt_ids, ids[0, start:].tolist())


def _settings(model: Any, own: int | None, ids: torch.Tensor, count: int, temperature: float) -> dict[str, Any]:
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    end = model.generation_config.eos_token_id
    ends = [] if end is None else list(end) if isinstance(end, list) else [end]
    ends += [] if own is None or own in ends else [own]
    stops = {"eos_token_id": ends, "pad_token_id": ends[0]} if ends else {"pad_token_id": 0}
    return {"attention_mask": torch.ones_like(ids), "max_new_tokens": count, **stops, **sampling}
