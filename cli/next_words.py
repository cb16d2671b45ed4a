"""What to type next when a run is done, and how to load its exported model, depending on the kind of model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..job.tables.model import Model


def fresh(parent: Path, name: str) -> Path:
    """The first of NAME, NAME-2, ... that does not exist in a folder."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def following(state: str, model: Model, here: Path | None = None, task: str = "language") -> str:
    """What to type when a run of a coordinator on this machine is done. ``here``: the working folder."""
    out = fresh(here or Path(), "adapter" if model.lora is not None else "model").name
    export = f"next: farflung export {state} {out}"
    if model.build is not None or model.parameters is not None:
        return f"{export} writes the weights, for load_state_dict"
    if task == "classification" and model.lora is not None:
        return f"{export} writes adapter and head, for peft; with --merge the whole classifier, for transformers"
    if task == "classification":
        return f"{export} writes the classifier, for transformers"
    generate = f'farflung generate {state} "Once upon a time"'
    if model.lora is not None:
        return f"{export} writes the adapter, with --merge the whole model; or {generate}"
    return f"{export}, or {generate}"


def load_line(folder: Path) -> str:
    """The line of Python that loads an exported folder."""
    if (folder / "adapter_config.json").is_file():
        load = f"peft.PeftModel.from_pretrained(base, {str(folder)!r}), base being the model that was tuned"
        return f"{load}; farflung export --merge writes the whole model instead of the adapter"
    if (folder / "config.json").is_file():
        kinds = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
        classifies = str(kinds[0]).endswith("ForSequenceClassification")
        auto = "AutoModelForSequenceClassification" if classifies else "AutoModelForCausalLM"
        return f"transformers.{auto}.from_pretrained({str(folder)!r})"
    weights = str(folder / "model.safetensors")
    return f"model.load_state_dict(safetensors.torch.load_file({weights!r}), strict=False)"
