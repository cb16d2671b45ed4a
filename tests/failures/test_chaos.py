"""A short seeded chaos; `python -m benchmarks.chaos` has the long one."""

from pathlib import Path

import pytest


@pytest.mark.timeout(1800)
def test_a_run_to_which_everything_happens(nursery, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.chaos import chaos

    told = chaos(tmp_path / "run", nursery, seed=11, events=7, nodes=3, mode="gradient")
    assert len(told["events"]) == 7 and told["samples"] == 12 * told["steps"]
