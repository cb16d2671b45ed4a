"""Reading a job file: every mistake in one message, with file, line, key, what is allowed and the nearest word.

tomllib keeps no positions, so :func:`key_lines` finds the line of every key with a small scanner of its own.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path, PurePath
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from ..proto.errors import JobError
from . import hub
from .lfs import HINT, pointer_at
from .patterns import as_glob
from .schema import SECURE_MEMBERS, SOURCES, UNAGREED, CheckCodec, Facts, Job, Mixed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Key = tuple[str, ...]
Mistake = tuple[Key, str]

_LATER = {
    ("model", "untie"): "model.untie; write tie = false",
    ("run", "database"): "a database server",
}
_RESUMABLE = {
    ("run", "steps"),
    ("run", "epochs"),
    ("updates", "codec"),
    ("activations", "forward"),
    ("activations", "backward"),
    ("activations", "by_link"),
    ("train", "learning_rate"),
    ("train", "min_learning_rate_ratio"),
    ("train", "warmup_steps"),
    ("train", "decay"),
    ("train", "cooldown_steps"),
    ("train", "eval_every"),
    ("parallel", "min_nodes"),
    ("checkpoint", "every"),
    ("checkpoint", "keep"),
}
_SETTABLE = sorted(".".join(key) for key in _RESUMABLE - {("parallel", "min_nodes")})
_FILES = {("data", name) for name in (*SOURCES, "validation", "tokenizer", "mix")}
_FILES |= {("model", "pretrained")}


def load_job(path: str | Path, check_codec: CheckCodec | None = None, files: bool = True) -> Job:
    """Read and check a job file; relative paths in it are taken from its folder. JobError names every mistake.

    files: whether the files that it names are looked for; a plan needs none of the data.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(f"there is no job file {path}", "`farflung job init` writes one") from None
    except IsADirectoryError:
        raise JobError(f"{path} is a folder, not a job file", f"name the file, e.g. {path / 'job.toml'}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobError(f"cannot read the job file {path}: {why}", "`farflung job init` writes one") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not TOML: {error}", _toml_hint(text, str(error))) from None
    lines = key_lines(text)
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        raise _job_error(path, lines, list(_schema_mistakes(error, raw))) from None
    job = _resolved(job, path, files)
    mistakes = list(job_mistakes(job, check_codec, files))
    if mistakes:
        raise _job_error(path, lines, mistakes)
    return job


def _toml_hint(text: str, problem: str) -> str:
    """What to write instead; the line that the problem names is looked at."""
    named = re.search(r"line (\d+)", problem)
    line = text.splitlines()[int(named[1]) - 1 :][:1] if named else []
    if line and re.search(r'"[^"]*\\', line[0]):
        return r"in double quotes a \ begins an escape: write the path in single quotes, 'C:\data\*.txt', or with /"
    return 'strings need quotes: name = "x"'


def run_name(path: Path) -> str:
    """The name of a run whose job file does not say one: the file's, of letters that a name may have."""
    return re.sub(r"[^\w.-]", "-", path.stem)


def key_lines(text: str) -> dict[Key, int]:
    """Line number (from 1) of every table header and ``key =`` of a TOML text, by full key."""
    found: dict[Key, int] = {}
    table: Key = ()
    depth, quote = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not depth and not quote:
            if stripped.startswith("["):
                table = _key(stripped.split("#")[0].strip().strip("[]"))
                found.setdefault(table, number)
                continue
            if "=" in stripped and not stripped.startswith("#"):
                found.setdefault(table + _key(stripped.split("=", 1)[0]), number)
        depth, quote = _scan(line, depth, quote)
    return found


