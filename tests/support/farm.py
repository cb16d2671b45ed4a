"""A coordinator and nodes as real processes that a test kills, stops, cuts off and starts again.

The model is a small classifier that sleeps in every forward pass: steps take a known time and next to no CPU, so a
whole run of several processes fits a small machine, and what happens to it happens in the middle of steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cable import Cable
from ports import free_port
from quick_start import PATIENCE, Nursery
from torch import nn

from farflung.coordinator.observe.status import read_status
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.proto.words.link import parse_link

SAMPLES = 480

MODEL = """\
import time
import torch
from torch import nn
from torch.nn import functional

class Pause(nn.Module):
    def __init__(self):
        super().__init__()
        if {ballast}:
            self.ballast = nn.Parameter(torch.linspace(0, 1, {ballast}))

    def forward(self, x):
        if self.training:
            time.sleep({pace})
        return x

def model():
    return nn.Sequential(
        nn.Sequential(Pause(), nn.Linear(16, 24), nn.Tanh()),
        nn.Sequential(Pause(), nn.Linear(24, 24), nn.Tanh()),
        nn.Sequential(nn.Linear(24, 4)),
    ), total

def total(logits, targets):
    return functional.cross_entropy(logits, targets, reduction="sum")

def data():
    random = torch.Generator().manual_seed(9)
    x = torch.randn({samples} + 80, 16, generator=random)
    y = torch.tanh(x @ torch.randn(16, 12, generator=random)) @ torch.randn(12, 4, generator=random)
    y = y.argmax(1)
    return (x[:{samples}], y[:{samples}]), (x[{samples}:], y[{samples}:])
"""

JOB: dict[str, dict[str, Any]] = {
    "run": {"name": "farm", "seed": 3, "steps": 100_000},
    "model": {"build": "paced:model"},
    "data": {"build": "paced:data"},
    "train": {"batch": 12, "microbatch": 2, "learning_rate": 0.002, "eval_every": 0},
    "parallel": {"stages": 1},
    "updates": {"mode": "gradient", "codec": "none"},
    "checkpoint": {"every": 5, "keep": 3},
}


class Process:
    """A started command: what it said, and what a test does to it."""

    def __init__(self, farm: Farm, name: str, words: list[str], **environment: str) -> None:
        self.name, self.words = name, words
        self._farm = farm
        number = len(farm.processes)
        self.said = farm.folder / f"{number}-{name}.events"
        self.log = farm.folder / f"{number}-{name}.log"
        self.said.touch()
        self.status: int | None = None
        self._position = 0
        self._events: list[dict[str, Any]] = []
        self.pid = farm.nursery.begin(
            {
                "words": words,
                "stdout": environment.pop("FARM_STDOUT", str(self.said)),
                "stderr": str(self.log),
                "environment": {"PYTHONPATH": farm.path, "OMP_NUM_THREADS": "1", **environment},
                "cwd": str(farm.folder),
            }
        )
        farm.processes.append(self)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything it has said so far."""
        with self.said.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        # A script may print other things too.
        self._events += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return self._events

    def of(self, kind: str, **keys: Any) -> list[dict[str, Any]]:
        """Its events of a kind with these values."""
        return [e for e in self.events if e.get("event") == kind and all(e.get(k) == v for k, v in keys.items())]

    @property
    def alive(self) -> bool:
        if self.status is None:
            self.status = self._farm.nursery.ended.pop(self.pid, None)
        return self.status is None

    @property
    def family(self) -> list[int]:
        """Its process and its children's (a node's I/O process)."""
        with contextlib.suppress(FileNotFoundError):
            return [self.pid, *map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())]
        return []

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        self.send(signal.SIGKILL)
        self._farm.wait(lambda: not self.alive, f"{self.name} is killed")

    def freeze(self) -> None:
        """SIGSTOP to the whole node, as when its machine is suspended."""
        for pid in self.family:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.family:
            os.kill(pid, signal.SIGCONT)

    def held(self) -> tuple[int, int]:
        """Open descriptors and resident bytes of its process and its children's."""
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.family)
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.family)
        return files, pages * os.sysconf("SC_PAGE_SIZE")

    def lines(self) -> list[str]:
        """What it wrote to stderr."""
        return self.log.read_text().splitlines()


