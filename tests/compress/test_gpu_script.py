"""The script for a card: its results with ``--only``."""

import json

from farflung.benchmarks import gpu


def test_results_of_other_steps_stay_if_they_are_of_the_same_card_and_commit(tmp_path):
    now = {"device": "a card", "torch": "2.11", "commit": "abc"}
    file = tmp_path / "gpu.json"
    assert gpu.kept(file, now) == {}
    file.write_text(json.dumps({**now, "kernels": {"status": 0}, "old": {}}))
    assert gpu.kept(file, now) == {"kernels": {"status": 0}}
    assert gpu.kept(file, {**now, "commit": "abd"}) == {}


def test_all_steps_together_end_within_ten_minutes():
    assert sum(gpu.LIMITS.values()) + 5 * len(gpu.LIMITS) <= 600
    assert list(gpu.commands(tiny=True)) == list(gpu.LIMITS)
