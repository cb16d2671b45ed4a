"""Descriptions of large files: made once, and whoever asks meanwhile hears how far they are."""

import threading

import pytest

from farflung.coordinator.data import artifacts as module
from farflung.coordinator.data.artifacts import Artifacts, NoArtifact


def test_a_large_file_is_read_once_and_whoever_asks_hears_how_far_it_is(tmp_path, monkeypatch):
    (tmp_path / "tokens").write_bytes(bytes(1000))
    made, go_on, describe = [], threading.Event(), module._describe

    def slowly(name, path, told):
        made.append(name)
        told.read = 300
        go_on.wait(30)
        return describe(name, path, told)

    monkeypatch.setattr(module, "_describe", slowly)
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    artifacts = Artifacts({"data/tokens": tmp_path / "tokens"})
    for _ in range(3):
        answer = artifacts.describe("data/tokens")
        assert (answer.size, answer.described, list(answer.piece_digests)) == (1000, 300, [])
    monkeypatch.setattr(module, "ANSWER_S", 30.0)
    go_on.set()
    answer = artifacts.describe("data/tokens")
    assert answer.described == 0 and len(answer.piece_digests) == 1 and made == ["data/tokens"]
    (tmp_path / "tokens").write_bytes(bytes(2000))
    assert artifacts.describe("data/tokens").size == 2000 and len(made) == 2


def test_a_file_that_cannot_be_read_is_no_artifact(tmp_path, monkeypatch):
    (tmp_path / "tokens").write_bytes(bytes(10))

    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "_describe", fails)
    with pytest.raises(NoArtifact, match="cannot be read: Input/output error"):
        Artifacts({"data/tokens": tmp_path / "tokens"}).describe("data/tokens")
