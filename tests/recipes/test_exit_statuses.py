"""The table of exit statuses in docs/reference.md is what the recipes do; nothing that waiting mends is final."""

import re
import shlex

import pytest
import yaml
from linters import DEPLOY

from farflung.proto.errors import FarflungError, NotNow, Refused, RunFailed, Unreachable

REFERENCE = (DEPLOY.parent / "docs" / "reference.md").read_text()
HEAD = "| recipe | 0 | 2 or 4, or killed | 3 | no answer |"


def row(name):
    """Cells of a recipe's row."""
    table = REFERENCE[REFERENCE.index(HEAD) :].split("\n\n")[0].splitlines()[2:]
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)}
    return rows[name]


def unit(name):
    """Settings of a systemd unit."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def patience(text):
    found = re.search(r'--patience (?:"\$\{FARFLUNG_PATIENCE:-)?(\w+)', text)
    return found and found[1]


def test_errors_have_the_statuses_that_the_units_are_written_for():
    assert [error.status for error in (FarflungError, Unreachable, Refused, NotNow, RunFailed)] == [2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("file", "name"),
    [("farflung-node@.service", "systemd, node"), ("farflung-coordinator.service", "systemd, coordinator")],
)
def test_a_unit_restarts_what_waiting_mends(file, name):
    said, settings = row(name), unit(file)
    assert settings["Restart"] == "on-failure" and said[0] == "stays ended"
    assert settings["StartLimitIntervalSec"] == "0", "systemd would give up after some starts"
    again = f"starts again after {settings['RestartSec'].removesuffix('s')} s"
    final = settings.get("RestartPreventExitStatus", "").split()
    assert "2" not in final and "4" not in final and said[1] == again
    assert said[2] == ("stays ended" if "3" in final else again)
    if "node" in name:
        assert final == ["3"] and f"`{patience(settings['ExecStart'])}`" in said[3]
        assert patience(settings["ExecStart"]) == "forever", "a passing refusal has status 3 too"


@pytest.mark.parametrize("service", ["node", "coordinator"])
def test_docker_restarts_what_fails(service):
    [services] = [yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]]
    said = row(f"Compose, {service}")
    assert f"`{services[service]['restart']}`" in said[1] and said[0] == "stays ended" and said[2] == "as 2"


def test_kubernetes_restarts_everything():
    assert "starts again" in row("Helm, both")[0]
    for file in (DEPLOY / "helm/farflung/templates").glob("*.yaml"):
        text = file.read_text()
        assert "kind: Job" not in text and not re.search(r"restartPolicy: (Never|OnFailure)", text)


RENTED = {
    "skypilot/node.yaml": "SkyPilot, node",
    "vast/start.sh": "vast.ai, RunPod",
    "slurm/nodes.sbatch": "Slurm, node",
}


@pytest.mark.parametrize(("file", "name"), RENTED.items())
def test_rented_machines_look_for_an_hour(file, name):
    text = (DEPLOY / file).read_text()
    assert f"`{patience(text)}`" in row(name)[3] and patience(text) == "1h"


def test_skypilot_takes_another_machine_where_the_run_failed():
    resources = yaml.safe_load((DEPLOY / "skypilot/node.yaml").read_text())["resources"]
    assert resources["job_recovery"] == {"recover_on_exit_codes": [4]}
    assert row("SkyPilot, node")[1:3] == ["4: on another machine; 2: the job has failed", "the job has failed"]


def test_the_recipes_words_are_the_command_s():
    from words import check_words

    command = unit("farflung-node@.service")["ExecStart"]
    check_words(shlex.split(command)[1:-1])
