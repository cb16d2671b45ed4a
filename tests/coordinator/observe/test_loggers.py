"""Curves for TensorBoard and Weights & Biases."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from farflung.coordinator.events import event, tee
from farflung.coordinator.observe.takers import loggers
from farflung.coordinator.observe.takers.loggers import TensorBoard, WandB, loggers_wanted, scalars_of
from farflung.proto.errors import FarflungError

STEP = event(
    "step",
    step=7,
    loss=2.5,
    samples=32,
    seconds=0.5,
    tokens_per_second=1000.0,
    bytes_updates=10,
    bytes_activations=30,
    bytes_dense=400,
)


def test_scalars() -> None:
    step, named = scalars_of(STEP)
    assert step == 7 and named["loss/training"] == 2.5 and named["bytes/times_fewer_than_fp16"] == 10.0
    assert scalars_of(event("eval", step=9, loss=2.0, accuracy=None)) == (9, {"loss/validation": 2.0})
    assert "loss/training" not in scalars_of({**STEP, "loss": None})[1]
    assert scalars_of(event("warning", message="x"))[1] == {}


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event

    written = TensorBoard(tmp_path)
    tee(written.take)(STEP)
    written.take(event("joined", node="a"))
    written.close()
    [file] = tmp_path.iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        length = int.from_bytes(data[:8], "little")
        read = Event.FromString(data[12 : 12 + length])
        found |= {value.tag: (read.step, value.simple_value) for value in read.summary.value}
        data = data[16 + length :]
    assert found["loss/training"] == (7, 2.5) and found["bytes/in_fp16"] == (7, 400.0)


def test_wandb_gets_the_job_and_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    run = types.SimpleNamespace(log=lambda values, step: said.append((step, values)), finish=lambda: said.append("end"))
    fake = types.ModuleType("wandb")
    fake.init = lambda **keys: said.append(keys) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    [make] = loggers_wanted(None, "project")
    logger = make("shakespeare", {"run": {"seed": 1}}, tmp_path)
    assert isinstance(logger, WandB)
    logger.take(STEP)
    logger.take(event("left", node="a"))
    logger.close()
    assert said[0]["project"] == "project" and said[0]["config"] == {"run": {"seed": 1}}
    assert said[1][0] == 7 and said[1][1]["loss/training"] == 2.5 and said[2:] == ["end"]

    def refuse(**keys: Any) -> None:
        raise ValueError("no key")

    fake.init = refuse  # type: ignore[attr-defined]
    with pytest.raises(FarflungError, match="did not begin: ValueError: no key"):
        make("shakespeare", {}, tmp_path)


@pytest.mark.parametrize(("package", "asked"), [("tensorboard", (Path("x"), None)), ("wandb", (None, "x"))])
def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, package: str, asked: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FarflungError, match=f"--{package} needs the package {package}") as caught:
        loggers.loggers_wanted(*asked)
    assert caught.value.hint == f"pip install {package}"
    assert loggers_wanted(None, None) == []


def test_one_that_breaks_is_said_once_and_ends_nothing() -> None:
    said: list[dict[str, Any]] = []

    class Broken:
        asked = 0

        def take(self, event: dict[str, Any]) -> None:
            self.asked += 1
            raise OSError("no space left on device")

    logger = Broken()
    emit = tee(said.append, loggers.heeded(logger, said.append))  # type: ignore[arg-type]
    emit(STEP)
    emit(STEP)
    assert logger.asked == 1
    assert [one["event"] for one in said] == ["step", "warning", "step"]
    assert said[1]["message"] == "Broken takes nothing more: OSError: no space left on device; training goes on"
