"""deploy/docker and deploy/compose: hadolint and docker compose agree with them, and every command is a real one."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from linters import DEPLOY, lint
from words import check_words

IMAGES = ["Dockerfile", "Dockerfile.cuda"]


def instructions(image: Path) -> list[tuple[str, str]]:
    """(keyword, the rest) of each instruction, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", image.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(image: str) -> None:
    done = lint("hadolint", "--failure-threshold", "style", DEPLOY / "docker" / image)
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    assert lint("hadolint", tmp_path / "Dockerfile").returncode != 0


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_small_not_root_and_says_whether_it_is_well(image: str) -> None:
    lines = instructions(DEPLOY / "docker" / image)
    stages = [rest for keyword, rest in lines if keyword == "FROM"]
    assert len(stages) == 2 and stages[0].endswith(" AS build") and ":" in stages[1]
    last = lines[max(at for at, line in enumerate(lines) if line[0] == "FROM") :]
    assert not any(keyword == "COPY" and "--from=build" not in rest for keyword, rest in last)
    assert ("USER", "10001:10001") in last
    words = dict(last)
    assert json.loads(words["ENTRYPOINT"]) == ["farflung"]
    check = json.loads(words["HEALTHCHECK"].split("CMD", 1)[1])
    compile(check[2], "HEALTHCHECK", "exec")
    default = json.loads(words["CMD"])
    if default != ["--help"]:
        check_words(default, link_in_environment=True)


def test_the_build_sees_every_package_and_no_more() -> None:
    """`.dockerignore` lets in what pyproject.toml packages, or the image's pip would build half a package."""
    root = DEPLOY.parent
    ignore = (root / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    packaged = re.findall(r'^    "farflung\.([a-z.]+)",$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert packaged
    for name in packaged:
        folder = name.replace(".", "/")
        assert any(one == folder or one.startswith(f"{folder}/*") or folder.startswith(f"{one}/") for one in allowed), (
            name
        )


def compose(folder: Path, *files: str) -> dict[str, Any]:
    options = [word for file in files for word in ("-f", file)]
    done = lint("docker-compose", *options, "config", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


@pytest.mark.parametrize(
    "files",
    [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"], ["compose.yaml", "../grafana/compose.yaml"]],
    ids=" ".join,
)
def test_compose_accepts_the_project_and_farflung_its_commands(files: list[str]) -> None:
    services = compose(DEPLOY / "compose", *files)
    for name in ("coordinator", "node"):
        service = services[name]
        check_words(service["command"])
        build = service["build"]
        assert Path(build["context"]) == DEPLOY.parent and (DEPLOY.parent / build["dockerfile"]).is_file()
        assert service["cap_drop"] == ["ALL"]
    assert services["node"]["depends_on"]["coordinator"]["condition"] == "service_healthy"
    words = services["coordinator"]["command"]
    assert services["node"]["command"][1] == "@" + words[words.index("--link-file") + 1]


def test_compose_would_refuse_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services:\n  one:\n    image: x\n    comand: y\n")
    assert lint("docker-compose", "config", "-q", cwd=tmp_path).returncode != 0


@pytest.mark.parametrize("recipe", ["docker", "compose"])
def test_commands_of_the_readme_are_real(recipe: str) -> None:
    text = (DEPLOY / recipe / "README.md").read_text()
    found = 0
    for line in re.findall(r"^    docker (?:run|compose) (.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if "run" in words and "coordinator" in words:
            words = words[words.index("coordinator") + 1 :]
        elif "farflung" in words:
            words = words[words.index("farflung") + 1 :]
        else:
            continue
        check_words(words)
        found += 1
    assert found
