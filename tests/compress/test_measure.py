from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from farflung import compress
from farflung.cli import codecs as cli
from farflung.compress import CodecError
from farflung.compress.primitives.vectors import DISTRIBUTIONS, vector


def test_the_table_has_every_codec() -> None:
    rows = cli.table()
    assert [row["codec"] for row in rows] == compress.names()
    for row in rows:
        assert row["about"] and set(row) >= {
            "parameters",
            "unbiased",
            "aggregation",
            "seed",
            "feedback",
            "roles",
            "patterns",
        }
        for key, parameter in row["parameters"].items():
            assert parameter["allowed"] and parameter["about"], (row["codec"], key)


def test_measuring_a_distribution_and_a_file(tmp_path: Path) -> None:
    row = cli.measure("eden:bits=2,block=0", "lognormal", size=1 << 14, workers=4, trials=4)
    assert row["nmse"] == pytest.approx(0.133, rel=0.05) and 2.0 < row["bits"] < 2.1
    assert (
        row["mean_error_identical"] == pytest.approx(0.033, rel=0.1) and row["bytes_up"] == 3 * (1 << 14) // 4 + 3 * 34
    )
    save_file({"b": torch.randn(300), "a": torch.randn(20, 5), "n": torch.arange(3)}, tmp_path / "x.safetensors")
    row = cli.measure("int8", tensor=str(tmp_path / "x.safetensors"), workers=2, trials=2)
    assert row["size"] == 400 and row["nmse"] < 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spec": "int8", "distribution": "gauss"}, "no distribution"),
        ({"spec": "int8", "tensor": "/nowhere.safetensors"}, "no file"),
        ({"spec": "int88"}, "did you mean 'int8'"),
        ({"spec": "int8", "size": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_measured_says_why(options: dict, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        cli.measure(**options)


def test_vectors_are_the_published_ones() -> None:
    assert float(vector("normal", 4)[0]) == pytest.approx(0.12573022)
    assert len({float(vector(name, 1000).sum()) for name in DISTRIBUTIONS}) == 4
    assert not torch.equal(vector("normal", 10, 1), vector("normal", 10, 2))
