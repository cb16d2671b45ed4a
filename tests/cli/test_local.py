"""A local run's processes: started, watched, ended. A stand-in program plays the coordinator and the nodes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from farflung.cli.local import children as children_module
from farflung.cli.local import run as run_module
from farflung.cli.local.children import Child, Children, Ended, Said
from farflung.cli.local.run import LocalRun, has_begun, run, threads_for
from farflung.coordinator.observe import status as status_module
from farflung.coordinator.store.rows import StepRow
from farflung.coordinator.store.store import Store
from farflung.proto.errors import FarflungError, RunFailed

STAND_IN = """
import json, os, signal, subprocess, sys, time

def say(event, **more):
    print(json.dumps({"event": event, "time": 0.0, **more}), flush=True)

def left(*_):
    say("left", node="me")
    raise SystemExit(130)

words, play = sys.argv[1:], os.environ.get("PLAY", "")
signal.signal(signal.SIGINT, left)
if words[0] == "coordinator":
    if play == "bad job":
        say("error", message="train.batch is wrong", hint="write 8")
        raise SystemExit(2)
    if play == "crash":
        raise SystemExit(7)
    if play not in ("silent", "works"):
        say("listening", link="farflung://127.0.0.1:1/#T")
    if play == "killed":
        say("step", step=1)
    if play == "killed early, planned":
        say("phase", phase="training", why="4 nodes in: the run starts")
        time.sleep(1.0)
        say("phase", phase="waiting", why="waiting for 1 more node")
    if play == "killed long before it is done":
        say("done", steps=3)
        time.sleep(2.5)  # it still writes when the last node has said goodbye
        raise SystemExit(0)
    if play == "done":
        print('{"rows": 3}', flush=True)  # as a person's own code may
        time.sleep(0.3)
        say("done", steps=3)
        raise SystemExit(0)
    if play == "silent":
        time.sleep(60)
    if play == "works":
        began = time.process_time()
        while time.process_time() < began + 1.5:  # one that is silent, and longer at it than may be silent
            pass
        say("done", steps=3)
        raise SystemExit(0)
    time.sleep(60)
if words[0] == "join":
    name = words[words.index("--name") + 1]
    if play == "no nodes":
        say("error", message="the ticket expired", hint="ask for a new link")
        raise SystemExit(3)
    if play == "refused early" and name == "node-1":
        say("error", message="there is no cuda:7 here", hint="--device cuda:0")
        raise SystemExit(2)
    if play.startswith("killed") and name == "node-1":
        os.kill(os.getpid(), signal.SIGKILL)
    if play == "grandchild":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    if play == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if play == "done":
        time.sleep(0.2)
        raise SystemExit(0)
    if play == "killed long before it is done":
        time.sleep(0.5)
        raise SystemExit(0)
    time.sleep(60)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(children_module, "_PACKAGE", "stand_in")
    return tmp_path


def play(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, nodes: int = 2) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setenv("PLAY", name)
    shown: list[dict[str, Any]] = []
    return run(LocalRun(folder / "job.toml", folder / "state", nodes), lambda e: shown.append(dict(e))), shown


