"""A link is a secret: it can come from the environment or a file instead of the words that `ps` shows."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farflung.cli.one_run.linkfile import link_text, write_link
from farflung.proto.errors import FarflungError


def test_a_word_is_itself_and_a_file_is_what_it_holds(tmp_path: Path) -> None:
    assert link_text("farflung://h:1/#x") == "farflung://h:1/#x"
    file = tmp_path / "link"
    file.write_text("farflung://h:1/#x\n")
    assert link_text(f"@{file}") == "farflung://h:1/#x"
    file.write_text("  farflung join farflung://h:1/#x\n")  # the line as the coordinator prints it
    assert link_text(f"@{file}") == "farflung://h:1/#x"


def test_the_home_folder_may_be_written_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").write_text("farflung://h:1/#x\n")
    assert link_text("@~/link") == "farflung://h:1/#x"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not text"])
def test_a_file_that_holds_no_link_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "link"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FarflungError) as caught:
        link_text(f"@{file}")
    assert str(file) in caught.value.message and "--link-file" in caught.value.hint


def test_a_written_link_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "link"
    before = os.umask(0)
    try:
        for link in ("farflung://h:1/#x", "farflung://h:1/#y"):
            write_link(file, link)
            assert link_text(f"@{file}") == link
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert [one.name for one in file.parent.iterdir()] == ["link"]


def test_a_link_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FarflungError, match="can't write the link"):
        write_link(tmp_path / "file" / "link", "farflung://h:1/#x")


@pytest.mark.parametrize("words", [["join"], ["doctor", "--device", "cpu"]], ids=" ".join)
def test_the_link_may_be_in_the_environment(words: list[str], command: Callable[..., Any]) -> None:
    done = command(*words, FARFLUNG_LINK="http://elsewhere:1")
    assert done.status == 2
    assert "'http://elsewhere:1' is not a link" in done.stdout + done.stderr


def test_commands_read_the_file(tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "link").write_text("http://elsewhere:1\n")
    for words in (["join"], ["status"]):
        done = command(*words, "@link", cwd=tmp_path)
        assert done.status == 2
        assert "elsewhere:1" in done.stderr
