"""Starts farflung's commands quickly: a process that has the libraries loaded forks for each of them.

Orders come as lines of JSON on stdin: {"words", "stdout", "stderr", "environment", "cwd"}, where the words "python
FILE" run a script, and {"as_typed": true} with words that nothing is added to; answers go to stdout: {"pid"} of what
was started, {"ended": pid, "status"} of what has ended (negative: the signal). Other commands hold the pipe in
FARM_LIFELINE as their stdin, so that they end when the test does, however it ends.

Who wants to hear of one process alone sends its order to the nursery's socket, and gets both answers there; so the
processes of ``farflung run`` are forked too where FARM_FORKS says it (forked.py).

A coordinator here asks once for the profile of a model: the next that would ask the same question, of the same
modules in its folder, has the answer. The one that asks gets it from a fork too.
"""

import contextlib
import hashlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from pathlib import Path

import forked
import transformers.modeling_utils  # noqa: F401 what a node spends its first seconds with

import farflung.node.agent
from farflung.__main__ import main
from farflung.cli.local import children
from farflung.coordinator.data import facts
from farflung.job.data.facts import Profile
from farflung.node.models.profiling import cost


def question(job, vocabulary):
    """All that decides a profile."""
    data, model, asked = job.data if job.data.build else None, job.model, []
    if model.pretrained:  # wherever the folder is, what it holds is part of the question
        files = sorted(path for path in Path(model.pretrained).iterdir() if path.is_file())
        asked += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
        model = model.model_copy(update={"pretrained": "a folder"})
    asked += [repr(part) for part in (model, job.train, data, job.data.samples, vocabulary)]
    return asked + [path.read_text() for path in sorted(Path.cwd().glob("*.py"))]


def remembers(folder, ask):
    """``read_profile`` that looks first whether it was asked this before."""

    async def read_profile(job, vocabulary, command):
        asked = question(job, vocabulary)
        known = folder / hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        if known.exists():
            return Profile.model_validate_json(known.read_text())
        answer = await ask(job, vocabulary, forked.PROFILE if command == facts.PROFILE_COMMAND else command)
        half = known.with_suffix(f".{os.getpid()}")
        half.write_text(answer.model_dump_json())
        half.rename(known)
        return answer

    return read_profile


def opened(order):
    """Descriptors for stdin, stdout and stderr."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return [os.open(order["stdin"], os.O_RDONLY), *(os.open(order[key], flags, 0o600) for key in ("stdout", "stderr"))]


def start(order, lifeline):
    # The ends of another process's pipes, before the fork: it may close them as soon as it has the answer.
    given = opened(order) if "stdin" in order else []
    pid = os.fork()
    if pid:
        for one in given:
            os.close(one)
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        typed = order.get("as_typed", False)
        stdin = os.devnull if typed else f"/proc/self/fd/{lifeline}"
        for number, one in enumerate(given or opened({"stdin": stdin, **order})):
            os.dup2(one, number)
            os.close(one)
        os.environ.update(order["environment"])
        if os.environ.pop("FARM_FORKS", ""):
            children.subprocess = forked.IN_ITS_PLACE
        if files := int(os.environ.get("FARM_FILES", "0")):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        sys.path[:0] = [word for word in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if word]
        os.chdir(order["cwd"])
        if order["words"] == ["profile"]:
            raise SystemExit(cost.main())
        if typed:
            if not given:
                sys.path.insert(0, order["cwd"])  # as `python -m` does, and `python -P -m` does not
            main(order["words"])
        if order["words"][0] == "python":
            sys.argv = order["words"][1:]
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        lasting = order["words"][0] == "join" or order["words"][:2] == ["coordinator", "start"]
        main([*order["words"], "--json", *(["--lifeline"] if lasting else [])])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def say(**what):
    print(json.dumps(what), flush=True)


def run():
    lifeline = int(os.environ.pop("FARM_LIFELINE"))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    folder = tempfile.TemporaryDirectory(prefix="farflung-profiles-")
    facts.read_profile = remembers(Path(folder.name), facts.read_profile)
    os.environ[forked.WHERE] = str(Path(folder.name, "socket"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[forked.WHERE])
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ)
    asked: dict[int, socket.socket] = {}
    say(ready=os.environ[forked.WHERE])
    buffer = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                asker, _ = listener.accept()
                with asker.makefile("rb") as lines:
                    pid = start(json.loads(lines.readline()), lifeline)
                asked[pid] = asker
                asker.sendall(json.dumps({"pid": pid}).encode() + b"\n")
                continue
            data = os.read(key.fd, 1 << 16)
            if key.fd == 0:
                if not data:
                    return
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    say(pid=start(json.loads(line), lifeline))
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            if asker := asked.pop(pid, None):
                with contextlib.closing(asker), contextlib.suppress(OSError):  # it may be gone itself
                    asker.sendall(json.dumps({"status": code}).encode() + b"\n")
            else:
                say(ended=pid, status=code)


if __name__ == "__main__":
    assert farflung.node.agent
    run()
