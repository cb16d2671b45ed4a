"""Who may look and who may act."""

import stat
from pathlib import Path

import pytest

from farflung.coordinator.web.access import OPERATOR, VIEWER, Tokens, load_tokens
from farflung.proto.errors import FarflungError


def test_tokens_stay_and_are_their_owners(tmp_path: Path) -> None:
    made = load_tokens(tmp_path, "ab12")
    assert load_tokens(tmp_path, "ab12") == made and made.viewer != made.operator
    for file in (tmp_path / "page").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.viewer not in repr(made) and made.operator not in repr(made)
    (tmp_path / "page" / "viewer.token").unlink()
    assert load_tokens(tmp_path, "ab12").viewer != made.viewer


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("a file")
    with pytest.raises(FarflungError, match="cannot keep the page's tokens") as caught:
        load_tokens(tmp_path, "ab12")
    assert "--no-page" in caught.value.hint


def test_roles() -> None:
    tokens = Tokens("ab12", "v", "o")
    assert tokens.role_of("v") == VIEWER and tokens.role_of("o") == OPERATOR
    assert tokens.role_of("") is tokens.role_of("vo") is tokens.role_of("ü") is None
    assert tokens.role_of_request({tokens.cookie: "o"}, "") == OPERATOR
    assert tokens.role_of_request({"farflung_other": "o"}, "") is None
    assert tokens.role_of_request({}, "Bearer v") == VIEWER
    assert tokens.role_of_request({tokens.cookie: "o"}, "Bearer nonsense") is None
    assert Tokens("ab12", "", "").role_of("") is None


def test_only_the_operators_page_may_act() -> None:
    tokens = Tokens("ab12", "v", "o")
    word = tokens.action_word
    assert tokens.may_act(OPERATOR, word)
    assert not tokens.may_act(OPERATOR, "") and not tokens.may_act(OPERATOR, "o")
    assert not tokens.may_act(VIEWER, word) and not tokens.may_act(None, word)
    assert Tokens("ab12", "v", "other").action_word != word
