"""Which codec a link allows: the arithmetic, the words, and what the command says of a file."""

import json
import math
from itertools import pairwise

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from farflung import compress
from farflung.cli import codecs
from farflung.cli.advice import FIFTHS, RARE, Choice, advise, choices, chosen, sentence
from farflung.proto.errors import FarflungError
from farflung.scheduler import Device, Layer, Network, Plan, Workload
from farflung.scheduler.networks.network import DEFAULT_LATENCY
from farflung.scheduler.planning.choose_updates import choose_updates
from farflung.scheduler.planning.replan import as_candidate
from farflung.scheduler.timing.estimate import Estimator
from farflung.scheduler.timing.simulated import candidate_compute
from farflung.scheduler.workloads.codecs import bits_of
from farflung.scheduler.workloads.early import EarlyRounds
from farflung.scheduler.workloads.ladder import ladder, workload_fields
from farflung.scheduler.workloads.losses import measured


def test_a_round_sends_and_publishes():
    (first, *_) = choices(1_000_000, 4, 100e6, 1.0, latency=0.01)
    assert (first.mode, first.codec, first.bits) == ("gradient", "none", 32.0)
    assert first.seconds == pytest.approx(2 * 3 / 4 * 32e6 / 100e6 + 2 * 0.01)
    assert choices(1_000_000, 2, 100e6, 1.0, latency=0.01)[0].seconds == pytest.approx(32e6 / 100e6 + 0.01)


@pytest.mark.parametrize(
    ("rate", "mode", "codec", "every"),
    [
        (100e9, "gradient", "none", 1),
        (8e9, "gradient", "int8", 1),
        (5e9, "delta", "bf16", 1),
        (400e6, "delta", "eden", 1),
        (200e6, "delta", "cocktail", 1),
        (60e6, "delta", "eden", FIFTHS),
        (20e6, "delta", "cocktail", RARE),
        (1e6, "delta", "cocktail", RARE),
    ],
)
def test_the_slower_the_link_the_less_goes(rate, mode, codec, every):
    best = chosen(choices(124_000_000, 8, rate, 1.0, 0.0), 1.0)
    assert best is not None
    assert (best.mode, best.codec.partition(":")[0], best.every) == (mode, codec, every)
    assert best.seconds <= 0.8 * best.interval
    words = sentence(best, best, 1.0)
    assert ("fragments = 5" in words) == (every == FIFTHS) and ("overlap = " in words) == (mode == "delta")
    assert f'mode = "{mode}"' in words and (f"every = {every}" in words) == (every > 1)


def test_the_default_s_codec_is_advised_with_what_it_cost():
    best = chosen(choices(124_000_000, 8, 60e6, 1.0, 0.0), 1.0)
    words, loss = sentence(best, best, 1.0), measured()["delta", FIFTHS, "eden:bits=1,biased=true"]
    keys = 'mode = "delta", codec = "eden:bits=1,biased=true", every = 5, fragments = 5, overlap = 1'
    assert words.startswith(
        f"[updates] {keys}: the least lossy whose round (0.732 s) fills at most 0.8 of a step of 1 s."
    )
    assert f"{loss.words} ({loss.source}); larger models were not measured" in words


def test_a_round_of_gradients_is_not_said_to_hide():
    best = chosen(choices(124_000_000, 8, 30e9, 1.0, 0.0), 1.0)
    words = sentence(best, best, 1.0)
    assert best.mode == "gradient" and "fills" not in words and "overlap" not in words
    assert "makes a step of 1 s wait for 0.0193 s: its last backward pass hides the rest, if a step is one mi" in words
    small = chosen(choices(121_000, 8, 1e6, 600.0), 600.0)
    assert "(6.88 s) makes a step of 600 s wait for 6.88 s. In loss" in sentence(small, small, 600.0), "nothing hides"


def test_latency_is_counted_and_without_one_named_it_is_that_of_a_link_that_nobody_measured():
    near, far = (chosen(choices(1_000_000, 8, 1e9, 0.2, latency), 0.2) for latency in (0.0, 0.2))
    assert (near.mode, near.every) == ("delta", 1) and (far.mode, far.every) == ("delta", RARE)
    assert bits_of(far.codec) > bits_of("int4"), "rare rounds of few bytes may be dense where latency is what they take"
    assert choices(1000, 4, 1e6, 1.0) == choices(1000, 4, 1e6, 1.0, DEFAULT_LATENCY)


