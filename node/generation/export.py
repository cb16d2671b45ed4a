"""A checkpoint as a folder that `transformers` loads: `farflung export STATE OUT`.

A checkpoint is STATE/checkpoints/step-NNNNNNNN: manifest.json, which has the job and the facts, and safetensors files
with fp32 tensors named by parameter (and "optimizer.*", which an export leaves out). A fine-tuned model is written
into the same files, under the same names and in the same types as the folder that it started from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...job.data.tokenizer_folder import FILES as TOKENIZER_FILES
from ...proto.errors import FarflungError
from ...proto.words.border import below
from ..models.classifier import Classifier
from ..models.definition import LanguageModel, ModelDefinition
from ..models.factory import model_of
from ..models.lora import ADAPTER_WEIGHTS, LoraModel, write_adapter
from ..models.weights.pretrained import CONFIG, INDEX, SINGLE, Weights, initial_weights, weights_of
from ..models.weights.safetensors_range import DTYPES
from .byte_tokenizer import write_byte_tokenizer
from .checkpoint import Checkpoint, Read, check_base, check_whole, find_checkpoint, open_tensors

LARGEST_FILE = 2 * 2**30  # bytes of a weights file, unless the input's files set the sizes


def export(state: Path, out: Path, step: int | None = None, merge: bool = False) -> Path:
    """Writes a checkpoint of the run in ``state`` (the newest unless ``step`` says which) to the new folder ``out``.

    Language models: config.json, weights, tokenizer files and generation_config.json. Models of a ``build``:
    model.safetensors and a note. Adapters ([model.lora]): a folder that `peft` loads (and transformers where `peft` is
    installed), or with ``merge`` the pretrained model with the adapters added. The folder is written whole or not at
    all. Raises FarflungError when there is no such checkpoint, a tensor is missing, the pretrained folder has changed,
    or ``out`` is not empty.
    """
    checkpoint = find_checkpoint(Path(state), step)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FarflungError(f"{out} exists already", hint=f"name a new folder, or remove {out} first")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        write_export(checkpoint, unfinished, merge)
        _open_to_readers(unfinished)
        if out.exists():
            out.rmdir()
        os.replace(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return out


def _open_to_readers(folder: Path) -> None:
    """Give the export the permissions of any new file: temporary folders and safetensors files are private."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)


def write_export(checkpoint: Checkpoint, folder: Path, merge: bool) -> None:
    """Writes all files of an export into an existing, empty folder."""
    job, facts = checkpoint.job, checkpoint.facts
    with ExitStack() as stack:
        tensors = open_tensors(checkpoint, stack)
        if job.model.parameters is not None:
            _write_own(tensors, checkpoint, folder)
            return
        definition = model_of(job, facts)
        check_whole(checkpoint, definition, tensors)
        if not isinstance(definition, LanguageModel):
            _write_build(definition, tensors, checkpoint, folder)
            return
        weights = weights_of(job, None)
        source = Path(str(job.model.pretrained))
        if isinstance(definition, LoraModel) and weights is not None:
            check_base(checkpoint, source)
            if merge and isinstance(definition, Classifier):
                _write_classifier(definition, weights, _merged(definition, weights, tensors), source, folder)
            elif merge:
                _write_like(definition, weights, _merged(definition, weights, tensors), source, folder)
            else:
                _save(write_adapter(definition, tensors, str(source), folder), folder / ADAPTER_WEIGHTS)
        elif weights is None:
            _write_fresh(definition, tensors, folder)
        elif isinstance(definition, Classifier):
            _write_classifier(definition, weights, tensors, source, folder)
        else:
            _write_like(definition, weights, tensors, source, folder)
    if job.data.tokenizer == "bytes":
        write_byte_tokenizer(folder, facts.context)
    else:
        _copy(Path(job.data.tokenizer), folder, TOKENIZER_FILES)


def _write_fresh(definition: LanguageModel, tensors: Mapping[str, Read], folder: Path) -> None:
    """A model that started from random weights: float32, in files of up to LARGEST_FILE bytes."""
    import transformers

    config = definition.config
    config.architectures = [type(definition.skeleton).__name__]
    config.use_cache = True
    config.save_pretrained(folder)
    stored = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    stored.pop("dtype", None)  # the key's name since transformers 5, which still reads the old "torch_dtype"
    (folder / CONFIG).write_text(json.dumps({**stored, "torch_dtype": "float32"}, indent=2), encoding="utf-8")
    transformers.GenerationConfig.from_model_config(config).save_pretrained(folder)

    def written(name: str) -> Tensor:
        return definition.exported(name, tensors[name]())

    _save_grouped(definition, {name: partial(written, name) for name in definition.stored}, folder)


