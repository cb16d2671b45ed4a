"""deploy/systemd: systemd's own check of the units and of how far they are locked up."""

import shlex
import shutil
from pathlib import Path

import pytest
from linters import DEPLOY, lint
from words import check_words

UNITS = ["farflung-coordinator.service", "farflung-node@.service"]
PROGRAM = "/opt/farflung/bin/farflung"


@pytest.fixture
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with a program that exists everywhere, as systemd looks for it; a template as one of its instances."""
    name = request.param
    text = (DEPLOY / "systemd" / name).read_text()
    assert PROGRAM in text
    path = tmp_path / name.replace("@.", "@0.")
    path.write_text(text.replace(PROGRAM, shutil.which("true") or "/bin/true"))
    return path


@pytest.mark.parametrize("unit", UNITS, indirect=True)
def test_systemd_understands_every_line(unit: Path) -> None:
    done = lint("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    assert "NoNewPrivilege" in lint("systemd-analyze", "verify", "--man=no", unit).stderr


@pytest.mark.parametrize("unit", UNITS, indirect=True)
def test_a_service_may_do_little(unit: Path) -> None:
    done = lint("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", unit)
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("name", UNITS)
def test_farflung_accepts_the_commands(name: str) -> None:
    lines = [line for line in (DEPLOY / "systemd" / name).read_text().splitlines() if line.startswith("ExecStart=")]
    assert len(lines) == 1
    words = shlex.split(lines[0].removeprefix("ExecStart="))
    assert words[0] == PROGRAM and words[-1] == "$OPTIONS"
    check_words(words[1:-1])
