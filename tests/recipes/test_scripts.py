"""deploy/vast, slurm, skypilot and notebook: shell that shellcheck likes, tasks and cells that are valid."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from linters import DEPLOY, lint
from words import check_words, farflung_lines

SCRIPTS = ["vast/start.sh", "slurm/nodes.sbatch"]
TASKS = ["coordinator.yaml", "node.yaml"]
SCHEMAS = Path(__file__).parent / "skypilot-0.14.1.json"
"""SkyPilot's own: `sky.utils.schemas.get_task_schema()` and `get_resources_schema()`."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script: str) -> None:
    done = lint("shellcheck", "--enable=all", "--exclude=SC2154,SC2250,SC2310,SC2312", DEPLOY / script)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder for PATH in which farflung and srun say how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "farflung").write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    (folder / "srun").write_text('#!/bin/sh\nshift\nSLURM_PROCID=3 exec "$@"\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


def called(script: Path, fake: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = f"{fake}{os.pathsep}{os.defpath}"
    return subprocess.run(
        ["bash", script], capture_output=True, text=True, env={"PATH": path, **environment}, timeout=60, cwd=fake
    )


@pytest.mark.parametrize(
    ("environment", "name", "advertise"),
    [
        (
            {"CONTAINER_ID": "123", "PUBLIC_IPADDR": "198.51.100.4", "VAST_TCP_PORT_7071": "40123"},
            "vast-123",
            "198.51.100.4:40123",
        ),
        (
            {"RUNPOD_POD_ID": "abc", "RUNPOD_PUBLIC_IP": "198.51.100.5", "RUNPOD_TCP_PORT_7071": "1234"},
            "runpod-abc",
            "198.51.100.5:1234",
        ),
        ({"CONTAINER_ID": "9"}, "vast-9", None),
    ],
    ids=["vast.ai", "RunPod", "no open port"],
)
def test_a_rented_gpu_joins(environment: dict[str, str], name: str, advertise: str | None, fake: Path) -> None:
    done = called(DEPLOY / "vast/start.sh", fake, FARFLUNG_LINK="farflung://h:1/#secret", **environment)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    check_words(words, link_in_environment=True)
    assert words[words.index("--name") + 1] == name
    assert (words[words.index("--advertise") + 1] if "--advertise" in words else None) == advertise
    assert "secret" not in done.stdout


def test_a_rented_gpu_says_what_is_missing(fake: Path) -> None:
    done = called(DEPLOY / "vast/start.sh", fake)
    assert done.returncode != 0 and "FARFLUNG_LINK: set it to the link" in done.stderr
    (fake / "farflung").unlink()
    done = called(DEPLOY / "vast/start.sh", fake, FARFLUNG_LINK="x")
    assert done.returncode != 0 and "FARFLUNG_PACKAGE: the image has no farflung" in done.stderr


def test_slurm_starts_a_node_for_each_task(fake: Path) -> None:
    script = DEPLOY / "slurm/nodes.sbatch"
    done = called(script, fake, HOME=str(fake), SLURM_JOB_ID="77")
    assert done.returncode == 2 and "no link in" in done.stderr
    (fake / ".farflung-link").write_text("farflung://h:1/#secret\n")
    done = called(script, fake, HOME=str(fake), SLURM_JOB_ID="77")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    check_words(words)
    assert words[:4] == ["join", f"@{fake}/.farflung-link", "--name", "slurm-77-3"]
    assert "secret" not in done.stdout


def test_slurm_directives_come_before_the_commands() -> None:
    """sbatch stops looking for #SBATCH at the first command, and says nothing."""
    lines = (DEPLOY / "slurm/nodes.sbatch").read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [at for at, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert directives and max(directives) < first


@pytest.mark.parametrize("name", TASKS)
def test_skypilot_accepts_the_task(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install -e '.[lint-deploy]'")
    schemas = json.loads(SCHEMAS.read_text())
    task = yaml.safe_load((DEPLOY / "skypilot" / name).read_text())
    jsonschema.validate(task, schemas["task"])
    jsonschema.validate(task["resources"], schemas["resources"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**task, "sekrets": {}}, schemas["task"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**task["resources"], "spot": True}, schemas["resources"])


@pytest.mark.parametrize("name", TASKS)
def test_skypilot_runs_real_commands(name: str) -> None:
    task = yaml.safe_load((DEPLOY / "skypilot" / name).read_text())
    [words] = farflung_lines(task["run"])
    check_words(words, link_in_environment="FARFLUNG_LINK" in task.get("secrets", {}))


def test_skypilot_nodes_are_spot_machines_of_several_clouds_and_carry_no_link() -> None:
    text = (DEPLOY / "skypilot/node.yaml").read_text()
    task = yaml.safe_load(text)
    assert task["resources"]["use_spot"] is True
    assert len(task["resources"]["any_of"]) == 3
    assert task["secrets"] == {"FARFLUNG_LINK": None} and "farflung://" not in text


def test_the_notebook_is_valid_and_its_cell_joins() -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[lint-deploy]'")
    notebook = nbformat.read(DEPLOY / "notebook/join.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    [cell] = [one for one in notebook.cells if one.cell_type == "code"]
    assert cell.outputs == [] and cell.execution_count is None
    calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.List)]
    words = [[one.value for one in node.elts if isinstance(one, ast.Constant)] for node in calls]
    assert ["-m", "farflung", "join"] in words
    check_words(["join"], link_in_environment=True)


def test_the_notebooks_cell_runs(tmp_path: Path) -> None:
    """Anywhere else than at Colab or Kaggle the link is in the environment; a wrong one is refused in words."""
    cells = json.loads((DEPLOY / "notebook/join.ipynb").read_text())["cells"]
    [source] = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cell.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "cell.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "FARFLUNG_LINK": "http://elsewhere:1"},
    )
    assert "is not a link" in done.stdout and "ended with status 2" in done.stdout, done.stdout + done.stderr
