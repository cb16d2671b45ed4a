import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung import compress
from farflung.compress.blobs.wire import Reader
from farflung.compress.primitives import selection
from farflung.compress.primitives.key import Key
from farflung.compress.sparsifiers import masks, runs

DEFAULT = "cocktail:random=0.1,top=0.2,bits=4"


def test_bits_on_the_wire_everything_included() -> None:
    torch.manual_seed(0)
    for x in (torch.randn(200_000), torch.randn(200_000) ** 3, torch.randn(200_000).abs().sort().values):
        for step in range(3):
            assert len(compress.make(DEFAULT).encode(x, seed=1, step=step)) * 8 / 200_000 <= 0.165


@settings(max_examples=60)
@given(
    st.integers(1, 20_000),
    st.sampled_from([0.1, 0.15, 0.4, 0.5, 1.0, 1 / 3, 0.07]),
    st.sampled_from([32, 64, 128]),
    st.integers(0, 1 << 40),
    st.integers(0, 5),
)
def test_every_element_is_offered_equally_often(count: int, share: float, run: int, seed: int, epoch: int) -> None:
    a, b = runs.fraction(share)
    if b > 120:
        return
    offered = np.zeros(count, int)
    for step in range(epoch * b, epoch * b + b):
        offer = runs.Offer(count, share, run, Key(seed, step))
        positions = offer.positions(np.arange(offer.elements))
        assert len(np.unique(positions)) == offer.elements and (np.diff(positions) > 0).all()
        assert np.array_equal(offer.gather(np.arange(count)), positions)
        assert np.array_equal(offer.select(torch.arange(count)).numpy(), positions)
        offered[positions] += 1
    assert (offered == a).all()


def test_the_step_and_the_seed_choose_the_runs() -> None:
    offers = {tuple(runs.Offer(10_000, 0.1, 64, Key(seed, step)).runs) for seed in range(3) for step in range(20)}
    assert len(offers) == 60


@settings(max_examples=80)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-42, 3.0]), min_size=1, max_size=200), st.data())
def test_exactly_k_largest_and_ties_to_the_lowest_index(values: list[float], data: st.DataObject) -> None:
    x = np.array(values, np.float32)
    k = data.draw(st.integers(1, len(values)))
    expected = sorted(sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k])
    assert selection.largest(x, k).tolist() == expected


@settings(max_examples=80)
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 1000), st.sampled_from(["auto", "bitmap", "rice"]))
def test_masks_round_trip(size: int, share: float, seed: int, how: str) -> None:
    positions = np.flatnonzero(np.random.default_rng(seed).random(size) < share)
    blob = masks.encode(positions, size, how)
    reader = Reader(blob)
    assert np.array_equal(masks.decode(reader, len(positions), size), positions)
    reader.end()
    assert len(masks.encode(positions, size)) <= 6 + min(len(blob), -(-size // 8))


def test_rice_masks_are_near_the_entropy() -> None:
    for share in (0.01, 0.1, 0.2):
        positions = np.flatnonzero(np.random.default_rng(0).random(1 << 17) < share)
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
        assert len(masks.encode(positions, 1 << 17)) * 8 / (1 << 17) < 1.05 * entropy


@pytest.mark.parametrize("values", ["linear", "log"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_values(values: str, bits: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(100_000)
    y = compress.decode(compress.make(f"cocktail:random=1.0,top=0.1,bits={bits},values={values}").encode(x))
    sent = y != 0 if bits != 2 or values == "log" else x.abs() > x.abs().sort().values[-10_000]
    error = float((y - x)[sent].square().sum() / x[sent].square().sum())
    bound = {
        "linear": {1: 0.04, 2: 0.6, 3: 0.05, 4: 0.008, 5: 0.002, 6: 0.001, 7: 2e-4, 8: 1e-4},
        "log": {1: 0.04, 2: 0.06, 3: 0.006, 4: 0.0012, 5: 5e-4, 6: 5e-4, 7: 5e-4, 8: 5e-4},
    }
    assert error < bound[values][bits]
    agree = y[sent].sign() == x[sent].sign()
    assert bool((agree | (y[sent] == 0)).all())


def test_what_is_sent_again_and_again_adds_up() -> None:
    """The residual x - g of a constant x goes to nothing: no element is starved, no part is lost."""
    torch.manual_seed(0)
    x = torch.randn(5000)
    g = torch.zeros(5000)
    codec = compress.make(DEFAULT)
    for step in range(200):
        compress.add(codec.encode(x - g, seed=4, step=step), g)
    assert (x - g).norm() < 0.02 * x.norm()


def test_adam_sized_deltas_survive() -> None:
    x = torch.randn(20_000)
    for scale in (1e-4, 1e-6, 1e-8, 1e-12):
        y = compress.decode(compress.make("cocktail:random=1.0,top=1.0").encode(x * scale))
        assert abs(float(y.norm() / (x * scale).norm()) - 1) < 0.02