def _key(text: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _scan(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Bracket depth and open triple quote after a line."""
    at = 0
    while at < len(line):
        rest = line[at:]
        if quote:
            if rest.startswith("\\") and quote[0] == '"':
                at += 2
                continue
            if rest.startswith(quote):
                at += len(quote)
                quote = ""
                continue
        elif rest[0] == "#":
            break
        elif rest[0] in "\"'":
            quote = rest[0] * 3 if rest.startswith(rest[0] * 3) else rest[0]
            at += len(quote)
            continue
        elif rest[0] in "[{":
            depth += 1
        elif rest[0] in "]}":
            depth -= 1
        at += 1
    return max(depth, 0), quote if len(quote) == 3 else ""


def _job_error(path: Path, lines: dict[Key, int], mistakes: list[Mistake]) -> JobError:
    """One error of all mistakes, in the order of the file."""
    placed = []
    for key, sentence in mistakes:
        line = next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), 0)
        placed.append((line or 10**9, f"{path}:{line}: {sentence}" if line else f"{path}: {sentence}"))
    placed.sort(key=lambda item: item[0])
    count = "" if len(placed) == 1 else f" ({len(placed)} mistakes)"
    return JobError("\n".join(text for _, text in placed), f"edit {path} and start again{count}")


def _schema_mistakes(error: ValidationError, raw: dict[str, Any]) -> Iterator[Mistake]:
    told: set[Key] = set()
    for item in error.errors():
        parts = [str(part) for part in item["loc"] if isinstance(part, str)]
        length = 1
        while length < len(parts) and _table(parts[:length]).model_fields:
            length += 1
        key = tuple(parts[:length])
        if key not in told:  # a value that may be of two kinds is wrong for each of them
            told.add(key)
            yield key, _schema_sentence(key, item, raw)


def _schema_sentence(key: Key, item: Any, raw: dict[str, Any]) -> str:
    name = ".".join(key)
    if item["type"] == "extra_forbidden":
        if key in _LATER:
            return f"{name}: not yet: {_LATER[key]}"
        if len(key) == 1:
            return f"unknown table [{name}]{_nearest(key[0], Job.model_fields)}; allowed: {_words(Job.model_fields)}"
        known = _table(key[:-1]).model_fields
        elsewhere = [f"[{other}]" for other in Job.model_fields if key[-1] in _table([other]).model_fields]
        near = f"; it belongs into {' or '.join(elsewhere)}" if elsewhere else _nearest(key[-1], known)
        return f"unknown key {name}{near}; allowed in [{'.'.join(key[:-1])}]: {_words(known)}"
    if item["type"] == "missing":
        return f"the table [{name}] is missing" if len(key) == 1 else f"{name} is missing; allowed: {_allowed(key)}"
    if item["type"] in ("not_yet", "choice"):
        return f"{name}: {item['msg']}"
    if len(key) == 1:
        return f"[{name}] must be a table"
    return f"{name} = {_shown(item.get('input'))} is wrong: allowed is {_allowed(key)}"


def _allowed(key: Key) -> str:
    field = _table(key[:-1]).model_fields.get(key[-1])
    return field.description or "see docs/reference.md" if field else "see docs/reference.md"


def _table(path: Sequence[str]) -> type[BaseModel]:
    """The table ``[a.b]`` of the path ("a", "b"); one without keys where there is none."""
    kind: type[BaseModel] = Job
    for name in path:
        field = kind.model_fields.get(name)
        kinds = _parts_of(field.annotation) if field else []
        kind = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), BaseModel)
    return kind


def _parts_of(kind: Any) -> list[Any]:
    """A type, and what it is made of: ``list[Mixed] | None`` of ``Mixed`` too."""
    return [kind, *(part for inner in get_args(kind) for part in _parts_of(inner))]


def _words(known: Any) -> str:
    return ", ".join(known)


def _nearest(word: str, known: Any) -> str:
    american = {"optimiser": "optimizer", "tokeniser": "tokenizer"}.get(word, word)
    near = difflib.get_close_matches(american, list(known), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _resolved(job: Job, path: Path, files: bool) -> Job:
    """Paths made absolute from the job file's folder, names of the hub made folders of its cache; the run named after
    the file unless it has a name. ``files``: also the weights are wanted."""
    folder = path.resolve().parent

    def absolute(text: str) -> str:
        return text if "://" in text else str(folder / Path(text).expanduser())

    patterns = {**job.data.sources(), **({"validation": job.data.held_out()} if job.data.held_out() else {})}
    if job.data.where == "node":
        patterns = {}  # each node has them in a folder of its own
    data: dict[str, Any] = {name: [absolute(pattern) for pattern in some] for name, some in patterns.items()}
    if job.data.mix:

        def moved(one: Mixed) -> Mixed:
            own = {name: [absolute(pattern) for pattern in some] for name, some in one.sources().items()}
            return one.model_copy(update=own)

        data["mix"] = [moved(one) for one in job.data.mix]

    def found(text: str, key: str, patterns: Sequence[str]) -> str:
        if not hub.is_name(text) or (folder / text).exists():
            return absolute(text)
        return hub.folder_of(text, key, patterns)

    tokenizer, pretrained = job.data.tokenizer, job.model.pretrained
    if tokenizer != "bytes":
        tokenizer = found(tokenizer, "data.tokenizer", hub.WORDS)
    if pretrained is not None:
        pretrained = found(pretrained, "model.pretrained", hub.WEIGHTS if files else hub.CONFIG)
    return job.model_copy(
        update={
            "run": job.run.model_copy(update={"name": job.run.name or run_name(path)}),
            "data": job.data.model_copy(update={**data, "tokenizer": tokenizer}),
            "model": job.model.model_copy(update={"pretrained": pretrained}),
        }
    )


def job_mistakes(job: Job, check_codec: CheckCodec | None = None, files: bool = True) -> Iterator[Mistake]:
    """What is wrong with a job whose every value is allowed by itself: (key, sentence). ``files``: the files that it
    names are of this machine; a node must not look for those of a job that came from another."""
    yield from _model_mistakes(job, files)
    yield from _data_mistakes(job, files)
    yield from _train_mistakes(job)
    yield from _update_mistakes(job, check_codec)
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


def _model_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    model = job.model
    given = [name for name in ("family", "pretrained", "build", "parameters") if getattr(model, name) is not None]
    if len(given) != 1:
        have = f"both {' and '.join(given)}" if given else "none of them"
        yield ("model",), f"[model] needs exactly one of family, pretrained, build, parameters; it has {have}"
        return
    shape = [
        name
        for name in ("layers", "width", "heads", "vocabulary", "kv_heads", "tie")
        if getattr(model, name) is not None
    ]
    if given != ["family"] and shape:
        keys = ", ".join(f"model.{name}" for name in shape)
        yield ("model", shape[0]), f"{keys} cannot be given with model.{given[0]}, which decides it; leave it out"
    if model.family:
        for name in ("layers", "width", "heads", "context"):
            if getattr(model, name) is None:
                yield ("model",), f"model.{name} is missing; allowed: {_allowed(('model', name))}"
        if model.width and model.heads and model.width % model.heads:
            yield ("model", "width"), f"model.width = {model.width} is not a multiple of model.heads = {model.heads}"
        if model.kv_heads and model.heads and model.heads % model.kv_heads:
            yield (
                ("model", "kv_heads"),
                f"model.kv_heads = {model.kv_heads} does not divide model.heads = {model.heads}",
            )
        if model.kv_heads and model.family in ("gpt2", "gpt_neox"):
            yield ("model", "kv_heads"), f"model.kv_heads has no meaning in the family {model.family}; leave it out"
    if model.pretrained and files:
        yield from _pretrained_mistakes(model.pretrained)
    if model.lora is not None:
        if not model.pretrained:
            yield ("model", "lora"), "model.lora needs model.pretrained, the model beside which adapters train"
        if model.lora.base == "bf16" and job.train.precision != "bf16":
            sentence = 'model.lora.base = "bf16" computes in bf16'
            yield ("model", "lora", "base"), f'{sentence}: it needs train.precision = "bf16"'
        if model.lora.dropout:
            sentence = f"not yet: model.lora.dropout = {model.lora.dropout}: a step that is computed again"
            yield ("model", "lora", "dropout"), f"{sentence} would drop other elements; allowed: 0"
    stages, layers = job.parallel.stages, block_count(job) if files else model.layers
    if model.lora is not None and stages != "auto" and layers and stages > layers:
        sentence = f"parallel.stages = {stages} is more than the model's {layers} blocks"
        yield ("parallel", "stages"), f"{sentence}, and with model.lora each stage needs one"
        return
    if stages != "auto" and layers and stages > layers + 2:
        sentence = f"parallel.stages = {stages} is more than the model's {layers + 2} layers"
        yield ("parallel", "stages"), f"{sentence} (embedding, {layers} blocks, head)"


def pretrained_config(folder: str) -> dict[str, Any]:
    """config.json of a model folder. JobError when it is missing or not JSON."""
    path = Path(folder) / "config.json"
    try:
        if pointer_at(path):
            raise JobError(f"model.pretrained: {path} is a Git LFS pointer, not the file itself", HINT)
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "has no config.json" if Path(folder).is_dir() else "is not a folder"
        raise JobError(f"model.pretrained = {folder!r} {what}", folder_hint(folder)) from None
    except (OSError, ValueError) as error:
        raise JobError(f"model.pretrained: cannot read {path}: {error}") from None
    return config if isinstance(config, dict) else {}


def folder_hint(name: str) -> str:
    """What to do where a model folder is none: a name of the Hugging Face hub is to be downloaded first."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists():
        local = name.rpartition("/")[2]
        return f"a name on the Hugging Face hub is downloaded first: hf download {name} --local-dir {local}"
    return "give a folder as transformers' save_pretrained writes it"


def _pretrained_mistakes(folder: str) -> Iterator[Mistake]:
    key = ("model", "pretrained")
    try:
        config = pretrained_config(folder)
    except JobError as error:
        yield key, str(error)
        return
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        yield key, f"model.pretrained = {folder!r}: its config.json names no model_type"
    if not any(Path(folder).glob("*.safetensors")):
        yield key, f"model.pretrained = {folder!r} has no *.safetensors; save it with safe_serialization=True"


def block_count(job: Job) -> int | None:
    """Transformer blocks of the job's model where the job or the model folder says so, else None."""
    if job.model.layers:
        return job.model.layers
    if job.model.pretrained:
        try:
            config = pretrained_config(job.model.pretrained)
        except JobError:
            return None
        count = config.get("num_hidden_layers", config.get("n_layer"))
        return count if isinstance(count, int) else None
    return None


def _data_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    data = job.data
    given = [*data.sources(), *(name for name in ("mix", "build", "samples") if getattr(data, name))]
    if len(given) != 1:
        have = " and ".join(given) or "none of them"
        allowed = ", ".join((*SOURCES, "mix", "build", "samples"))
        yield ("data",), f"[data] needs exactly one of {allowed}; it has {have}"
        return
    if bool(data.samples) != bool(job.model.parameters):
        sentence = "data.samples and model.parameters go together: data and model are the members' own (farflung.group)"
        yield ("data",), sentence
    elif data.samples:
        yield from _own_mistakes(job)
    elif data.build:
        if not job.model.build:
            yield ("data", "build"), "data.build goes with model.build; a language model needs data.text or data.jsonl"
    elif data.mix:
        yield from _mix_mistakes(job, files)
    else:
        for key, patterns in ((given[0], data.source()[1]), ("validation", data.held_out())):
            for pattern in patterns:
                if data.where == "node":
                    if leaves_its_folder(pattern):
                        below = "is looked for below each node's --data FOLDER: write a path from there, without .."
                        yield ("data", key), f"data.{key}: {pattern} {below}"
                elif files and "://" not in pattern and not glob(as_glob(pattern), recursive=True):
                    yield ("data", key), f"data.{key}: there is no file {pattern}"
        if job.model.build and job.model.context is None:
            yield ("model",), "model.context is missing: text for model.build is cut into samples of that many tokens"
    yield from _chat_mistakes(job)
    if data.where == "node":
        if job.run.steps is None:
            yield ("run", "epochs"), 'data.where = "node" needs run.steps: nobody knows how much data the nodes have'
        if job.parallel.stages != 1:
            yield (
                ("parallel", "stages"),
                'data.where = "node" needs parallel.stages = 1: the last stage would have to be told a node\'s tokens',
            )
    if files and data.tokenizer != "bytes" and not Path(data.tokenizer).is_dir():
        yield ("data", "tokenizer"), f'data.tokenizer: {data.tokenizer} is no folder; allowed: "bytes" or a folder'


def _mix_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    """What is wrong with the sources of a mixture."""
    data, key = job.data, ("data", "mix")
    for number, one in enumerate(data.mix or (), 1):
        if len(given := one.sources()) != 1:
            have = " and ".join(given) or "none of them"
            yield key, f"[[data.mix]] number {number} needs exactly one of {', '.join(SOURCES)}; it has {have}"
        for name, patterns in given.items():
            for pattern in patterns if files else ():
                if "://" not in pattern and not glob(as_glob(pattern), recursive=True):
                    yield key, f"data.mix.{name}: there is no file {pattern}"
    if data.held_out():
        yield ("data", "validation"), "data.validation must be a number where data.mix is given: a part of each source"
    if data.where == "node":
        yield ("data", "where"), 'data.mix does not go with data.where = "node": nobody else sees a node\'s files'
    if job.model.build:
        yield key, "data.mix needs a language model"


def _chat_mistakes(job: Job) -> Iterator[Mistake]:
    """What does not go with conversations, and what means nothing without them."""
    data = job.data
    if data.chat is None and not any(one.chat for one in data.mix or ()):
        for name in ("turns", "pack"):
            if getattr(data, name) != type(data).model_fields[name].default:
                yield ("data", name), f"data.{name} is for data.chat; leave it out"
        return
    if job.model.build:
        yield ("data", "chat"), "data.chat needs a language model: the loss of model.build knows no turns"
    if data.where == "node":
        sentence = "not yet: data.chat with where = 'node': how many tokens of the others' samples train, nobody knows"
        yield ("data", "where"), sentence


def leaves_its_folder(pattern: str) -> bool:
    """Whether a file pattern may name something that is not below the folder that it is joined to."""
    path = PurePath(pattern)
    return "://" in pattern or "::" in pattern or path.is_absolute() or pattern.startswith("~") or ".." in path.parts


def _own_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys without a meaning where the members bring model and optimiser: their loop decides, not the job."""
    if job.data.where != "coordinator":
        yield ("data", "where"), "data.where has no meaning with data.samples: the members' data are their own anyway"
    for name, field in type(job.train).model_fields.items():
        if name not in ("batch", "microbatch", "clip") and getattr(job.train, name) != field.default:
            yield ("train", name), f"train.{name} is decided by the members' own loop; leave it out"


def _train_mistakes(job: Job) -> Iterator[Mistake]:
    train, run = job.train, job.run
    if (run.epochs is None) == (run.steps is None):
        which = "not both" if run.epochs else "it has neither"
        yield ("run", "epochs"), f"[run] needs epochs or steps, {which}"
    if train.microbatch < 1 or train.batch % train.microbatch:
        near = [size for size in range(1, train.batch + 1) if train.batch % size == 0]
        near = sorted(sorted(near, key=lambda size: abs(size - train.microbatch))[:3])
        sentence = f"train.microbatch = {train.microbatch} does not divide train.batch = {train.batch}"
        yield ("train", "microbatch"), f"{sentence}; allowed near it: {', '.join(map(str, near))}"
    elif job.parallel.pipelines != "auto" and train.microbatches < job.parallel.pipelines:
        sentence = f"parallel.pipelines = {job.parallel.pipelines} is more than the {train.microbatches} microbatches"
        yield ("parallel", "pipelines"), f"{sentence} of a step (train.batch / train.microbatch); each needs one"
    if not all(0 <= beta < 1 for beta in train.betas):
        yield ("train", "betas"), f"train.betas = {list(train.betas)}: allowed is {_allowed(('train', 'betas'))}"
    if train.optimizer == "onebit_adam":
        if job.updates.mode != "gradient":
            sentence = "train.optimizer = 'onebit_adam' averages momentum every step"
            yield ("train", "optimizer"), f'{sentence}; it needs updates.mode = "gradient"'
        elif not job.updates.dense_rounds:
            sentence = "train.optimizer = 'onebit_adam' needs updates.dense_rounds, the steps before it freezes"
            yield ("train", "optimizer"), f"{sentence}; some 15 % of all steps"
    if train.optimizer == "muon":
        if job.updates.mode != "delta":
            sentence = "train.optimizer = 'muon' multiplies matrices, whose last bits differ from device to device"
            yield ("train", "optimizer"), f'{sentence}; it needs updates.mode = "delta"'
        if job.model.build is not None:
            sentence = "train.optimizer = 'muon' is for language models, whose embedding and head are known"
            yield ("train", "optimizer"), f"{sentence}; allowed with model.build: adamw, sgd, lamb, lion"
    if train.cooldown_steps and train.decay in ("cosine", "linear"):
        sentence = f"train.cooldown_steps has no meaning with decay = {train.decay!r}, which ends at its floor anyway"
        yield ("train", "cooldown_steps"), f"{sentence}; allowed with wsd, inverse_sqrt, none"
    if train.moments != "fp32" and train.optimizer not in ("adamw", "lamb", "lion", "muon"):
        sentence = f"train.moments = {train.moments!r} is for adamw, lamb, lion and muon, not for {train.optimizer}"
        yield ("train", "moments"), f'{sentence}; allowed: "fp32"'
    if train.momentum and train.optimizer != "sgd":
        yield ("train", "momentum"), f"train.momentum belongs to sgd; {train.optimizer} has betas"


def _update_mistakes(job: Job, check_codec: CheckCodec | None) -> Iterator[Mistake]:
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
    elif updates.every % updates.fragments:
        sentence = f"updates.fragments = {updates.fragments} does not divide updates.every = {updates.every}"
        yield ("updates", "fragments"), f"{sentence}: a round begins every (every / fragments) steps"
    elif updates.overlap != "auto" and updates.overlap > updates.interval:
        sentence = f"updates.overlap = {updates.overlap} is more than the {updates.interval} step(s)"
        yield ("updates", "overlap"), f"{sentence} between rounds: a round would overtake the next"
    if updates.pattern in ("gossip", "async") or not updates.agreed:
        yield from _unagreed_mistakes(job)
    if updates.robust_average and updates.pattern in ("two_level", "gossip", "async"):
        sentence = f"updates.robust = {updates.robust!r} has to see every member's numbers in one place"
        yield ("updates", "robust"), f"{sentence}; allowed with updates.pattern auto, publishers, all_to_all"
    if updates.secure:
        yield from _secure_mistakes(job)
    if updates.judge:
        yield from _judge_mistakes(job)
    role = "gradient" if updates.mode == "gradient" else "update" if updates.agreed else "difference"
    role = f"robust_{role}" if updates.robust_average and updates.agreed else role
    roles = {("updates", "codec"): (updates.codec, role)}
    roles["activations", "forward"] = (activations.forward, "activation")
    roles["activations", "backward"] = (activations.backward, "activation_gradient")
    for key, (spec, wanted) in roles.items():
        chosen = (("updates", "codec"), ("activations", "forward"))
        if check_codec is not None and not (spec == "auto" and key in chosen):
            try:
                check_codec(spec, wanted)
            except ValueError as error:
                yield key, f"{'.'.join(key)} = {spec!r}: {error}"
    if uses_aqsgd(job) and job.run.epochs == 1:
        yield ("activations", "forward"), _AQSGD_ONCE


def _unagreed_mistakes(job: Job) -> Iterator[Mistake]:
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


def _judge_mistakes(job: Job) -> Iterator[Mistake]:
    """What does not go with judges, who need every contribution and the samples that it is of."""
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


def _secure_mistakes(job: Job) -> Iterator[Mistake]:
    """What does not go with masks, which come off in whole sums of integers alone."""
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
    pipelines = job.train.microbatches if parallel.pipelines == "auto" else parallel.pipelines
    if pipelines < SECURE_MEMBERS:
        sentence = f"updates.secure needs {SECURE_MEMBERS} pipelines or more, and here are at most {pipelines}"
        key = ("train", "microbatch") if parallel.pipelines == "auto" else ("parallel", "pipelines")
        yield key, f"{sentence}: of two members each could take its own update off the sum"


_AQSGD_ONCE = (
    "activations.forward: aqsgd sends changes since a sample's last visit, and with under two epochs there is none; "
    'allowed: run.epochs of 2 or more, or another codec (int8, or "auto": aqsgd where it can be)'
)


def uses_aqsgd(job: Job) -> bool:
    """Whether activations go as AQ-SGD: of one stage none go anywhere."""
    return job.parallel.stages != 1 and job.activations.forward.split(":")[0].strip() == "aqsgd"


def check_facts(job: Job, facts: Facts) -> None:
    """What only the data and the model can tell: samples for one batch, stages, epochs of AQ-SGD. JobError."""
    layers, stages = len(facts.profile.layers), job.parallel.stages
    if stages != "auto" and stages > layers:
        raise JobError(
            f"parallel.stages = {stages} is more than the model's {layers} layers", f"write stages = {layers} or fewer"
        )
    check_samples(job, facts.samples, facts.steps)


def check_samples(job: Job, samples: int, steps: int) -> None:
    """What the numbers of training samples and steps can tell, known before the model's profile is. JobError."""
    if samples < 1:
        raise JobError(
            "the data has no training sample left beside the validation part", "write a smaller data.validation"
        )
    if uses_aqsgd(job) and steps * job.train.batch < 2 * samples:
        raise JobError(_AQSGD_ONCE, f"run.steps = {steps} visits less than 2 x {samples} samples")


def refused_changes(old: Job, new: Job) -> list[str]:
    """Keys that differ between a run's job and the one it is resumed with, and that may not change.

    Files may have other names (``moved_files``): they are the same when their digests are.
    """
    return [
        f"{'.'.join(key)} ({_shown(before)} -> {_shown(after)})"
        for key, before, after in _changes(old, new)
        if key[0] != "checkpoint" and key not in _RESUMABLE and key not in _FILES
    ]


def moved_files(old: Job, new: Job) -> bool:
    """Whether two jobs name different files: on another machine, for one."""
    return any(key in _FILES for key, _, _ in _changes(old, new))


def _changes(old: Job, new: Job) -> Iterator[tuple[tuple[str, str], Any, Any]]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for table, values in after.items():
        for name, value in values.items():
            if value != before[table][name]:
                yield (table, name), before[table][name], value


def with_value(job: Job, text: str, check_codec: CheckCodec | None = None) -> tuple[Job, str]:
    """The job with ``KEY=VALUE`` put in, and the key: one of those that may change while the run goes on.

    A key's last word will do where it is clear; a value is written as in a job file, quotes may be left out. JobError.
    """
    wished, equals, value = (part.strip() for part in text.partition("="))
    known = [key for key in _SETTABLE if wished in (key, key.partition(".")[2])]
    hint = f"what may be changed while a run goes on: {', '.join(_SETTABLE)}"
    if not equals or not value:
        raise JobError(f"{text!r} is not KEY=VALUE", "write it like train.learning_rate=0.0005")
    if len(known) != 1:
        raise JobError(f"{wished} cannot be changed while the run goes on{_nearest(wished, _SETTABLE)}", hint)
    table, _, name = known[0].partition(".")
    raw = job.model_dump(mode="json")
    raw["checkpoint"]["options"] = job.checkpoint.options  # no dump has them
    raw[table][name] = _value(value)
    if table == "run":
        raw[table]["epochs" if name == "steps" else "steps"] = None
    try:
        changed = Job.model_validate(raw)
    except ValidationError as error:
        raise JobError("; ".join(sentence for _, sentence in _schema_mistakes(error, raw)), hint) from None
    mistakes = [sentence for _, sentence in job_mistakes(changed, check_codec)]
    if mistakes:
        raise JobError("; ".join(mistakes), "the run goes on as it was")
    return changed, known[0]


def _value(text: str) -> Any:
    """A value as a job file has it; what is none is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
