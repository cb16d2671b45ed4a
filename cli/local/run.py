"""A whole run on this machine: one coordinator and N nodes, as real processes that talk gRPC over loopback."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import FrameType

from ...coordinator.store.engines.sqlite import FILE
from ...job.files import load_job
from ...proto.errors import FarflungError, RunFailed
from ...proto.process.telling import undisturbed
from ..screen.events.event import Event
from ..screen.output import FAILED
from .children import Child, Children, Ended, Said

_START_SECONDS = 120.0
"""Seconds for which a coordinator that does not listen yet may write no event and do no work."""
_LEAST_WORK = 1.0
"""Least work (`Child.work`) in that time of a process that reads data or profiles a model."""
_PARTING_SECONDS = 20.0
_STALLED_SECONDS = 30.0
"""Seconds for which a run whose node has died before the first step may wait: until then it may be planned again."""
_LEAVING_SECONDS, _GOODBYE_SECONDS = 40.0, 5.0
"""Seconds after Ctrl-C: for the coordinator's last checkpoint and the nodes' goodbyes; and then for the nodes'
processes to end."""


@dataclass(frozen=True)
class LocalRun:
    """The processes to start.

    ``job``: path of the job file; ``state``: the run's folder; ``nodes``: how many nodes; ``allow_code``: the modules
    that the job's ``build`` keys name, because a person who starts a run with their own job trusts its code. The
    modules are also searched in the job file's folder. ``listen``, ``advertise``: the coordinator's, for nodes that
    join from other machines; the run begins when ``others`` of these have joined. ``offload_folder``: of all nodes,
    whose files there have no name.
    """

    job: Path
    state: Path
    nodes: int
    device: str = "auto"
    allow_code: tuple[str, ...] = ()
    insecure: bool = False
    _: KW_ONLY
    debug: bool = False
    give_up: bool = False
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    others: int = 0
    offload_folder: Path | None = None


def run_name(job: Path) -> str:
    """The name of the run of a job file: [run] name, or the file's own. JobError: the file is wrong."""
    return load_job(job).run.name


def run(plan: LocalRun, show: Callable[[Event], None]) -> int:
    """Start the coordinator, then the nodes; show the coordinator's events until it ends.

    Returns the coordinator's exit status. A node that ends before the run does is shown as a warning; when the last
    one is gone the run has failed, and so it has when one dies before the first step and the others can't go on. Raises
    RunFailed or the node's error, or KeyboardInterrupt after everyone was asked to leave.
    """
    show = undisturbed(show)
    with interruptible():
        children = Children(plan.state / "logs")
        try:
            return _watch(plan, children, show)
        except KeyboardInterrupt:
            _take_leave(children, show)
            raise
        finally:
            children.stop()


def _take_leave(children: Children, show: Callable[[Event], None]) -> None:
    """End the coordinator first: it makes a last checkpoint and tells the nodes to leave. KeyboardInterrupt ends all at
    once."""
    if not children.all or not children.all[0].alive:
        return
    show({"event": "phase", "phase": "stopping", "why": "interrupted"})
    show({"event": "notice", "message": "stopping: everyone says goodbye first; Ctrl-C again leaves at once"})
    coordinator, *nodes = children.all
    coordinator.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _LEAVING_SECONDS
    while time.monotonic() < deadline:
        word = children.next(timeout=0.5)
        if isinstance(word, Ended) and word.child is coordinator:
            break
        if isinstance(word, Said) and word.child is coordinator:
            deadline = time.monotonic() + _LEAVING_SECONDS  # its events show that the checkpoint still arrives
            show(word.event)
    children.finish(nodes, _GOODBYE_SECONDS)


