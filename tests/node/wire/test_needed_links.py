"""Which connections a node has in a view: both ends agree, and nobody who has something to say to another lacks one."""

import random

import pytest

from farflung.node.wire.needed_links import needed_links
from farflung.scheduler.plans import Plan

GRID = Plan(
    tuple(tuple(f"p{row}s{stage}" for stage in range(4)) for row in range(3)),
    ((0, 0), (1, 1), (2, 2), (3, 3)),
    (2, 1, 1),
    {"x": "a spare"},
)
NAMES = [*GRID.nodes, "x", "y"]


def links(me, **more):
    return needed_links(GRID, NAMES, more.pop("holders", {}), more.pop("shadows", []), me, **more)


def test_neighbours_the_group_and_the_first_of_the_pipeline():
    assert links("p1s2") == {"p1s1", "p1s3", "p0s2", "p2s2", "p1s0"}
    assert links("x") == set()


def test_a_tied_parameter_joins_the_first_and_the_last_stage():
    assert links("p1s3", tied=True) == {"p1s2", "p1s0", "p0s3", "p2s3", "p0s0", "p2s0"}


def test_a_committer_hears_from_all():
    assert links("p0s0", committer="p0s0") == set(GRID.nodes) - {"p0s0"}
    assert "p0s0" in links("p2s3", committer="p0s0") and "p0s0" not in links("p2s3")


def test_state_comes_from_its_holders_and_a_spare_follows_a_place():
    holders = {layer: [f"p0s{layer}", "y"] for layer in range(4)}
    assert links("y", holders=holders) == set(GRID.nodes), "it has left its place, and holds what others are to have"
    assert links("x", shadows=[("x", "p1s2")]) == {"p0s2", "p1s2", "p2s2"}
    assert links("x", shadows=[("x", "p1s2")], holders=holders) == {"p0s2", "p1s2", "p2s2", "y"}


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_agree(seed):
    draw = random.Random(seed)
    holders = {layer: draw.sample(NAMES, draw.randrange(4)) for layer in range(4)}
    shadows = [(name, draw.choice(GRID.nodes)) for name in ("x", "y") if draw.random() < 0.7]
    more = {"committer": draw.choice(["", "p0s0"]), "first": draw.choice(["", "p0s0"]), "tied": draw.random() < 0.5}
    found = {name: needed_links(GRID, NAMES, holders, shadows, name, **more) for name in NAMES}
    for name, others in found.items():
        assert name not in others and all(name in found[other] for other in others)
