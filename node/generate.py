"""Text from a trained language model: `farflung generate STATE PROMPT`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from ..proto.errors import FarflungError
from .export import find_checkpoint, write_export


def generate(
    folder: Path, prompt: str, tokens: int = 200, seed: int = 1, temperature: float = 0.8, step: int | None = None
) -> str:
    """The text that a model adds to ``prompt``: ``tokens`` tokens, fewer where the model ends the text itself.

    ``folder`` is an exported folder, or the state folder of a run, whose checkpoint of ``step`` (the newest unless
    given) is exported to a temporary folder. The same ``seed`` gives the same text; ``temperature`` 0 always takes
    the likeliest token. Runs on the CPU. Raises FarflungError for an empty prompt or a model that has no text.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return _continue(folder, prompt, tokens, seed, temperature)
    checkpoint = find_checkpoint(folder, step)
    model = checkpoint.job.model
    if model.build is not None or model.parameters is not None:
        message = f"{folder} trained {model.build or 'a model of its members'}, which is no language model"
        raise FarflungError(message, hint=f"get its weights with farflung export {folder} OUT")
    with tempfile.TemporaryDirectory() as exported:
        write_export(checkpoint, Path(exported), merge=model.lora is not None)
        return _continue(Path(exported), prompt, tokens, seed, temperature)


def _continue(folder: Path, prompt: str, tokens: int, seed: int, temperature: float) -> str:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    except (OSError, ValueError) as error:
        raise FarflungError(f"{folder} can't be loaded: {error}", hint="export the model again") from error
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=True)["input_ids"]
    if ids.shape[1] == 0:
        raise FarflungError("the prompt is empty", hint="give at least one word to go on from")
    start = ids.shape[1]
    longest = int(model.config.max_position_embeddings)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        while (left := start + tokens - ids.shape[1]) > 0:
            # A model sees at most `longest` tokens: where the text is longer, its last half goes on.
            seen = ids if ids.shape[1] < longest else ids[:, -max(1, longest // 2) :]
            count = min(left, longest - seen.shape[1])
            new = model.generate(seen, **_settings(model, seen, count, temperature))[:, seen.shape[1] :]
            ids = torch.cat([ids, new], dim=1)
            if new.shape[1] < count:
                break
    before = tokenizer.decode(ids[0, :start], skip_special_tokens=True)
    after: str = tokenizer.decode(ids[0], skip_special_tokens=True)
    return after[len(before) :]


def _settings(model: Any, ids: torch.Tensor, count: int, temperature: float) -> dict[str, Any]:
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    end = model.generation_config.eos_token_id
    pad = (end[0] if isinstance(end, list) else end) or 0
    return {"attention_mask": torch.ones_like(ids), "max_new_tokens": count, "pad_token_id": pad, **sampling}
