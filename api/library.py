"""farflung from Python: ``farflung.train(job)`` runs a job on this machine, as ``farflung run`` does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli.jobs.job_init import compression
from ..cli.local.run import LocalRun
from ..cli.local.run import run as run_here
from ..cli.screen.events.event import Event
from ..cli.screen.output import Output
from ..cli.screen.terminal import screen
from ..job.files import load_job
from ..job.model_folder.hub import is_name
from ..job.tables.data import SOURCES
from ..proto.errors import JobError, RunFailed

_FILES = (*SOURCES, "validation", "tokenizer")


@dataclass(frozen=True)
class Trained:
    """A finished run: ``seconds`` of training, ``eval_loss`` in nats per token (None without validation samples).

    ``checkpoint``: the folder of the last checkpoint, or its address if ``checkpoint.to`` is one; None if it was lost.
    """

    state: Path
    steps: int
    samples: int
    seconds: float
    eval_loss: float | None
    checkpoint: Path | str | None

    def export(self, out: Path | str, merge: bool = False) -> Path:
        """Writes the model to the new folder ``out``, which ``transformers`` loads. FarflungError: it exists.

        For a job with [model.lora] it writes the adapters, for `peft`; with ``merge`` the whole model with them added.
        """
        from ..node.generation.export import export

        return export(self.state, Path(out), merge=merge)


def train(
    job: Mapping[str, Mapping[str, Any]] | Path | str,
    *,
    nodes: int = 2,
    state: Path | str | None = None,
    device: str = "auto",
    others: int = 0,
    listen: str | None = None,
    advertise: str | None = None,
    on_event: Callable[[Event], None] | None = None,
    listener: Callable[[Event], None] | None = None,
    offload_folder: Path | str | None = None,
) -> Trained:
    """Trains a job with ``nodes`` node processes on this machine, and ``others`` nodes on other machines.

    Args:
        job: a job file; or its tables, ``{"run": {"steps": 100}, ...}``, which become STATE/job.toml. Paths in the
            tables are relative to the working folder. If the table ``updates`` or ``activations`` is missing, the one
            that ``farflung job init`` writes is used, which compresses; ``{"updates": {"codec": "none"}}`` does not.
        state: the run's state folder, by default ``runs/NAME``; a run in the same folder resumes from its newest
            checkpoint.
        others: how many more nodes join from other machines, with the line that is shown first (the event
            ``listening`` has it as ``link``); training begins when all have joined.
        listen, advertise: HOST:PORT where the coordinator listens and is reached, as for ``farflung coordinator
            start``. Without ``others`` only this machine reaches it; with ``others`` it listens on 0.0.0.0:7070.
        on_event: called with every event of ``farflung run --json``; without it they are shown as that command does.
        offload_folder: of the nodes of this machine, as for ``farflung run``.

    Raises:
        JobError: the job is wrong; the message says where. RunFailed: the run could not be finished.
        KeyboardInterrupt: Ctrl-C, after all processes have said goodbye.
    """
    folder = Path(state) if state is not None else None
    if isinstance(job, Mapping):
        text = job_text({**compression(), **job})
        folder = folder or Path("runs") / str(job.get("run", {}).get("name", "job"))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "job.toml"
        path.write_text(text, encoding="utf-8")
    else:
        path = Path(job)
    try:
        read = load_job(path, check_codec=_check_codec)
    except JobError as error:
        raise (_of_tables(error, path) if isinstance(job, Mapping) else error) from None
    folder = folder or Path("runs") / read.run.name
    code = tuple({spec.partition(":")[0] for spec in (read.model.build, read.data.build) if spec})
    done: dict[str, Any] = {}
    output = Output()
    with screen(output) as shown:

        def show(event: Event) -> None:
            if event["event"] == "done":
                done.update(event)
            (on_event or shown.show)(event)
            if listener is not None:
                listener(event)

        try:
            where = listen or ("0.0.0.0:7070" if others else "127.0.0.1:0")
            plan = LocalRun(
                path,
                folder,
                nodes,
                device,
                code,
                listen=where,
                advertise=advertise,
                others=others,
                offload_folder=None if offload_folder is None else Path(offload_folder),
            )
            status = run_here(plan, show)
        except KeyboardInterrupt:
            if on_event is None:
                shown.close()
                output.note(shown.summary.parting())
            raise
    if status or not done:
        raise RunFailed(f"the run in {folder} ended with status {status}", f"its logs are in {folder / 'logs'}")
    last: str | None = done["checkpoint"]
    checkpoint = Path(last) if last and "://" not in last else last
    return Trained(folder, done["steps"], done["samples"], done["seconds"], done["eval_loss"], checkpoint)


def job_text(job: Mapping[str, Mapping[str, Any]]) -> str:
    """A job's tables as TOML; relative paths become absolute, because the file lies elsewhere. JobError: a value is no
    table."""
    lines = []
    for table, keys in job.items():
        if not isinstance(keys, Mapping):
            raise JobError(f"{table} = {keys!r} is no table", f'write {{"{table}": {{...}}}}')
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(_absolute(table, key, value))}" for key, value in keys.items() if value is not None]
    return "\n".join(lines) + "\n"


def _of_tables(error: JobError, path: Path) -> JobError:
    """The error without the name of the file that the tables were written to, which the user is not to edit."""
    message = re.sub(rf"{re.escape(str(path))}(:\d+)?:? ", "", error.message)
    return JobError(message, error.hint.replace(f"edit {path}", "change the tables"))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)  # JSON of strings, numbers, booleans and lists of them is TOML too


def _check_codec(spec: str, role: str) -> None:
    from ..compress import check

    check(spec, role)


def _absolute(table: str, key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_absolute(table, key, one) for one in value]
    if table == "data" and isinstance(value, Mapping):  # a source of a mixture
        return {name: _absolute(table, name, one) for name, one in value.items()}
    named = (table, key) == ("model", "pretrained") or (table == "data" and key in _FILES)
    if not named or not isinstance(value, str | Path) or "://" in str(value) or str(value) == "bytes":
        return value
    if is_name(str(value)) and not Path(value).exists():
        return str(value)  # a name on the hub
    return str(Path(value).absolute())
