"""The bench of equal loss goes on where it was stopped, and compares seed by seed."""

import json
import math
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from farflung.benchmarks import equal_loss, equal_loss_lines, text
from farflung.benchmarks.equal_loss import Bench, job_of
from farflung.benchmarks.equal_loss_lines import SIZES, against, best_rate, interval, rows
from farflung.benchmarks.equal_loss_methods import BASELINE, METHODS
from farflung.benchmarks.equal_loss_shown import found, gaps, lengths, table

EDEN = "eden 1 bit, every 5"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose runs lose 2, and whose lines are in a file of its own."""
    monkeypatch.setattr(equal_loss_lines, "RESULTS", tmp_path / "lines.jsonl")
    monkeypatch.setattr(equal_loss, "sources", lambda size: "x = 1\n")
    bench = Bench("byte", tmp_path, "cpu", math.inf)
    monkeypatch.setattr(bench, "_loop", lambda job, method: {"loss": 2.0, "bits": 0.3, "seconds": 1.0})
    return bench


def test_a_stopped_bench_makes_only_the_runs_that_lack(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def stopped(job: Any, method: str) -> dict[str, Any]:
        asked.append((job.run.seed, job.train.learning_rate))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"loss": 2.0, "bits": 0.3, "seconds": 1.0}

    monkeypatch.setattr(bench, "_loop", stopped)
    for _ in range(2):
        try:
            equal_loss.tune(bench, 100, f"^{EDEN}$", ())
        except KeyboardInterrupt:
            assert [row["rate"] for row in bench.rows()] == [5e-3]
    assert asked == [(0, 5e-3), (0, 1e-2), (0, 1e-2)]
    assert best_rate(bench.rows(), EDEN, 100) == 5e-3
    assert bench.rows()[0]["command"].endswith("--size byte --steps 100 --only 'eden 1 bit, every 5'")


def test_a_long_run_takes_the_rate_that_a_shorter_one_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def at_the_lower_rate(job: Any, method: str) -> dict[str, Any]:
        return {"loss": 2.0 + job.train.learning_rate, "bits": 0.3, "seconds": 1.0}

    monkeypatch.setattr(bench, "_loop", at_the_lower_rate)
    equal_loss.tune(bench, 100, f"^{EDEN}$", ())
    equal_loss.run(bench, 800, f"^{EDEN}$")
    assert len(bench.rows()) == 2, "no rate is known at that length"
    bench.tuned = 100
    equal_loss.run(bench, 800, f"^{EDEN}$")
    long = [row for row in bench.rows() if row["steps"] == 800]
    assert [(row["seed"], row["rate"]) for row in long] == [(1, 5e-3), (2, 5e-3), (3, 5e-3)]
    assert long[0]["command"].endswith("run --size byte --steps 800 --tuned 100 --only 'eden 1 bit, every 5'")
    assert found(bench.rows(), 800, 100)[EDEN] == long
    assert not found(bench.rows(), 800)
    table("byte", 800, None, 100)
    assert "| eden 1 bit, every 5 | 0.005 | 3 | 2.0050 ± 0.0000 | - | 0.300 |" in capsys.readouterr().out


def test_gaps_are_of_lengths_that_all_seeds_ran(bench: Bench) -> None:
    losses = {(BASELINE, 100): 2.0, (BASELINE, 200): 1.5, (EDEN, 100): 2.2, (EDEN, 200): 1.53, (EDEN, 400): 1.4}
    keys = ("size", "text", "method", "seed", "rate", "steps", "loss")
    lines = [
        dict(zip(keys, ("byte", "t", method, seed, rate, steps, loss), strict=True))
        for (method, steps), loss in losses.items()
        for seed, rate in ((0, 5e-3), (0, 1e-2), (1, 5e-3), (2, 5e-3), (3, 5e-3))
        if seed or steps == 100
    ]
    equal_loss_lines.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (first, second) = gaps(rows("byte"), 100)[EDEN]
    assert first == (100, pytest.approx(10.0), pytest.approx(0.0, abs=1e-9))
    assert second == (200, pytest.approx(2.0), pytest.approx(0.0, abs=1e-9))


def test_lines_of_another_text_count_for_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    equal_loss.tune(bench, 100, f"^{EDEN}$", ())
    first = bench.rows()
    bench.text = "another"
    assert not bench.rows()
    equal_loss.run(bench, 100, f"^{EDEN}$")
    assert not bench.rows(), "the rate was found on another text"
    equal_loss.tune(bench, 100, f"^{EDEN}$", ())
    assert [row["text"] for row in bench.rows()] == ["another"] * 2
    assert rows("byte") == first, "tables are of one text"


def test_the_text_does_not_change_with_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "lib" / "site-packages")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)

    def write(name: str, content: str) -> None:
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(content)

    for name in ("os.py", "json/decoder.py", "test/test_os.py"):
        write(name, 20 * name)
    length = sum(map(len, (20 * name for name in ("os.py", "json/decoder.py", "test/test_os.py"))))
    before = text.sources(length)
    write("site-packages/numpy/core.py", "numpy")
    assert text.sources(length) == before
    assert text.digest(before) != text.digest(before + " ")
    assert "numpy" in text.sources(length + 10)


def test_no_time_no_run(bench: Bench) -> None:
    bench.until = -math.inf
    assert bench.lose(EDEN, 0, 1e-2, 100) is None
    assert not bench.rows()


def test_seeds_are_compared_one_by_one() -> None:
    base = [{"seed": seed, "loss": loss} for seed, loss in ((1, 2.0), (2, 3.0), (3, 4.0))]
    assert against([{"seed": row["seed"], "loss": 1.1 * row["loss"]} for row in base], base) == (
        pytest.approx(10.0),
        pytest.approx(0.0, abs=1e-9),
    )
    assert interval([2.0, 2.1]) == pytest.approx(12.706 * 0.05)
    assert math.isnan(interval([2.0]))


def test_lengths_stand_beside_one_optimiser_of_the_same_length(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"size": "byte", "text": "t", "seed": 0, "rate": 0.01}
    made = [(BASELINE, 100, 2.0), (BASELINE, 200, 1.5), (EDEN, 100, 2.2), (EDEN, 200, 1.53)]
    equal_loss_lines.RESULTS.write_text(
        "".join(
            json.dumps({**line, "method": method, "steps": steps, "loss": loss}) + "\n" for method, steps, loss in made
        )
    )
    lengths("byte", None)
    assert "| eden 1 bit, every 5 | 0.01 | 2.2000 (+10.0 %) | 1.5300 (+2.0 %) |" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["byte", "byte-llama"])
def test_every_method_is_a_job(size: str, tmp_path: Path) -> None:
    for method in METHODS:
        assert job_of(SIZES[size], method, 1, 1e-2, 1000, tmp_path).run.seed == 1
