"""The backend netem in a kernel that has netem: a User-mode Linux guest (apt-get install user-mode-linux)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
MODULES = Path("/usr/lib/uml/modules")
WANTED = ("sch_netem", "sch_htb", "sch_tbf", "cls_u32", "veth", "bridge", "iptable_filter", "xt_conntrack")


def insertion_order(folder: Path, wanted: tuple[str, ...]) -> list[str]:
    """The module files to insert, each after what it needs, from modules.dep."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, rest = line.split(":", 1)
        needs[Path(file).stem.replace("-", "_")] = (file, rest.split())
    order: list[str] = []
    for name in wanted:
        file, before = needs[name]
        order += [f for f in [*reversed(before), file] if f not in order]
    return [str(folder / file) for file in order]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    linux = shutil.which("linux.uml")
    versions = sorted(MODULES.glob("*")) if MODULES.is_dir() else []
    if linux is None or not versions:
        pytest.skip("needs a kernel with sch_netem: apt-get install user-mode-linux")
    out = tmp_path_factory.mktemp("uml")
    (out / "modules").write_text(" ".join(insertion_order(versions[-1], WANTED)))
    words = [
        linux,
        "mem=512M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        f"init={HERE / 'uml_init.sh'}",
        "con=null",
        "con0=null,fd:1",
        f"FARFLUNG_OUT={out}",
        f"FARFLUNG_PYTHON={sys.executable}",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        f"FARFLUNG_GUEST={HERE / 'uml_guest.py'}",
    ]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, cwd=out, check=False
    )
    result = out / "result.json"
    log = (out / "log").read_text() if (out / "log").exists() else ""
    assert result.exists(), f"the guest did not finish: {done.stdout[-2000:]}\n{log[-2000:]}"
    found: dict[str, Any] = json.loads(result.read_text())
    assert "error" not in found, f"{found.get('error')}\n{found.get('hint')}\n{found.get('trace')}"
    return found


def test_netem_is_chosen_where_the_kernel_has_it(guest: dict[str, Any]) -> None:
    assert guest["chosen"] == "netem"
    assert "htb" in guest["qdiscs"] and "netem" in guest["qdiscs"] and "limit 517" in guest["qdiscs"]


def test_ping_through_netem_is_as_set(guest: dict[str, Any]) -> None:
    assert guest["ping"]["loss"] == 0
    assert abs(guest["ping"]["least"] - 50) <= 3
    assert guest["first_ping"]["least"] < 100, "ARP went through the delay"


def fills(mbit: float, rate: float) -> bool:
    """Whether a transfer had what a rate allows. A guest whose timers the host delays loses some of a shaper's tokens,
    and never gets more than it should."""
    return 0.88 <= mbit / (rate * 0.956) <= 1.03


def test_tcp_through_netem_fills_the_link(guest: dict[str, Any]) -> None:
    assert abs(guest["mbit"] / (50 * 0.956) - 1) <= 0.06
    assert fills(guest["uplink_mbit"], 20) and fills(guest["downlink_mbit"], 30)


def test_live_changes(guest: dict[str, Any]) -> None:
    assert abs(guest["ping_set"]["least"] - 85) <= 3
    assert abs(guest["mbit_set"] / (10 * 0.956) - 1) <= 0.06
    assert guest["ping_cut"]["loss"] == 100
    assert abs(guest["lost"] - 0.02) <= 0.006


def test_a_hosts_uplink_and_downlink_change_live(guest: dict[str, Any]) -> None:
    for key, rate in (("uplink_set", 8), ("downlink_set", 12), ("uplink_gone", 50), ("downlink_gone", 50)):
        assert fills(guest[key], rate), (key, guest[key])
    assert abs(guest["ping_host"]["least"] - 80) <= 3


def test_a_host_behind_nat_cannot_be_dialled(guest: dict[str, Any]) -> None:
    assert not guest["dial_nat"]
    assert guest["dial_out"]


def test_our_own_check_agrees_and_down_removes_all(guest: dict[str, Any]) -> None:
    assert guest["quick"]["ok"], guest["quick"]["why"]
    assert len(guest["down"]["namespaces"]) == 4
