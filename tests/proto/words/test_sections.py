"""The names of sections and of a checkpoint's files stand in one place."""

import re
from pathlib import Path

import pytest

from farflung.proto.words.sections import TIED, section_of, stage_file, stage_of

ROOT = Path(__file__).resolve().parents[3]


def test_a_sections_name_says_its_stage() -> None:
    assert [stage_of(section_of(stage)) for stage in (0, 7, 12)] == [0, 7, 12]
    assert stage_of(TIED) == 0 and stage_file(3) == "stage-3.safetensors"
    with pytest.raises(ValueError, match="'state-3' is no section"):
        stage_of("state-3")


def test_nobody_else_spells_them() -> None:
    """Nodes and the coordinator once had six writers and readers of these names."""
    own = re.compile(r"""f"stage-\{|removeprefix\("stage-|"stage-\{\}|= "tied"$""", re.MULTILINE)
    files = [path for room in ("coordinator", "node", "scheduler", "testing") for path in (ROOT / room).rglob("*.py")]
    assert files and [str(path) for path in files if own.search(path.read_text(encoding="utf-8"))] == []
