"""`codec = "auto"` and `overlap = "auto"` in a run of real processes."""

import json

import pytest


@pytest.mark.slow
def test_the_plan_chooses_and_learns_how_long_steps_are(farm):
    """The pauses of this model are no work, so the first plan counts with steps of no time that hide no round. Steps
    turn out to take tens of milliseconds: the next view's rounds lose nothing, and are late by a step."""
    run = farm(parallel={"pipelines": 2}, updates={"mode": "delta", "codec": "auto", "overlap": "auto"})
    run.coordinator()
    run.nodes("ab")
    run.wait(lambda: len(run.events("view")) == 2 and run.trains("a", "b"), "another view")
    first, second = run.events("view")
    assert first["codecs"]["updates"].startswith("cocktail:random=0.05") and first["overlap"] == 1
    assert "with any codec of the ladder" in first["why"]
    assert second["codecs"]["updates"] == "none" and second["overlap"] <= 1
    assert "of the speed they were measured with" in second["why"] and "updates go as none" in second["why"]
    view = run.status()["view"]
    assert (view["codecs"]["updates"], view["overlap"]) == ("none", second["overlap"])
    assert second["pipelines"] == first["pipelines"] and not run.events("warning"), json.dumps(run.events("warning"))
