"""The commented job file that ``farflung job init`` writes: the keys that people set first, then all others."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...job.data.tokenizer_folder import tokenizer_files
from ...job.files import run_name
from ...job.model_folder.config import folder_hint, pretrained_config
from ...job.model_folder.positions import longest_of
from ...job.schema import Job
from ...proto.errors import FarflungError
from ..screen.units import bytes_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DELTA = """\
mode = "delta"                  # compressed changes of weights; or gradient, data-parallel SGD: `--mode gradient`
every = 5                       # steps between two rounds of a weight; or "auto" (fragments = 1): as few as links allow
fragments = 5                   # parts of the weights that take turns, one in each round: here a round a step
overlap = 1                     # steps that a round may be in flight: 0 waits for it, 1 hides it; or "auto"
codec = "eden:bits=1,biased=true"    # `farflung codecs` lists them; or "auto": as gentle as the links allow
dense_rounds = 20               # the first rounds go uncompressed
"""

TEMPLATE = (
    """\
# A farflung job: what to train. Start it with `farflung run {name}` (everything on this machine), or with
# `farflung coordinator start {name}`, which prints the line that other machines join with.
# A line that begins with "# key =" shows a key and its default or an example.{hardware}

[run]
name = {stem:<24} # the state folder is runs/NAME
seed = 1
epochs = 5                      # passes over the data; or steps

[model]
# One of three: a family with its shape, a folder to fine-tune, or a function of yours.
{model}

[data]
{data}
tokenizer = {tokenizer}
validation = 0.05               # the part that is held out

[train]
batch = {batch:<23} # samples a step, over all pipelines: the same whatever joins
microbatch = {microbatch:<18} # has to divide the batch; or "auto"
optimizer = "adamw"             # adamw | sgd | lamb | lion | muon (delta) | adafactor | onebit_adam (gradient)
learning_rate = {rate}
warmup_steps = 50
decay = "cosine"                # cosine | linear | wsd | inverse_sqrt | none
weight_decay = 0.0
clip = 1.0                      # largest global gradient norm; 0: none
precision = {precision}              # fp32 | bf16: on GPUs of 2020 and later | fp16
recompute = false               # activations again in the backward pass: slower, less memory; or "auto"
eval_every = 50

[parallel]
stages = "auto"                 # how many pieces the model is cut into; or a number
pipelines = "auto"              # how many copies of it train; or a number
schedule = "1f1b"               # 1f1b | gpipe | interleaved | auto
min_nodes = {nodes:<19} # the run starts when this many nodes have joined

[updates]
# What settings cost in loss: docs/quality.md; of the same bits, optimizer = "muon" made the most there.
"""
    + _DELTA
    + """
[activations]
forward = "auto"                # as little as each link needs: none, bf16, int8, or aqsgd:bits=4; or a codec
backward = "int8"

[checkpoint]
every = 100                     # steps
keep = 3
to = "checkpoints"              # a folder, relative to the state folder

[eval]
sets = []                       # other data to evaluate on: tables [[eval.sets]], see docs/how-to/evaluate.md
"""
)

_GRADIENT = """\
mode = "gradient"               # exactly data-parallel SGD, a round each step; or delta: `--mode delta`
every = 1                       # of gradient: 1
fragments = 1                   # of gradient: 1
overlap = 0                     # of gradient: 0; the round begins within the backward pass
codec = "auto"                  # none, bf16 or int8, as gentle as the links allow; or one that `farflung codecs` lists
dense_rounds = 0                # so many first rounds go uncompressed
"""
"""What the template's table ``updates`` has for that mode, instead of _DELTA."""

_FAMILY = """\
family = "gpt2"                 # gpt2 | llama | mistral | qwen2 | qwen3 | olmo2 | smollm3 | granite | phi3 | gpt_neox
layers = 4
width = 128
heads = 4
context = 128                   # tokens of a training sample"""

_PRETRAINED = """\
pretrained = {folder}
context = {context:<21} # tokens of a training sample, at most {longest}"""


_TEXT = (
    'text = ["data/*.txt"]           # relative to this file, or s3://... and whatever else fsspec reaches; '
    "or another source"
)

_CONTEXT = 128
"""Tokens of a sample of the template, where the model takes as many."""
_MICROBATCH = 4
"""A batch of the template has 8 of these, or one for each device that it is written for."""

_EXAMPLES = {
    "steps": "300",
    "critical_batch": "2000",
    "family": '"gpt2"',
    "layers": "12",
    "width": "768",
    "heads": "12",
    "context": "1024",
    "vocabulary": "50304",
    "kv_heads": "4",
    "parameters": "124439808",
    "samples": "100000",
    "pretrained": '"folder"',
    "build": '"package.module:function"',
    "tie": "true",
    "subspace": "64",
    "router_loss": "0.001",
    "lora": "{ rank = 8, alpha = 16 }",
    "text": '["data/*.txt"]',
    "jsonl": '["data/*.jsonl"]',
    "parquet": '["data/*.parquet"]',
    "webdataset": '["shards/*.tar"]',
    "tokens": '["data/*.bin"]',
    "chat": '["chats/*.jsonl"]',
    "labelled": '["reviews/*.csv"]',
    "preferences": '["pairs/*.jsonl"]',
    "pair": '"question"',
    "classes": '["no", "yes"]',
    "command": '"lm_eval --model hf --model_args pretrained={model} --tasks hellaswag --output_path {folder}"',
    "mix": '[{ weight = 3, text = ["a/*.txt"] }, { weight = 1, jsonl = ["b/*.jsonl"] }]',
}
"""What to show of keys that have no default."""


