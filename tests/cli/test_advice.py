"""Which codec a link allows: the arithmetic, the words, and what the command says of a file."""

import json
import math
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file

from farflung import compress
from farflung.cli import codecs
from farflung.cli.advice import FIFTHS, RARE, Choice, advise, choices, chosen, sentence
from farflung.proto.errors import FarflungError
from farflung.scheduler.workloads.losses import measured


def test_a_round_sends_and_publishes():
    (first, *_) = choices(1_000_000, 4, 100e6)
    assert (first.mode, first.codec, first.bits) == ("gradient", "none", 32.0)
    assert first.seconds == pytest.approx(2 * 3 / 4 * 32e6 / 100e6)


@pytest.mark.parametrize(
    ("rate", "mode", "codec", "every"),
    [
        (100e9, "gradient", "none", 1),
        (2e9, "gradient", "int8", 1),
        (300e6, "delta", "eden", 1),
        (160e6, "delta", "cocktail", 1),
        (50e6, "delta", "eden", FIFTHS),
        (20e6, "delta", "eden", RARE),
        (1e6, "delta", "cocktail", RARE),
    ],
)
def test_the_slower_the_link_the_less_goes(rate, mode, codec, every):
    best = chosen(choices(124_000_000, 8, rate), 1.0)
    assert best is not None
    assert (best.mode, best.codec.partition(":")[0], best.every) == (mode, codec, every)
    assert best.seconds <= best.interval
    words = sentence(best, best, 1.0)
    assert ("fragments = 5" in words) == (every == FIFTHS) and ("overlap = " in words) == (mode == "delta")
    assert f'mode = "{mode}"' in words and (f"every = {every}" in words) == (every > 1)


def test_the_default_s_codec_is_advised_with_what_it_cost():
    best = chosen(choices(124_000_000, 8, 50e6), 1.0)
    words, loss = sentence(best, best, 1.0), measured()["delta", FIFTHS, "eden:bits=1,biased=true"]
    keys = 'mode = "delta", codec = "eden:bits=1,biased=true", every = 5, fragments = 5, overlap = 1'
    assert words.startswith(f"[updates] {keys}: the least lossy whose round (0.878 s) hides behind a step of 1 s.")
    assert f"{loss.words} ({loss.source}); larger models were not measured" in words


def test_a_round_of_gradients_is_not_said_to_hide():
    best = chosen(choices(124_000_000, 8, 10e9), 1.0)
    words = sentence(best, best, 1.0)
    assert best.mode == "gradient" and "hides behind" not in words
    assert "takes no longer than a step of 1 s, which waits for what its last backward pass does not hide." in words


def test_no_choice_takes_as_many_bytes_a_step_as_a_less_lossy_one():
    found = [one for one in choices(1000, 4, 1e6) if one.mode == "delta"]
    taken = [one.bits / one.every for one in found]
    assert taken == sorted(set(taken), reverse=True)
    known = [(loss.percent, loss.interval or 0.0) for one in found if (loss := one.measured) is not None]
    assert len(known) >= 5
    assert all(one[0] - one[1] <= other[0] + other[1] for one, other in pairwise(known)), "and what is less lossy first"


def test_overlap_is_as_long_as_the_round():
    for seconds, overlap in ((0.2, 1), (7.5, 8), (99.0, RARE)):
        assert f"overlap = {overlap}" in Choice("delta", RARE, "int4", 4.1, seconds).keys(1.0)
    assert "overlap" not in Choice("gradient", 1, "int8", 8.1, 0.5).keys(1.0)


def test_a_link_that_is_too_slow_for_everything_is_said():
    found = choices(70_000_000_000, 8, 1e6)
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
    cocktail = Choice("delta", 1, "cocktail:random=0.1,top=0.2,bits=4", 0.16, 0.1)
    words = sentence(cocktail, cocktail, 1.0)
    loss = measured()["delta", 1, cocktail.codec]
    assert f"compared with one optimiser on the whole batch: {loss.words} ({loss.parameters:,} parameters" in words
    assert f"{loss.command}); larger models were not measured." in words
    int8 = Choice("delta", 1, "int8", 8.0, 0.1)
    assert "3 seeds, learning rate not tuned: python" in sentence(int8, int8, 1.0) and "not tuned" not in words
    rare = Choice("delta", RARE, "int8", 8.0, 0.1)
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
    words = ["codecs", "advise", str(path), "--link", "100mbit", "--step", "0.0005", "--members", "4", "--json"]
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