def threads_for(nodes: int) -> int:
    """Threads that each of ``nodes`` processes on this machine should compute with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // nodes)


def _watch(plan: LocalRun, children: Children, show: Callable[[Event], None]) -> int:
    flags = (["--insecure"] if plan.insecure else []) + (["--debug"] if plan.debug else [])
    coordinator = children.start(
        "coordinator",
        [
            *("coordinator", "start", str(plan.job), "--state", str(plan.state)),
            *("--listen", plan.listen, "--min-nodes", str(plan.nodes + plan.others), *flags),
            *(["--advertise", plan.advertise] if plan.advertise else []),
            *(["--give-up"] if plan.give_up else []),
        ],
        {"OMP_NUM_THREADS": "1", **_python_path(plan)},
    )
    nodes: list[Child] = []
    lost: Ended | None = None
    start = _Start(has_begun(plan.state), plan.others, lambda: is_paused(plan.state))
    worked = 0.0
    deadline = time.monotonic() + _START_SECONDS
    while True:
        word = children.next(timeout=0.5)
        start.check(time.monotonic())
        if word is None:
            if time.monotonic() < deadline or (nodes and lost is None):
                continue
            if lost is not None:
                raise _deserted(nodes, lost)
            if (work := coordinator.work()) >= worked + _LEAST_WORK:
                worked, deadline = work, time.monotonic() + _START_SECONDS
                told = f"the coordinator has said nothing for {_START_SECONDS:.0f} s, and works"
                show({"event": "notice", "message": f"{told}; its log is {coordinator.log}", "node": ""})
                continue
            silent = f"does not listen, and has said nothing for {_START_SECONDS:.0f} s"
            raise RunFailed(f"the coordinator {silent}", f"see {coordinator.log}")
        if isinstance(word, Ended) and word.child is coordinator:
            return _parted(children, nodes, word, coordinator)
        if isinstance(word, Ended):
            if word.status:
                goes_on = start.ended(word)
                message = f"ended: {word.child.end_text()}{goes_on}"
                show({"event": "warning", "node": word.child.name, "message": message})
            if not any(node.alive for node in nodes):
                # One that left with a goodbye was told to by the coordinator, which will end too; others may have died
                # long before. Otherwise the run can't continue.
                lost = word
                polite = any(node.process.returncode == 0 for node in nodes)
                deadline = time.monotonic() + (_PARTING_SECONDS if polite else 0.0)
        elif word.child is coordinator:
            # Long work (reading data, uploading a checkpoint) writes a progress event each second.
            deadline = max(deadline, time.monotonic() + (_PARTING_SECONDS if nodes else _START_SECONDS))
            if word.event.get("event") == "error":
                continue  # raised with its status when the coordinator ends
            start.said(word.event, time.monotonic())
            show(word.event)
            if word.event.get("event") == "listening" and not nodes:
                nodes = _start_nodes(plan, children, str(word.event["link"]), flags)
        elif word.event.get("event") == "warning":
            show(word.event)


class _Start:
    """Whether a run reaches its first step after a node of this machine has died. ``begun``: an earlier life of the run
    had made steps, so that it goes on with fewer nodes. ``others``: how many nodes of other machines it waits for.
    ``paused``: whether a person has paused the run, which then may wait for as long as it is."""

    def __init__(self, begun: bool, others: int, paused: Callable[[], bool]) -> None:
        self._begun, self._others, self._paused, self._stepped = begun, others, paused, False
        self._first: Ended | None = None
        """The first node that has died before the first step."""
        self._waits_since: float | None = None

    def ended(self, word: Ended) -> str:
        """A node has died: what to say of the others. Raises the node's error if they can't go on without it."""
        if self._stepped:
            return ""
        self._first = self._first or word
        if not self._begun:
            raise _fell(word, "and the run begins only with all nodes that it was started with")
        return "; the others go on without it, if there is a plan for them"

    def said(self, event: Event, now: float) -> None:
        """The coordinator has said this."""
        if event.get("event") == "step":
            self._stepped = True
        if event.get("event") == "phase":
            self._begun = self._begun or event["phase"] == "training"
            self._waits_since = now if event["phase"] == "waiting" else None
        elif event.get("event") == "notice" and self._waits_since is not None:
            self._waits_since = now  # it waits for something else now; so also when a person resumes it

    def check(self, now: float) -> None:
        """Raises the error of the node that has died if the others wait for more, and nobody else is to come."""
        since = self._waits_since
        if self._first is None or self._stepped or self._others or since is None or now < since + _STALLED_SECONDS:
            return
        if self._paused():
            self._waits_since = now
            return
        raise _fell(self._first, "and the others can't go on without it")


def has_begun(state: Path) -> bool:
    """Whether the run in a state folder has made steps."""
    if not (state / FILE).exists():
        return False
    from ...coordinator.store.store import Store

    with closing(Store(state)) as store:
        return bool(store.steps.newest(1))


def is_paused(state: Path) -> bool:
    """Whether a person has paused the run in a state folder."""
    if not (state / FILE).exists():
        return False
    from ...coordinator.store.store import Store

    with closing(Store(state)) as store:
        return bool(store.get("paused"))


def _fell(word: Ended, why: str) -> FarflungError:
    """The error of a run that a node's death before the first step has ended."""
    child, status = word.child, word.status if word.status in (2, 3) else FAILED
    said = child.error.get("message") or child.end_text()
    return FarflungError(f"{child.name} ended before the first step, {why}: {said}", _with_log(child), status)


