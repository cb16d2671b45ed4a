"""Pieces of a round's update: whichever form they have, all ways to apply them agree."""

import pytest
import torch

from farflung import compress
from farflung.node.rounds.arithmetic.outliers import Norms
from farflung.node.rounds.arithmetic.update import Encoded, Terms, Update

COUNT = 5000
SPARSE = ["cocktail:random=0.2,top=0.2,bits=4", "topk:ratio=0.05", "chunked_topk:k=64,bits=2"]


def blob(spec, seed):
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))
    return compress.make(spec).encode(values, seed=3, step=seed, rank=seed)


def pieces(spec):
    """Every form of the same two weighted blobs, or of the first alone; and what they add up to."""
    one, two = blob(spec, 1), blob(spec, 2)
    both = [(0.25, one), (0.75, two)]
    total = torch.zeros(COUNT)
    for weight, each in both:
        compress.add(each, total, weight)
    for known in (False, True):
        yield Terms(both, torch.empty(COUNT), known), total
        yield Encoded(one, torch.empty(COUNT), known), compress.decode(one)
    yield Update(total), total


@pytest.mark.parametrize("spec", [*SPARSE, "int8", "none"])
def test_values_and_what_is_written_are_the_sum_to_the_bit(spec):
    for piece, total in pieces(spec):
        out = torch.full((COUNT,), torch.nan)
        piece.write_to(out)
        assert torch.equal(out, total) and torch.equal(piece.values(), total)


@pytest.mark.parametrize("spec", SPARSE)
def test_several_vectors_get_the_same(spec):
    for piece, total in pieces(spec):
        start = torch.randn(COUNT, generator=torch.Generator().manual_seed(9))
        g, x, alone = start.clone(), start + 1, start.clone()
        piece.add_to(g, x)
        piece.add_to(alone)
        assert torch.equal(g, alone)
        torch.testing.assert_close(g, start + total)
        torch.testing.assert_close(x, start + 1 + total)


@pytest.mark.parametrize("spec", compress.names())
def test_a_codec_adds_to_several_what_it_adds_to_one(spec):
    codec = compress.make(spec)
    values = torch.randn(3, 700, generator=torch.Generator().manual_seed(5))
    sent = codec.encode(values, seed=1, step=2, rank=0)
    start = torch.randn(2, 2100, generator=torch.Generator().manual_seed(6))
    one = start.clone()
    for row in one:
        compress.add(sent, row, 0.3)
    together = start.clone()
    compress.add(sent, list(together), 0.3)
    assert torch.equal(one, together)
    with pytest.raises(compress.CodecError, match="of one shape"):
        compress.add(sent, [start[0], start[1, 1:]])


def test_a_publisher_may_judge_norms_before_it_has_one_of_its_own():
    """Its own first gradient was not finite, as an overflow in fp16, and one other member's was."""
    norms = Norms()
    assert norms.absurd(0, {1: 0.0}, 3) == {}
    assert norms.absurd(0, {1: 1.0, 2: 2.0}, 3) == {} and norms.absurd(0, {}, 3) == {}