class Farm:
    """One run's processes in one folder."""

    def __init__(
        self, folder: Path, nursery: Nursery, pace: float = 0.02, ballast: int = 0, **changes: dict[str, Any]
    ) -> None:
        """``changes``: values of the job by table, laid over JOB; ``pace``: seconds that a forward pass sleeps.
        ``ballast``: parameters that only have to be carried."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.state, self.nursery = folder, folder / "state", nursery
        (folder / "paced.py").write_text(MODEL.format(pace=pace, samples=SAMPLES, ballast=ballast // 2))
        self.job = {key: {**JOB.get(key, {}), **changes.get(key, {})} for key in {**JOB, **changes}}
        if self.job["run"].get("epochs"):
            del self.job["run"]["steps"]
        self.write_job()
        self.processes: list[Process] = []
        self.cables: dict[str, Cable] = {}
        self.current: Process | None = None
        """The coordinator."""

    @property
    def path(self) -> str:
        """Where its processes look for modules: the model's, and then whatever this one is told of."""
        return os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self.story())
        for process in self.processes:
            if process.alive:
                for pid in process.family:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for cable in self.cables.values():
            cable.close()

    # ---- processes -------------------------------------------------------------------------

    def write_job(self, **changes: dict[str, Any]) -> None:
        for table, values in changes.items():
            self.job[table] = {**self.job.get(table, {}), **values}
        lines = [
            line
            for table, values in self.job.items()
            for line in (f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
        ]
        (self.folder / "job.toml").write_text("\n".join(lines) + "\n")

    def coordinator(self, *words: str, wait: bool = True, **environment: str) -> Process:
        """Start it, or start it again at the same port with the same state folder."""
        port = parse_link(self.link).port if self.current else free_port()
        start = ["coordinator", "start", "job.toml", "--state", "state", "--listen", f"127.0.0.1:{port}"]
        self.current = Process(self, "coordinator", [*start, *words], **environment)
        if wait:
            self.wait(lambda: self.c.of("listening") or not self.c.alive, "the coordinator listens")
            assert self.c.of("listening"), self.c.events
        return self.current

    @property
    def c(self) -> Process:
        assert self.current is not None
        return self.current

    @property
    def link(self) -> str:
        if (written := self.folder / "link").exists():  # by --link-file
            return written.read_text().strip()
        (found,) = [p for p in self.processes if p.name == "coordinator" and p.of("listening")][:1]
        return str(found.of("listening")[0]["link"])

    def node(self, name: str, *words: str, through: bool = False, allow: bool = True, **environment: str) -> Process:
        """Start a node, which keeps its key if it was there before. ``through``: peers reach it by a cable."""
        join = ["join", self.link, "--name", name, "--cache", f"cache-{name}", "--device", "cpu"]
        if through:
            port = free_port()
            if name in self.cables:
                self.cables.pop(name).close()
            self.cables[name] = Cable(f"127.0.0.1:{port}")
            join += ["--listen", f"127.0.0.1:{port}", "--advertise", self.cables[name].address]
        if allow:
            join += ["--allow-code", "paced"]
        return Process(self, name, [*join, *words], **environment)

    def script(self, name: str, file: str, *words: str) -> Process:
        """Start a Python script of this folder."""
        return Process(self, name, ["python", file, *words])

    def nodes(self, names: str, **more: Any) -> dict[str, Process]:
        return {name: self.node(name, **more) for name in names}

    # ---- what a test waits for -------------------------------------------------------------

    def wait(self, done: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Waits until ``done()`` is true and returns it. AssertionError with everybody's last words if it stays so."""
        deadline = time.monotonic() + patience
        while not (found := done()):
            assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}"
            time.sleep(0.05)
        return found

    def events(self, kind: str, **keys: Any) -> list[dict[str, Any]]:
        """Events of all lives of the coordinator."""
        return [e for p in self.processes if p.name == "coordinator" for e in p.of(kind, **keys)]

    def step(self) -> int:
        """The last finished step that the coordinator has said."""
        return max((event["step"] for event in self.events("step")), default=0)

    def view(self) -> dict[str, Any]:
        views = self.events("view")
        return views[-1] if views else {"view": 0, "pipelines": [], "why": "", "spares": []}

    def trains(self, *names: str, steps: int = 2, patience: float = PATIENCE) -> int:
        """Waits until exactly these train, and have finished ``steps`` steps together; the last step."""
        wanted = sorted(names)

        def there() -> int | None:
            view = self.view()
            inside = sorted(name for pipeline in view["pipelines"] for name in pipeline)
            if inside != wanted:
                return None
            done = [e["step"] for e in self.c.of("step", view=view["view"])]
            return max(done) if len(done) >= steps else None

        return int(self.wait(there, f"{', '.join(wanted)} train", patience))

    def status(self) -> dict[str, Any]:
        return read_status(self.state)

    def story(self) -> str:
        """Everybody's last words, for a test that fails."""
        told = []
        for process in self.processes:
            events = [event for event in process.events if event.get("event") != "step"]
            steps = len(process.events) - len(events)
            told.append(f"--- {process.name} (pid {process.pid}, status {process.status}): {steps} steps")
            told += [json.dumps(event)[:300] for event in events[-25:]]
            told += process.lines()[-25:]
        return "\n".join(told)

    # ---- what must be true -----------------------------------------------------------------

    def plain_losses(self, steps: int) -> list[float]:
        """Mean loss of each step of one process over the same samples, from the same initial weights."""
        job = Job.model_validate(self.job)
        sys.path.insert(0, str(self.folder))
        try:
            from farflung.node.models.builds import build_data, sequential_model

            definition = sequential_model(job)
            (inputs, targets), _ = build_data(job)
            model, total = definition._made(job.run.seed)
        finally:
            sys.path.remove(str(self.folder))
            sys.modules.pop("paced", None)
        for module in model.modules():
            if type(module).__name__ == "Pause":
                module.forward = lambda x: x  # type: ignore[method-assign]
        train = job.train
        groups = [
            {"params": [p for p in model.parameters() if (p.ndim >= 2) is decayed], "weight_decay": weight}
            for decayed, weight in ((True, train.weight_decay), (False, 0.0))
        ]
        optimizer = torch.optim.AdamW(groups, lr=train.learning_rate, betas=tuple(train.betas), eps=train.eps)
        from farflung.node.state.optimizers.learning_rates import learning_rate

        losses = []
        for step in range(1, steps + 1):
            ids = sample_ids(Position().positions(step, train.batch), job.run.seed, len(inputs))
            optimizer.zero_grad()
            loss = total(model(inputs[ids]), targets[ids]) / len(ids)
            loss.backward()
            if train.clip:
                nn.utils.clip_grad_norm_(model.parameters(), train.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(train, step, job.run.steps or 0)
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses
