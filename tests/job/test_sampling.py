import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.job.data.sampling import Position, assign, sample_ids, shuffled, unfinished


@given(st.integers(0, 50), st.lists(st.integers(0, 40), max_size=9, unique=True), st.integers(1, 8))
def test_a_view_takes_redo_first_and_then_the_stream(cursor, redo, batch):
    start = Position(step=3, cursor=cursor, redo=tuple(redo))
    taken = [p for step in range(4, 9) for p in start.positions(step, batch)]
    assert taken == (redo + list(range(cursor, cursor + 5 * batch)))[: 5 * batch]


@given(st.integers(0, 50), st.lists(st.integers(0, 40), max_size=9, unique=True), st.integers(1, 8), st.integers(0, 4))
def test_after_goes_on_where_the_steps_end(cursor, redo, batch, steps):
    start = Position(3, cursor, tuple(redo))
    later = start.after(3 + steps, batch)
    assert later.positions(4 + steps, batch) == start.positions(4 + steps, batch)


def test_last_step_counts_what_is_left_to_redo():
    assert Position().last_step(total=100, batch=8) == 13
    assert Position(step=5, cursor=40, redo=(1, 2, 3)).last_step(total=100, batch=9) == 5 + 7


def test_an_epoch_is_a_permutation_of_its_own():
    first, second = (shuffled(range(100), 1, epoch, 100) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(100))
    assert list(first) != list(second)
    assert sample_ids(range(200), 1, 100) == [*first, *second]
    assert sample_ids([150, 3, 199, 3], 1, 100) == [second[50], first[3], second[99], first[3]]  # a redo is like that


SEEDS, EPOCHS = st.integers(0, 2**63 - 1), st.integers(0, 2**40)


@given(SEEDS, EPOCHS, st.integers(1, 2000))
def test_the_order_of_an_epoch_is_a_bijection(seed, epoch, samples):
    assert sorted(shuffled(range(samples), seed, epoch, samples)) == list(range(samples))


@given(SEEDS, EPOCHS, st.integers(1, 2**62), st.data())
def test_a_position_is_computed_by_itself(seed, epoch, samples, data):
    positions = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=20))
    ids = shuffled(positions, seed, epoch, samples)
    assert all(0 <= sample < samples for sample in ids)
    assert [int(shuffled(position, seed, epoch, samples)) for position in positions] == list(ids)
    assert len(set(positions)) == len(set(ids.tolist()))


def test_the_order_is_the_same_for_ever():
    """Runs resume by it: whoever changes it changes `ORDER`."""
    assert sample_ids([0, 1, 2, 10**9, 10**12], 1, 10**9) == [776933505, 189256936, 174676496, 971446074, 397756910]
    assert shuffled(range(10), 7, 3, 10).tolist() == [1, 8, 6, 4, 3, 7, 5, 0, 9, 2]


@pytest.mark.parametrize("samples", [5, 16, 40])
def test_every_sample_is_as_likely_everywhere(samples):
    """Chi-square of sample against position over 4000 epochs: its mean is (n-1)^2, its deviation sqrt(2) (n-1)."""
    counts = np.zeros((samples, samples))
    for epoch in range(4000):
        counts[np.arange(samples), shuffled(range(samples), 5, epoch, samples)] += 1
    expected = 4000 / samples
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - (samples - 1) ** 2) < 5 * 2**0.5 * (samples - 1)


def test_neighbours_do_not_stay_together():
    ids = shuffled(range(10**5), 1, 0, 10**9)
    near = np.abs(np.diff(ids)) < 10**6  # of uniform ids, two in a thousand
    assert 100 < near.sum() < 300
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02
    other = shuffled(range(10**5), 2, 0, 10**9)
    assert abs(np.corrcoef(ids, other)[0, 1]) < 0.02


def test_a_position_past_the_epoch_is_refused():
    with pytest.raises(ValueError, match="position 10 is not in an epoch of 10 samples"):
        shuffled([3, 10], 1, 0, 10)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.integers(1, 4), st.data())
def test_every_sample_has_one_pipeline_and_shares_are_exact(microbatches, microbatch, data):
    count = sum(microbatches) * microbatch
    samples = data.draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count))
    shares = assign(samples, microbatches, microbatch)
    assert [len(share) for share in shares] == [m * microbatch for m in microbatches]
    assert sorted(index for share in shares for index in share) == list(range(count))


def test_samples_come_back_to_their_pipeline():
    homes: dict[int, set[int]] = {}
    for epoch in range(10):
        ids = shuffled(range(640), 7, epoch, 640).tolist()
        for start in range(0, 640, 32):
            batch = ids[start : start + 32]
            for pipeline, share in enumerate(assign(batch, [4, 4], 4)):
                for index in share:
                    homes.setdefault(batch[index], set()).add(pipeline)
    visits_at_home = sum(len(h) == 1 for h in homes.values()) / len(homes)
    assert visits_at_home > 0.4  # in 10 epochs; about 93 of 100 visits are at home


def test_unfinished_is_what_the_slower_pipeline_took():
    start = Position(step=2, cursor=24)
    again = unfinished(start, finished=[5, 3], step=5, microbatches=[2, 1], microbatch=4, seed=1, samples=50)
    assert len(again) == 2 * 4
    assert all(24 + 12 <= position < 24 + 36 for position in again)
    assert unfinished(start, [5, 5], 5, [2, 1], 4, 1, samples=50) == []