def _write_classifier(
    definition: Classifier, weights: Weights, tensors: Mapping[str, Read], source: Path, folder: Path
) -> None:
    """A fine-tuned classifier, in the dtypes of the folder that it started from, without that folder's heads for other
    tasks; config.json names the classes."""
    kept = {name: weights.stored_name(definition, name) for name in definition.stored}
    types = {name: DTYPES[weights.slot(stored).dtype] for name, stored in kept.items() if stored is not None}
    usual = max(types.values(), key=list(types.values()).count, default=torch.float32)

    def read(name: str) -> Tensor:
        return tensors[name]().to(types.get(name, usual))

    _save_grouped(definition, {name: partial(read, name) for name in definition.stored}, folder)
    stored = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    made = definition.config.to_dict()
    of_its_own = {key: made[key] for key in ("id2label", "label2id", "problem_type", "pad_token_id")}
    stored |= {**of_its_own, "architectures": [type(definition.skeleton).__name__]}
    stored.pop("num_labels", None)
    (folder / CONFIG).write_text(json.dumps(stored, indent=2), encoding="utf-8")


def _save_grouped(definition: LanguageModel, tensors: Mapping[str, Read], folder: Path) -> None:
    """All parameters, in files of up to LARGEST_FILE bytes."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, shape in definition.stored.items():
        bytes_ = 4 * torch.Size(shape).numel()
        if size + bytes_ > LARGEST_FILE and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += bytes_
    if len(groups) == 1:
        _save({name: tensors[name]() for name in groups[0]}, folder / SINGLE)
        return
    file_of = {}
    for number, names in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        _save({name: tensors[name]() for name in names}, folder / file)
        file_of.update(dict.fromkeys(names, file))
    total = sum(4 * torch.Size(shape).numel() for shape in definition.stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": file_of}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _write_like(
    definition: LanguageModel, weights: Weights, tensors: Mapping[str, Read], source: Path, folder: Path
) -> None:
    """A fine-tuned model: the source's files, with the trained values in the source's dtypes."""
    parameter_of, made_of = {}, {}
    for name in definition.stored:
        if name not in tensors:
            continue  # it does not train: keep the source's value
        stored = weights.stored_name(definition, name)
        if stored is not None:
            parameter_of[stored] = name
        elif (made := weights.made(definition, name)) is not None:
            made_of.update({source: made for source, _ in made.sources})
        else:
            raise FarflungError(f"{source} lacks the tensor {name} now", hint="put the pretrained folder back")
        if name == definition.tied:
            parameter_of.update(dict.fromkeys(weights.heads(definition), name))
    inner = {definition.inner(name): name for name in definition.stored}
    for file in dict.fromkeys(weights.file_of.values()):
        written: dict[str, Tensor] = {}
        for stored in (name for name, where in weights.file_of.items() if where == file):
            if stored in written:
                continue
            dtype = DTYPES.get(weights.slot(stored).dtype)
            if stored in parameter_of:
                written[stored] = tensors[parameter_of[stored]]().to(dtype)
            elif stored in made_of:
                whole = made_of[stored].written(lambda one: tensors[inner[one]]())
                written |= {
                    one: values.to(dtype, copy=True) for one, values in whole.items() if weights.file_of[one] == file
                }
            else:  # not a parameter of the model, such as GPT-2's old causal masks: copy it
                with safe_open(source / file, framework="pt") as whole_file:
                    written[stored] = whole_file.get_tensor(stored)
        _save(written, below(folder, file))
    _copy(source, folder, (CONFIG, "generation_config.json", *(() if SINGLE in weights.file_of.values() else (INDEX,))))
    if not (folder / "generation_config.json").exists():
        import transformers

        transformers.GenerationConfig.from_model_config(definition.config).save_pretrained(folder)


def _merged(definition: LoraModel, weights: Weights, tensors: Mapping[str, Read]) -> dict[str, Read]:
    """Readers of the model's parameters: those of the base with their adapters added, others as they were trained."""

    def read(name: str) -> Tensor:
        (base,) = initial_weights(definition, [name], 0, weights).values()
        return definition.merged(name, base, lambda adapter: tensors[adapter]())

    return {name: tensors[name] if name in definition.shapes else partial(read, name) for name in definition.stored}


def _write_build(
    definition: ModelDefinition, tensors: Mapping[str, Read], checkpoint: Checkpoint, folder: Path
) -> None:
    _save({name: tensors[name]() for name in definition.shapes}, folder / SINGLE)
    spec = str(checkpoint.job.model.build)
    module, _, function = spec.partition(":")
    note = f"""Weights of {spec} after step {checkpoint.step} of the run {checkpoint.job.run.name!r}, float32.

    from safetensors.torch import load_file
    from {module} import {function}

    model, loss = {function}()
    model.load_state_dict(load_file("{SINGLE}"), strict=False)   # False: buffers are not in the file
"""
    (folder / "README.md").write_text(note, encoding="utf-8")


def _write_own(tensors: Mapping[str, Read], checkpoint: Checkpoint, folder: Path) -> None:
    _save({name: read() for name, read in tensors.items()}, folder / SINGLE)
    note = f"""Weights of the members' own model after step {checkpoint.step} of the run {checkpoint.job.run.name!r},
float32: the parameters that were trained.

    from safetensors.torch import load_file

    model.load_state_dict(load_file("{SINGLE}"), strict=False)
"""
    (folder / "README.md").write_text(note, encoding="utf-8")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    # Both names of a tied parameter may be in one file; safetensors requires separate memory for each.
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        separate[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(separate, path, {"format": "pt"})


def _copy(source: Path, folder: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