@settings(max_examples=40, deadline=None)
@given(
    parameters=st.integers(10_000, 10_000_000_000),
    members=st.integers(2, 5),
    latency=st.just(0.0) | st.floats(1e-4, 0.5),
    step=st.floats(0.01, 100),
    part=st.floats(-5, 1.5),
)
def test_the_advice_is_what_a_plan_chooses_of_the_same_link(parameters, members, latency, step, part):
    """With the mode and the interval that advice names; in those that it passes over, a plan says that nothing fits.
    part: the rate is 32 bits a parameter and step, divided by ten to this power. Rates at a border are left out: a plan
    rounds what each member publishes."""
    rate = 32 * parameters / step * 10**-part
    best, *beside = (
        chosen(choices(parameters, members, rate * near, step, latency), step) for near in (1, 0.999, 1.001)
    )
    keys = [one and one.keys(step) for one in (best, *beside)]
    assume(keys[0] == keys[1] == keys[2])
    settings_of = [("gradient", 1, 1), ("delta", 1, 1), ("delta", FIFTHS, FIFTHS), ("delta", RARE, 1)]
    named = None if best is None else (best.mode, best.every, best.fragments)
    for mode, every, fragments in settings_of:
        interval, ladder_of = every // fragments, ladder(mode, every, rarer=every < RARE)
        fields = workload_fields(mode, "auto", 0 if mode == "gradient" else "auto", interval, fragments)
        fields["update_ladder"] = fields["update_ladder"][: len(ladder_of)]
        layer = Layer("all", parameters, 1e12 * step / 3, 1)  # with its backward pass a step
        work = Workload((layer,), members, mode=mode, pattern="auto", early=EarlyRounds(), **fields)
        devices = [Device(f"d{at}", tflops=1.0, upload=rate, download=rate) for at in range(members)]
        delays = numpy.full((members, members), latency)
        numpy.fill_diagonal(delays, 0.0)
        net = Network(devices, delays, numpy.full((members, members), rate))
        rows = tuple((device.name,) for device in devices)
        placed = Plan(pipelines=rows, stages=((0, 0),), microbatches=(1,) * members)
        estimator = Estimator(net, work)
        found = as_candidate(estimator, placed)
        made = choose_updates(estimator, found, candidate_compute(estimator, found))
        if named == (mode, every, fragments):
            assert (set(made.codecs), made.overlap) == ({best.codec}, best.overlap(step))
            assert made.seconds[0] == pytest.approx(best.seconds, rel=1e-4)
            assert made.waits[0] == pytest.approx(best.waits, rel=1e-4)
            return
        hidden = made.waits[0] <= (0.02 * step if mode == "gradient" else 0.8 * made.overlap * step)
        assert not hidden, (mode, every, made)
    assert best is None


def test_no_choice_takes_as_many_bytes_a_step_as_a_less_lossy_one():
    found = [one for one in choices(1000, 4, 1e6, 1.0, 0.0) if one.mode == "delta"]
    taken = [one.bits / one.every for one in found]
    assert taken == sorted(set(taken), reverse=True)
    known = [(loss.percent, loss.interval or 0.0) for one in found if (loss := one.measured) is not None]
    assert len(known) >= 5
    assert all(one[0] - one[1] <= other[0] + other[1] for one, other in pairwise(known)), "and what is less lossy first"


def test_overlap_is_as_long_as_the_round():
    for seconds, overlap in ((0.01, 0), (0.2, 1), (0.81, 2), (7.5, 10), (99.0, RARE)):
        assert f"overlap = {overlap}" in Choice("delta", RARE, "int4", 4.1, seconds, seconds).keys(1.0)
    assert "overlap" not in Choice("gradient", 1, "int8", 8.1, 0.5, 0.5).keys(1.0)


def test_a_link_that_is_too_slow_for_everything_is_said():
    found = choices(70_000_000_000, 8, 1e6, 1.0)
    assert chosen(found, 1.0) is None
    assert "No codec hides behind a step of 1 s" in sentence(None, found[-1], 1.0)


def test_costs_are_told_where_they_are_measured():
    rows = advise(1000, 2, 1e6, 1.0)["choices"]
    told = {(row["mode"], row["every"], row["codec"]): (row["loss"], row["loss_from"]) for row in rows}
    known = [key for key in told if key in measured()]
    assert len(known) >= 3
    for key, (words, where) in told.items():
        if key in known and measured()[key].baseline:
            assert words == "none: the others are compared with it"
        elif key in known:
            assert words.startswith(f"{measured()[key].percent:+.2g} %") and "python -m benchmarks." in where
        else:
            assert (words, where) == ("not measured", None)