def write(
    path: Path,
    pretrained: Path | None = None,
    force: bool = False,
    devices: Sequence[Mapping[str, Any]] = (),
    data: tuple[str, str, str | None] | None = None,
    mode: str = "delta",
) -> str:
    """Write a job file to ``path``; returns what to type next.

    Args:
        path: the new job file; an existing one is refused unless ``force``.
        pretrained: a model folder to fine-tune: it is also the tokenizer's folder if it holds one.
        devices: what will train, each with ``kind`` (cpu, cuda, mps), ``description`` and ``memory_bytes``, as far as
            they are known.
        data: a file or pattern to train on, the key of ``[data]`` that reads it, and the field where it needs one.
        mode: of the updates: delta or gradient; the keys that go with it are written too.
    """
    if path.exists() and not force:
        raise FarflungError(f"{path} exists already", "give another name, or --force to overwrite it")
    tokenizer = '"bytes"             # or a folder that transformers\' AutoTokenizer loads'
    model, rate = _FAMILY, "1e-3"
    if pretrained is not None:
        if not (pretrained / "config.json").is_file():
            raise FarflungError(f"{pretrained} has no config.json", folder_hint(str(pretrained)))
        folder = _quoted(pretrained, path.parent)
        longest = longest_of(pretrained_config(str(pretrained)))
        most = f"the {longest} of this model" if longest else "what the model was made for"
        model = _PRETRAINED.format(folder=folder, context=min(_CONTEXT, longest or _CONTEXT), longest=most)
        rate = "5e-5            # small steps: the model knows a lot already; with [model.lora] 5e-4"
        if tokenizer_files(pretrained):
            tokenizer = f"{folder}   # a folder that AutoTokenizer loads"
    if mode not in ("delta", "gradient"):
        raise FarflungError(f"--mode {mode} is none; allowed: delta, gradient")
    template = TEMPLATE.replace(_DELTA, _GRADIENT) if mode == "gradient" else TEMPLATE
    text = template.format(
        name=shlex.quote(str(path)),
        stem=f'"{run_name(path)}"',
        model=model,
        data=_TEXT if data is None else _source(*data, path.parent),
        tokenizer=tokenizer,
        rate=rate,
        precision='"bf16"' if devices and all(one.get("kind") == "cuda" for one in devices) else '"fp32"',
        nodes=max(1, len(devices)),
        batch=_MICROBATCH * max(8, len(devices)),
        microbatch=_MICROBATCH,
        hardware=_hardware(devices),
    )
    try:
        path.write_text(with_every_key(text), encoding="utf-8")
    except OSError as error:
        raise FarflungError(f"can't write {path}: {error.strerror}") from error
    return f"farflung run {shlex.quote(str(path))}"


def _source(data: str, key: str, field: str | None, start: Path) -> str:
    """The line of ``[data]`` that reads these files, and what else they need."""
    where = f'"{data}"' if "://" in data else _quoted(Path(data), start)
    line = f"{key} = [{where}]"
    if key == "chat":
        return f"{line:<31} # conversations: the assistant's turns are learnt (docs/how-to/chat.md)"
    return line + (f'\nfield = "{field}"' if field else "")


def compression() -> dict[str, dict[str, Any]]:
    """The tables ``updates`` and ``activations`` of the template: what a job made in Python has that says nothing
    of them."""
    tables = dict(zip(*[iter(re.split(r"^\[(\w+)\]\n", TEMPLATE, flags=re.MULTILINE)[1:])] * 2, strict=True))
    return {name: tomllib.loads(tables[name]) for name in ("updates", "activations")}


def with_every_key(text: str) -> str:
    """The job file with every key of its tables: those that it lacks as comments; each says what is allowed."""
    parts = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    done = parts[0]
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        kind: Any = Job.model_fields[name].annotation
        lines = body.rstrip().splitlines()
        for key, one in kind.model_fields.items():
            at = next((at for at, line in enumerate(lines) if line.startswith(f"{key} =")), None)
            if at is None:
                lines.append(_commented(f"# {key} = {_shown(key, one.default)}", one.description))
            elif "#" not in lines[at]:
                lines[at] = _commented(lines[at], one.description)
        done += "\n".join([f"[{name}]", *lines]) + "\n\n"
    return done.rstrip() + "\n"


def _commented(line: str, allowed: str | None) -> str:
    return f"{line:<31} # {allowed}" if allowed and not line.endswith(f" = {allowed}") else line


def _shown(key: str, default: Any) -> str:
    """A key's default in TOML, or an example where it has none."""
    if default is None:
        return _EXAMPLES[key]
    if isinstance(default, tuple):
        return str(list(default))
    return str(default).lower() if isinstance(default, bool) else repr(default).replace("'", '"')


def _hardware(devices: Sequence[Mapping[str, Any]]) -> str:
    """A comment that says what the file was written for."""
    if not devices:
        return ""
    kinds = Counter(str(one.get("description") or one.get("kind") or "a device") for one in devices)
    least = min((int(one["memory_bytes"]) for one in devices if one.get("memory_bytes")), default=0)
    memory = f"; the smallest has {bytes_text(least)} of memory" if least else ""
    return f"\n# For {', '.join(f'{count} x {kind}' for kind, count in kinds.items())}{memory}."


def _quoted(path: Path, start: Path) -> str:
    """A path as the job file has it: from its own folder, so that both can be moved together; absolute where only
    the root is common."""
    whole, beside = path.resolve(), start.resolve()
    near = os.path.commonpath([whole, beside]) != whole.anchor
    text = Path(os.path.relpath(whole, beside)).as_posix() if near else str(whole)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