def processes_of(folder: Path) -> list[int]:
    """Processes that were started by this test: their environment names its folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (one / "environ").read_bytes() and int(one.name) != os.getpid():
                found.append(int(one.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_done(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = play(stand_in, "done", monkeypatch)
    assert status == 0
    assert [event.get("event") for event in shown] == ["listening", None, "done"]
    assert processes_of(stand_in / "package") == []
    assert sorted(path.name for path in (stand_in / "state" / "logs").iterdir()) == [
        "coordinator.log",
        "node-1.log",
        "node-2.log",
    ]


def test_a_run_that_has_lost_a_node_long_before_is_done(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "has_begun", lambda state: True)
    status, shown = play(stand_in, "killed long before it is done", monkeypatch)
    assert status == 0 and {"done", "warning"} <= {event["event"] for event in shown}


def test_every_node_gets_the_offload_folder(tmp_path: Path) -> None:
    started: list[list[str]] = []

    class Recorder:
        def start(self, name: str, arguments: list[str], environment: dict[str, str]) -> str:
            started.append(arguments)
            return name

    for folder in (None, tmp_path / "nvme"):
        plan = LocalRun(tmp_path / "job.toml", tmp_path / "state", 2, offload_folder=folder)
        run_module._start_nodes(plan, Recorder(), "farflung://x", [])  # type: ignore[arg-type]
    assert ["--offload-folder" in one for one in started] == [False, False, True, True]
    assert all(one[one.index("--offload-folder") + 1] == str(tmp_path / "nvme") for one in started[2:])


def test_the_coordinators_error_is_passed_on(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FarflungError) as caught:
        play(stand_in, "bad job", monkeypatch)
    assert (caught.value.message, caught.value.hint, caught.value.status) == ("train.batch is wrong", "write 8", 2)


def test_a_crashed_coordinator(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match="exit status 7"):
        play(stand_in, "crash", monkeypatch)


def test_nodes_that_are_refused_end_the_run(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FarflungError) as caught:
        play(stand_in, "no nodes", monkeypatch)
    assert caught.value.status == 3 and "the ticket expired" in caught.value.message
    assert processes_of(stand_in / "package") == []


@pytest.mark.parametrize(
    ("name", "says", "hint", "status"),
    [
        ("killed early", "killed by SIGKILL", "its log is ", 4),
        ("refused early", "there is no cuda:7 here", "--device cuda:0; its log is ", 2),
    ],
)
def test_a_node_that_dies_before_the_first_step_ends_the_run(
    name: str, says: str, hint: str, status: int, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FarflungError) as caught:
        play(stand_in, name, monkeypatch)
    wanted = (
        f"node-1 ended before the first step, and the run begins only with all nodes that it was started with: {says}"
    )
    assert caught.value.message == wanted and caught.value.status == status
    assert caught.value.hint == f"{hint}{stand_in / 'state' / 'logs' / 'node-1.log'}"
    assert processes_of(stand_in / "package") == []


def test_a_resumed_run_whose_nodes_are_all_dead_says_where_the_log_is(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "has_begun", lambda state: True)
    with pytest.raises(FarflungError, match="no node is left: the ticket expired") as caught:
        play(stand_in, "no nodes", monkeypatch)
    logs = [stand_in / "state" / "logs" / f"node-{number}.log" for number in (1, 2)]
    assert caught.value.hint in [f"ask for a new link; its log is {log}" for log in logs] and caught.value.status == 3
    with pytest.raises(FarflungError, match="no node is left: node-1 killed by SIGKILL") as caught:
        play(stand_in, "killed early", monkeypatch, nodes=1)
    assert caught.value.hint == f"its log is {logs[0]}"


def test_others_that_can_go_on_are_let_and_others_that_wait_are_not(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_STALLED_SECONDS", 0.5)
    monkeypatch.setattr(run_module, "has_begun", lambda state: True)
    shown: list[dict[str, Any]] = []
    monkeypatch.setenv("PLAY", "killed early, planned")
    with pytest.raises(FarflungError, match="and the others can't go on without it: killed by SIGKILL"):
        run(LocalRun(stand_in / "job.toml", stand_in / "state", 2), lambda e: shown.append(dict(e)))
    [warning] = [event for event in shown if event["event"] == "warning"]
    assert warning["message"] == "ended: killed by SIGKILL; the others go on without it, if there is a plan for them"


def test_a_run_that_a_person_has_paused_waits_for_as_long_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    died = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"], text=True)
    died.wait()
    start = run_module._Start(False, 0, lambda: run_module.is_paused(tmp_path))
    start.said({"event": "phase", "phase": "training"}, 0.0)
    start.ended(Ended(Child("node-1", died, tmp_path / "node-1.log"), 5))
    store.put("paused", "paused by a person")
    start.said({"event": "phase", "phase": "waiting", "why": "paused by a person"}, 10.0)
    for now in (39.0, 41.0, 70.0, 99.0, 120.0):
        start.check(now)
    store.put("paused", "")
    start.said({"event": "notice", "message": "resumed by a person"}, 149.0)
    start.check(178.0)
    with pytest.raises(FarflungError, match="node-1 ended before the first step, and the others can't go on without"):
        start.check(180.0)
    store.close()


def test_a_run_has_begun_when_it_has_a_step_and_no_status_is_made_to_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "status_of", lambda *_: pytest.fail("a whole status is made"))
    assert not has_begun(tmp_path / "none")
    store = Store(tmp_path, create=True)
    store.put("phase", "waiting")
    assert not has_begun(tmp_path)
    none = dict.fromkeys(("bytes_updates", "bytes_activations", "bytes_other", "bytes_dense", "bytes_dense_updates"), 0)
    store.steps.put(StepRow(1, 1, 5.0, 8, 64, 0.5, **none, notes="{}", time=1.0))
    store.close()
    assert has_begun(tmp_path)


def test_a_dead_node_is_shown_and_ctrl_c_ends_everyone(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY", "killed")
    shown: list[dict[str, Any]] = []

    def show(event: Any) -> None:
        shown.append(dict(event))
        if event["event"] == "warning":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(LocalRun(stand_in / "job.toml", stand_in / "state", 2), show)
    [warning] = [event for event in shown if event["event"] == "warning"]
    assert warning["node"] == "node-1" and "SIGKILL" in warning["message"]
    assert any("goodbye" in event.get("message", "") for event in shown)
    assert any(event.get("phase") == "stopping" for event in shown)
    assert processes_of(stand_in / "package") == []


@pytest.mark.parametrize("name", ["grandchild", "deaf"])
def test_nobody_is_left_behind(name: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY", name)
    group = Children(stand_in / "logs")
    child = group.start("node-1", ["join", "link", "--name", "node-1"])
    wait_until(lambda: len(processes_of(stand_in / "package")) >= (2 if name == "grandchild" else 1))
    group.stop(patience=0.5)
    assert not child.alive
    wait_until(lambda: processes_of(stand_in / "package") == [])


def test_words_and_ends_arrive_in_order(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY", "bad job")
    group = Children(stand_in / "logs")
    group.start("coordinator", ["coordinator", "start"])
    first, second = group.next(60), group.next(60)
    assert isinstance(first, Said) and first.event["event"] == "error"
    assert isinstance(second, Ended) and second.status == 2
    assert group.next(0.01) is None
    group.kill()


def test_a_child_whose_parent_dies_interrupts_itself() -> None:
    code = textwrap.dedent(
        """
        import time
        from farflung.cli.local.children import hold_lifeline
        hold_lifeline()
        try:
            print("ready", flush=True)
            time.sleep(30)
        except KeyboardInterrupt:
            print("goodbye", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.stdin.close()
        assert child.stdout.readline() == "goodbye\n"


def test_threads_share_the_cores() -> None:
    assert threads_for(1) >= 1 and threads_for(10_000) == 1


def test_a_coordinator_that_works_is_waited_for_and_one_that_does_nothing_is_not(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_START_SECONDS", 0.2)
    monkeypatch.setattr(run_module, "_LEAST_WORK", 0.01)
    done = count(1.0)
    monkeypatch.setattr(children_module.Child, "work", lambda child: next(done))
    status, shown = play(stand_in, "works", monkeypatch)
    assert status == 0 and any("has said nothing for" in str(event.get("message")) for event in shown)
    monkeypatch.setattr(children_module.Child, "work", lambda child: 0.0)
    with pytest.raises(RunFailed, match="does not listen, and has said nothing for"):
        play(stand_in, "silent", monkeypatch)


def test_what_a_process_and_its_children_do_is_seen() -> None:
    code = "import subprocess, sys; sys.stdout.write(sys.stdin.readline()); sys.stdout.flush(); sys.stdin.readline()"
    loop = "import time\nwhile time.process_time() < 0.4: pass"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {loop!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", inner + "; print(1, flush=True); " + code],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        child = children_module.Child("one", process, Path("log"))
        before = child.work()
        assert before >= 0.3
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert child.work() < before + 0.3  # it waits now
        process.kill()
