"""``pattern = "auto"`` is settled in one place, for the nodes and for the planner."""

from pathlib import Path

from farflung.scheduler.workloads.workload import PATTERNS, settled_pattern

ROOT = Path(__file__).resolve().parents[2]


def test_two_members_send_to_each_other_and_more_have_publishers() -> None:
    assert [settled_pattern("auto", members) for members in (1, 2, 3, 8)] == [
        "all_to_all",
        "all_to_all",
        "publishers",
        "publishers",
    ]
    assert all(settled_pattern(one, members) == one for one in PATTERNS if one != "auto" for members in (2, 3))


def test_nobody_else_settles_it() -> None:
    files = [path for room in ("coordinator", "node", "scheduler") for path in (ROOT / room).rglob("*.py")]
    alike = [path.name for path in files if '"all_to_all" if ' in path.read_text(encoding="utf-8")]
    assert alike == ["workload.py"]
