from hypothesis import given
from hypothesis import strategies as st

from farflung.proto.sampling import Position, assign, permutation, sample_ids, unfinished


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
    first, second = permutation(1, 0, 100), permutation(1, 1, 100)
    assert sorted(first) == sorted(second) == list(range(100))
    assert list(first) != list(second)
    assert sample_ids(range(200), 1, 100) == [*first, *second]


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
        ids = [int(i) for i in permutation(7, epoch, 640)]
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
    assert unfinished(start, [5, 5], 5, [2, 1], 4, 1, 50) == []