def _python_path(plan: LocalRun) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    folder = str(plan.job.resolve().parent)
    return {"PYTHONPATH": folder + os.pathsep + before if before else folder} if plan.allow_code else {}


def _start_nodes(plan: LocalRun, children: Children, link: str, flags: list[str]) -> list[Child]:
    """Start the nodes. Each keeps its key under the state folder, so that a resumed run knows it again."""
    threads = str(threads_for(plan.nodes))
    environment = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "FARFLUNG_LINK": link,  # not as an argument, which every user of the machine can read
        **_python_path(plan),
    }
    allowed = [word for module in plan.allow_code for word in ("--allow-code", module)]
    if plan.offload_folder is not None:
        allowed += ["--offload-folder", str(plan.offload_folder)]
    nodes = []
    for number in range(1, plan.nodes + 1):
        name = f"node-{number}"
        home = str(plan.state / "nodes" / name)
        arguments = ["join", "--name", name, "--device", plan.device, "--cache", home, *allowed, *flags]
        nodes.append(children.start(name, arguments, environment))
    return nodes


def _parted(children: Children, nodes: list[Child], word: Ended, coordinator: Child) -> int:
    """The coordinator has ended: let the nodes leave, then return its status or raise its error."""
    if word.status == 0:
        children.finish(nodes, _PARTING_SECONDS)
        return 0
    if coordinator.error:
        status = word.status if word.status > 0 else FAILED
        raise FarflungError(str(coordinator.error.get("message")), str(coordinator.error.get("hint", "")), status)
    raise RunFailed(f"the coordinator {coordinator.end_text()}", f"its log is {coordinator.log}")


def _deserted(nodes: list[Child], last: Ended) -> FarflungError:
    """The error where every node's process has ended before the run."""
    said = next((node for node in nodes if node.error), None)
    status = last.status if last.status in (2, 3) else FAILED
    if said is not None:
        return FarflungError(f"no node is left: {said.error.get('message')}", _with_log(said), status)
    return RunFailed(f"no node is left: {last.child.name} {last.child.end_text()}", _with_log(last.child))


def _with_log(child: Child) -> str:
    """The hint of a node's error, and where its log is."""
    hint, log = str(child.error.get("hint", "")), f"its log is {child.log}"
    return f"{hint}; {log}" if hint else log


@contextmanager
def interruptible() -> Iterator[None]:
    """While the block runs, SIGTERM ends a local run as Ctrl-C does. In another than the main thread, signal handlers
    are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
