"""A file that is written whole is there whole or not at all, and nothing else is left."""

import os
from pathlib import Path

import pytest

from farflung.proto.process.files import whole_file, write_whole


def test_what_was_there_stays_until_the_end_and_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path, "a") as file:
        file.write(b"half")
        file.flush()
        assert (tmp_path / "a").read_bytes() == b"before"
        raise ZeroDivisionError
    assert (tmp_path / "a").read_bytes() == b"before"
    write_whole(tmp_path / "a", b"after", sync=True)
    assert (tmp_path / "a").read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["a"]


def test_a_name_may_follow_from_the_content(tmp_path: Path) -> None:
    said: list[str] = []
    with whole_file(tmp_path, lambda: said[0]) as file:
        file.write(b"x")
        said.append("later")
    assert (tmp_path / "later").read_bytes() == b"x"


def test_nobody_else_reads_a_secret_at_any_time(tmp_path: Path) -> None:
    with whole_file(tmp_path, "key", mode=0o600):
        (unfinished,) = tmp_path.iterdir()
        assert unfinished.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_two_that_write_the_same_file_do_not_mix(tmp_path: Path) -> None:
    with whole_file(tmp_path, "a") as one, whole_file(tmp_path, "a") as other:
        one.write(b"one")
        other.write(b"other")
    assert (tmp_path / "a").read_bytes() == b"one"  # the one that ended last
    assert os.listdir(tmp_path) == ["a"]
