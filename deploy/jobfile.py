"""The commented job file that ``farflung job init`` writes."""

from __future__ import annotations

from pathlib import Path

from ..proto.errors import FarflungError

TEMPLATE = """\
# A farflung job: what to train. Start it with `farflung run {name}` (everything on this machine), or with
# `farflung coordinator start {name}`, which prints the line that other machines join with.
# A line that begins with "# key =" shows a key and its default or an example.

[run]
name = "{stem}"                 # the state folder is runs/NAME
seed = 1
epochs = 5                      # passes over the data; or: steps = 300

[model]
# One of three: a family with its shape, a folder to fine-tune, or a function of yours.
{model}
# dropout = 0.0                 # the same on every node: keyed by sample and layer

[data]
text = ["data/*.txt"]           # relative to this file; or: jsonl = ["data/*.jsonl"] with field = "text"
tokenizer = {tokenizer}
validation = 0.05               # the part that is held out

[train]
batch = 32                      # samples a step, over all pipelines: the same whatever joins
microbatch = 4                  # has to divide the batch
optimizer = "adamw"             # adamw | sgd
learning_rate = {rate}
warmup_steps = 50
decay = "cosine"                # cosine | none
weight_decay = 0.0
clip = 1.0                      # largest global gradient norm; 0: none
precision = "fp32"              # fp32 | bf16
recompute = false               # activations again in the backward pass: slower, less memory
eval_every = 50

[parallel]
stages = "auto"                 # how many pieces the model is cut into; or a number
pipelines = "auto"              # how many copies of it train; or a number
schedule = "1f1b"               # 1f1b | gpipe
min_nodes = 1                   # the run starts when so many nodes have joined

[updates]
mode = "delta"                  # delta: compressed changes of weights | gradient: exactly data-parallel SGD
every = 1                       # steps between two rounds
overlap = 1                     # steps that a round may be in flight: 0 waits for it, 1 hides it
codec = "cocktail:random=0.1,top=0.2,bits=4"    # `farflung codecs` lists them all
dense_rounds = 20               # the first rounds go uncompressed

[activations]
forward = "aqsgd:bits=4"        # needs 2 epochs or more; else: int8
backward = "int8"

[checkpoint]
every = 100                     # steps
keep = 3
to = "checkpoints"              # a folder, relative to the state folder
"""

_FAMILY = """\
family = "gpt2"                 # gpt2 | llama | gpt_neox
layers = 4
width = 128
heads = 4
context = 128                   # tokens
# pretrained = "folder"         # config.json and *.safetensors, as transformers saves them
# build = "package.module:function"   # returns a torch.nn.Sequential and a loss"""

_PRETRAINED = """\
pretrained = {folder}
context = 128                   # tokens of a training sample, at most what the model was made for"""


def write(path: Path, pretrained: Path | None = None, force: bool = False) -> str:
    """Write the template to ``path``; returns what to type next.

    Args:
        path: the new job file; an existing one is refused unless ``force``.
        pretrained: a model folder to fine-tune: it is also the tokenizer's folder if it holds one.
    """
    if path.exists() and not force:
        raise FarflungError(f"{path} exists already", "give another name, or --force to overwrite it")
    tokenizer = '"bytes"             # or a folder that transformers\' AutoTokenizer loads'
    model, rate = _FAMILY, "1e-3"
    if pretrained is not None:
        if not (pretrained / "config.json").is_file():
            raise FarflungError(f"{pretrained} has no config.json", "name a folder that transformers saved a model to")
        model = _PRETRAINED.format(folder=_quoted(pretrained))
        rate = "5e-5            # small steps: the model knows a lot already"
        if (pretrained / "tokenizer_config.json").is_file():
            tokenizer = f"{_quoted(pretrained)}   # a folder that AutoTokenizer loads"
    stem = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in path.stem)
    try:
        text = TEMPLATE.format(name=path, stem=stem, model=model, tokenizer=tokenizer, rate=rate)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FarflungError(f"can't write {path}: {error.strerror}") from error
    return f"farflung run {path}"


def _quoted(path: Path) -> str:
    text = str(path.resolve()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