def test_a_sentence_says_what_a_choice_costs_and_where_that_is_from():
    cocktail = Choice("delta", 1, "cocktail:random=0.1,top=0.2,bits=4", 0.16, 0.1, 0.1)
    words = sentence(cocktail, cocktail, 1.0)
    loss = measured()["delta", 1, cocktail.codec]
    assert f"compared with one optimiser on the whole batch: {loss.words} ({loss.parameters:,} parameters" in words
    assert f"{loss.command}); larger models were not measured." in words
    int8 = Choice("delta", 1, "int8", 8.0, 0.1, 0.1)
    assert "3 seeds, learning rate not tuned: python" in sentence(int8, int8, 1.0) and "not tuned" not in words
    rare = Choice("delta", RARE, "int8", 8.0, 0.1, 0.1)
    assert "on the whole batch: that was not measured." in sentence(rare, rare, 1.0)


def test_every_measured_cost_is_of_a_codec_that_jobs_have_and_says_its_interval():
    for (mode, every, codec), loss in measured().items():
        assert every >= 1 and (codec == "none" or compress.check(codec, "update" if mode == "delta" else "gradient"))
        assert (loss.interval is None) == (loss.seeds == 1) == ("one seed" in loss.words)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (torch.tensor([1.0, math.nan, 2.0]), "1 of 3 values are not finite"),
        (torch.tensor([1.0, 1e60], dtype=torch.float64), "1 of 2 values are not finite in fp32"),
        (torch.zeros(5), "all 5 values are zero"),
        (torch.ones(4, dtype=torch.int32), "has no float tensor"),
    ],
    ids=["nan", "beyond fp32", "zeros", "integers"],
)
def test_a_file_that_says_nothing_is_refused_by_name(values, why, tmp_path):
    path = tmp_path / "gradients.safetensors"
    save_file({"a": values}, path)
    with pytest.raises(FarflungError, match=why) as caught:
        codecs.advise(str(path), 4, "100mbit", 1.0)
    assert str(path) in str(caught.value) and caught.value.hint


def test_errors_are_of_all_of_a_vector_and_not_of_its_beginning(tmp_path, monkeypatch):
    """The first tensor is often an embedding, whose gradient is zero in most rows."""
    monkeypatch.setattr(codecs, "MOST", 1 << 12)
    path = tmp_path / "gradients.safetensors"
    values = torch.randn(1 << 14)
    values[: 1 << 13] = 0
    save_file({"a": values}, path)
    errors = [row["error"] for row in codecs.advise(str(path), 4, "100mbit", 1.0)["choices"][:3]]
    assert errors[0] == 0 and 0 < errors[1] < errors[2]
    values[:-1] = 0
    values[-1] = 1
    save_file({"a": values}, path)
    with pytest.raises(FarflungError, match="the 4096 values of it that were looked at are zero"):
        codecs.advise(str(path), 4, "100mbit", 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_gradients_of_other_dtypes_are_read(dtype, tmp_path):
    path = tmp_path / "gradients.safetensors"
    save_file({"a": torch.linspace(-1, 1, 100).to(dtype)}, path)
    made = codecs.advise(str(path), 4, "100mbit", 1.0)
    assert made["parameters"] == 100 and "codec = " in made["advice"]


def test_the_command_measures_errors_on_the_file(nursery, tmp_path):
    path = tmp_path / "gradients.safetensors"
    save_file({"a": torch.randn(4096), "b": torch.randn(64, 64)}, path)
    words = ["codecs", "advise", str(path), "--link", "100mbit", "--step", "0.0005", "--members", "4"]
    words += ["--latency", "0ms", "--json"]
    done = nursery.run(*words)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["parameters"] == 8192
    errors = [row["error"] for row in made["choices"][:3]]
    assert errors[0] == 0 and 0 < errors[1] < errors[2] < 1e-3  # none, bf16, int8
    assert made["advice"].startswith('[updates] mode = "delta"')


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": torch.zeros(0)}, "has float tensors of no values alone"),
        ({"a": torch.zeros(3, dtype=torch.int64)}, "has no float tensor"),
        (None, "can't be read as safetensors"),
    ],
)
def test_a_file_without_gradients_is_refused(tmp_path, tensors, words):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"junk" * 9) if tensors is None else save_file(tensors, path)
    with pytest.raises(FarflungError, match=words) as caught:
        codecs.advise(str(path), 4, "1mbit", 1.0)
    assert "name a safetensors file of gradients" in (caught.value.hint or "")


def test_what_it_cannot_take_gets_a_sentence(nursery, tmp_path):
    for path, link, words in ((tmp_path / "none.safetensors", "1mbit", "there is no file"), (tmp_path, "7", "no rate")):
        done = nursery.run("codecs", "advise", str(path), "--link", link, "--step", "1")
        assert done.returncode != 0 and words in done.stderr, done.stderr
