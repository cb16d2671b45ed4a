"""After Ctrl-C at a coordinator: what is safe and what is lost."""

import pytest

from farflung.cli.screen.events.run_summary import RunSummary
from farflung.cli.screen.events.sentences import sentence


def said(step: int, checkpoint: int, why: str = "") -> str:
    summary = RunSummary()
    summary.add({"event": "interrupted", "step": step, "checkpoint": checkpoint, "why": why})
    assert sentence({"event": "interrupted"}) == "", "it is said once, when everybody has left"
    return summary.parting()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (said(82, 82), "stopped after step 82: the same command goes on from step 82; nothing is lost"),
        (  # steps were trained while the checkpoint was on its way
            said(83, 82),
            "stopped after step 83: the same command goes on from step 82; 1 step is lost",
        ),
        (
            said(97, 82, "node-2 sends nothing"),
            "stopped after step 97, left without a last checkpoint (node-2 sends nothing): "
            "the same command goes on from step 82; 15 steps are lost",
        ),
        (
            said(1, 0, "told to end at once"),
            "stopped after step 1, left without a last checkpoint (told to end at once): "
            "there is none, and the same command begins again; 1 step is lost",
        ),
        (said(0, 0, "no node trained"), "stopped before the first step; the same command begins again"),
    ],
)
def test_it_says_what_is_safe(text: str, sentence: str) -> None:
    assert text == sentence


def test_where_the_coordinator_said_nothing_what_was_seen_counts() -> None:
    summary = RunSummary()
    summary.add({"event": "view", "view": 3, "step": 50, "pipelines": [["a"]]})
    summary.add({"event": "step", "step": 53, "loss": 2.0})
    assert summary.parting().endswith("the same command goes on from step 50; 3 steps are lost")
    summary.add({"event": "checkpoint", "step": 53, "path": "x"})
    assert summary.parting().endswith("the same command goes on from step 53; nothing is lost")
