"""What rounds hold beside weights, gradient and moments, counted; a mechanism that keeps more than today fails here."""

import pytest

from farflung.benchmarks.memory import MODES
from farflung.benchmarks.round_copies import measure

ELEMENTS = 1 << 18
MOST = {
    "gradient, none, 2 nodes": 2.01,
    "gradient, int8, 4 nodes": 2.06,
    "gradient, topk with feedback, 4 nodes": 1.30,
    "delta, cocktail, overlap 1, 2 nodes": 1.03,
    "delta, cocktail, overlap 1, 4 nodes": 1.29,
    "delta, cocktail, outer Nesterov, 4 nodes": 2.29,
    "delta, chunked top-k with feedback, overlap 0, 4 nodes": 2.29,
    "delta, chunked top-k with feedback, overlap 1, 4 nodes": 2.29,
    "delta, chunked top-k with feedback, overlap 2, 4 nodes": 3.29,
    "gradient, int8, residual bf16, 4 nodes": 1.31,
    "delta, chunked top-k, residual bf16, overlap 1, 4 nodes": 1.66,
    "delta, chunked top-k, residual bf16, overlap 2, 4 nodes": 2.16,
    "delta, int4, residual bf16, overlap 1, 4 nodes": 1.50,
    "delta, int4, overlap 1, 4 nodes": 1.62,
    "delta, none, overlap 1, 2 nodes": 3.01,
    "delta, none, overlap 1, 4 nodes": 3.76,
}
"""fp32 copies of the section. One this short is one bucket, so in gradient mode the window (test_window.py) saves
nothing here."""


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_copies_of_the_section_that_a_member_holds(mode):
    assert measure(mode, ELEMENTS)["copies"] <= MOST[mode.name]


def test_every_mode_has_its_most():
    assert {mode.name for mode in MODES} == MOST.keys()
