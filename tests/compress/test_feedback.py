import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import CodecError
from farflung.compress.stateful.feedback import Feedback

BIASED = ["sign", "topk:ratio=0.05", "cocktail", "chunked_topk", "powersgd", "int4:rounding=nearest", "demo", "thc"]


@pytest.mark.parametrize("spec", BIASED)
def test_what_was_sent_and_what_is_kept_is_what_went_in(spec: str) -> None:
    """Telescoping: the sum of the decoded tensors and the last error is the sum of the inputs."""
    torch.manual_seed(0)
    feedback = Feedback(spec)
    total, sent = torch.zeros(3000), torch.zeros(3000)
    for step in range(12):
        x = torch.randn(3000)
        pending = feedback.begin({"w": x}, seed=3, step=step)
        assert feedback.commit(pending)
        total += x
        sent += pending.decoded["w"].view(-1)
    assert torch.allclose(sent + feedback.memory.get("w", 0, 3000), total, atol=2e-4)


def test_an_aborted_step_leaves_nothing_and_a_retry_counts_nothing_twice() -> None:
    feedback = Feedback("sign")
    x = torch.randn(100)
    feedback.commit(feedback.begin({"w": x}, step=0))
    before = feedback.state_dict()
    first = feedback.begin({"w": x}, step=1)
    feedback.abort(first)
    again = feedback.begin({"w": x}, step=1)
    assert again.blobs == first.blobs
    assert all(torch.equal(before[k], v) for k, v in feedback.state_dict().items())
    assert feedback.commit(again)
    with pytest.raises(CodecError):
        feedback.commit(again)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_overflow_does_not_poison_the_error(bad: float) -> None:
    feedback = Feedback("topk:ratio=0.1")
    x = torch.randn(200)
    feedback.commit(feedback.begin({"a": x, "b": x}, step=0))
    kept = feedback.state_dict()
    broken = x.clone()
    broken[7] = bad
    pending = feedback.begin({"a": broken, "b": x}, step=1)
    assert "not finite" in pending.refused["a"] and "b" in pending.blobs
    assert not feedback.commit(pending)
    assert all(torch.equal(kept[k], v) for k, v in feedback.state_dict().items())
    assert feedback.commit(feedback.begin({"a": x, "b": x}, step=2))
    with pytest.raises(CodecError):
        feedback.load_state_dict({"w@0": torch.tensor([bad])})


@settings(max_examples=50)
@given(st.lists(st.integers(1, 99), max_size=5), st.lists(st.integers(1, 99), max_size=5))
def test_errors_survive_another_partition(before: list[int], after: list[int]) -> None:
    """Cut by ranges before, other ranges after: the same errors, whoever holds them."""
    x = torch.randn(100)

    def ranges(cuts: list[int]) -> list[tuple[int, int]]:
        edges = sorted({0, 100, *cuts})
        return list(itertools.pairwise(edges))

    states = []
    for start, stop in ranges(before):
        one = Feedback("sign")
        one.commit(one.begin({"w": x[start:stop]}, starts={"w": start}))
        states.append(one.state_dict())
    whole = Feedback("sign")
    for state in states:
        whole.load_state_dict(state, merge=True)
    expected = whole.memory.get("w", 0, 100)
    for start, stop in ranges(after):
        other = Feedback("sign")
        for state in states:
            other.load_state_dict(state, merge=True)
        assert torch.equal(other.memory.get("w", start, stop - start), expected[start:stop])
        other.commit(other.begin({"w": x[start:stop]}, starts={"w": start}))
        outside = other.memory.get("w", 0, 100)
        assert torch.equal(outside[:start], expected[:start]) and torch.equal(outside[stop:], expected[stop:])


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    torch.manual_seed(1)
    xs = [torch.randn(500) for _ in range(6)]
    straight, first = Feedback("cocktail"), Feedback("cocktail")
    blobs = []
    for step, x in enumerate(xs):
        pending = straight.begin({"w": x}, 1, step)
        straight.commit(pending)
        blobs.append(pending.blobs["w"])
    for step in range(3):
        first.commit(first.begin({"w": xs[step]}, 1, step))
    second = Feedback("cocktail")
    second.load_state_dict(first.state_dict())
    for step in range(3, 6):
        pending = second.begin({"w": xs[step]}, 1, step)
        second.commit(pending)
        assert pending.blobs["w"] == blobs[step]
