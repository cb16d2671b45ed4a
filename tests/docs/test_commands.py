"""What the documents tell people to type: farflung parses its words, and what is quick is run."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, Typed, farflungs, name_of, typed
from quick_start import Nursery
from words import check_words

from farflung.__main__ import app
from farflung.cli.common import execute

pytestmark = pytest.mark.timeout(900)  # a whole small run: seconds, but not on a busy machine

RUN = ("job init", "runs", "status", "coordinator token", "export", "generate", "codecs", "plan", "doctor")
"""Quick ones: they are run, each page's in their order, in a folder that has a job, data and finished runs."""

PARSED = {
    "demo": "trains for a minute or more: `make demo`",
    "run": "trains to the end of its job: tests/cli/test_run.py, and the fixture below",
    "join": "needs a coordinator that waits for it: tests/recipes/test_commands_run.py",
    "coordinator start": "stays until its run is done: tests/recipes/test_commands_run.py",
    **dict.fromkeys(
        [f"coordinator {name}" for name in ("drain", "evict", "readmit", "forget", "pause", "resume", "set")],
        "needs a run that goes on: tests/coordinator/run/test_commands.py",
    ),
    "doctor LINK": "needs a coordinator: tests/cli/test_doctor.py",
    "status LINK": "needs a coordinator: tests/cli/test_status.py",
    "profile": "needs a run that goes on: tests/failures/test_profile.py",
    "wan": "makes network namespaces, as root: tests/wan",
}
"""Not run here, and why; where they are run instead."""

FOREIGN = {
    **dict.fromkeys(("docker", "helm", "kubectl", "sky", "ssh", "rsync", "systemctl", "sbatch"), "tests/recipes lint"),
    **dict.fromkeys(("mkdir", "chmod", "cp", "install", "useradd", "git", "ln", "cat", "cd"), "the system's own"),
}
"""Programs that are not ours, and who looks after what we tell them."""


def kind_of(words: tuple[str, ...]) -> str:
    """The key of RUN or PARSED that the words fall under."""
    for name in (*RUN, *PARSED):
        path = name.replace(" LINK", "").split()
        if list(words[: len(path)]) == path:
            link = any(word.startswith(("farflung:", "@")) or word == "LINK" for word in words[len(path) :])
            if not name.endswith(" LINK") and link and f"{name} LINK" in PARSED:
                return f"{name} LINK"
            return name
    raise AssertionError(f"farflung {' '.join(words)} is in neither RUN nor PARSED of {__file__}")


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_farflung_takes_the_words(page: Path) -> None:
    for command in typed(page):
        for words in farflungs(command):
            in_environment = words[0] == "join" and len(words) < 2
            try:
                check_words(words, link_in_environment=in_environment)
            except AssertionError as error:
                raise AssertionError(f"{command}\n{error}") from error
            kind_of(words)


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_other_programs_are_real(page: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for command in typed(page):
        program, *words = command.words
        if program.rpartition("/")[2] == "farflung" or program == ".":
            continue
        if program == "make":
            assert words and words[0] in targets, command
        elif program == "sh":
            assert (ROOT / words[0]).is_file(), command
        elif program in ("python", "python3"):
            assert words[0] != "-m" or importlib.util.find_spec(words[1]) is not None or in_tree(words[1]), command
            assert words[0].startswith("-") or (ROOT / words[0]).is_file(), command
        elif program.rpartition("/")[2] == "pip":
            for names in re.findall(r"\[([a-z,-]+)\]", " ".join(words)):
                assert set(names.split(",")) <= set(extras), command
        else:
            assert program in FOREIGN, f"{command}\nnot a program that {Path(__file__).name} knows"


def in_tree(module: str) -> bool:
    path = ROOT / module.removeprefix("farflung.").replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_inline_commands_exist() -> None:
    """In prose: `farflung word` names a command, and every `--option` beside one is an option of it."""
    for page in DOCUMENTS:
        for text in re.findall(r"`farflung ([a-z][^`\n]*)`", page.read_text(encoding="utf-8")):
            words = text.replace("\\|", "|").split()
            help_of = [word for word in words[:2] if re.fullmatch(r"[a-z]+", word)]
            shown = _help(tuple(help_of[:2])) or _help(tuple(help_of[:1]))
            assert shown, f"{name_of(page)}: `farflung {text}`"
            for option in re.findall(r"--[a-z-]+", text):
                assert re.search(rf"{option}\b", shown), f"{name_of(page)}: `farflung {text}` has no {option}"


def _help(path: tuple[str, ...]) -> str:
    from typer.main import get_command

    command = get_command(app)
    for word in path:
        below = getattr(command, "commands", {})
        if word not in below:
            return ""
        command = below[word]
    return str(command.get_help(command.make_context("farflung", [], resilient_parsing=True)))


# ---- those that are run ------------------------------------------------------------------------

JOB = """\
[run]
name = "small"
steps = 2
[model]
family = "gpt2"
layers = 2
width = 32
heads = 2
context = 32
[data]
text = ["data/*.txt"]
[train]
batch = 4
eval_every = 0
"""


@pytest.fixture(scope="module")
def world(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: a job and its data, a cluster, a model folder, a finished run."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("To be, or not to be, that is the question.\n" * 100)
    talk = '{"messages": [{"role": "user", "content": "To be?"}, {"role": "assistant", "content": "Or not."}]}\n'
    (folder / "chats.jsonl").write_text(talk)
    (folder / "small.toml").write_text(JOB)
    text = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
    cluster = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert cluster is not None
    (folder / "cluster.json").write_text(cluster[1])
    words = ("run", "small.toml", "--nodes", "1", "--state", "small")
    done = nursery.run(*words, cwd=folder, timeout=800, FARM_FORKS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert execute(app, ["export", str(folder / "small"), str(folder / "model")]) == 0
    return folder


def quick(page: Path) -> list[Typed]:
    found = []
    for command in typed(page):
        found += [Typed(page, command.line, words) for words in farflungs(command) if kind_of(words) in RUN]
    return found


PAGES = [page for page in DOCUMENTS if page.parts[-3] != "deploy" and quick(page)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_quick_commands_work(page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "model", "cluster.json", "chats.jsonl"):
        (tmp_path / name).symlink_to(world / name)
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(world / "model")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for command in quick(page):
        words = list(command.words)
        for word in words:
            if re.fullmatch(r"runs/[\w.-]+", word) and not Path(word).exists():
                shutil.copytree(world / "small", word)
        if words[0] == "plan":
            if "--job" in words and not Path("job.toml").exists():
                shutil.copy(world / "small.toml", "job.toml")
            words += ["--time-limit", "0.1"]
        if "--revoke" in words:
            tickets = _tickets(Path(words[2]))
            words[words.index("--revoke") + 1] = tickets[0]
        if "--step" in words:
            words[words.index("--step") + 1] = "2"
        assert execute(app, words) == 0, command


def _tickets(state: Path) -> list[str]:
    import contextlib

    from farflung.coordinator.store.store import Store

    with contextlib.closing(Store(state)) as store:
        return [ticket.number for ticket in store.tickets.all() if not ticket.revoked]
