"""Starts farflung's commands quickly: a process that has the libraries loaded forks for each of them.

Orders come as lines of JSON on stdin: {"words", "stdout", "stderr", "environment", "cwd"}, where the words "python
FILE" run a script, and {"as_typed": true} with words that nothing is added to; answers go to stdout: {"pid"} of what
was started, {"ended": pid, "status"} of what has ended (negative: the signal). Other commands hold the pipe in
FARM_LIFELINE as their stdin, so that they end when the test does, however it ends.

A coordinator here asks once for the profile of a model: the next that would ask the same question, of the same
modules in its folder, has the answer.
"""

import hashlib
import json
import os
import resource
import runpy
import selectors
import signal
import sys
import tempfile
from pathlib import Path

import transformers.modeling_utils  # noqa: F401 what a node spends its first seconds with

import farflung.node.agent
from farflung.__main__ import main
from farflung.coordinator.data import facts
from farflung.job.facts import Profile


def remembers(folder, ask):
    """``read_profile`` that looks first whether it was asked this before."""

    async def read_profile(job, vocabulary, command):
        if job.model.pretrained:  # what such a folder holds is part of the question
            return await ask(job, vocabulary, command)
        data = job.data if job.data.build else None
        asked = [repr(part) for part in (job.model, job.train, data, job.data.samples, vocabulary)]
        asked += [path.read_text() for path in sorted(Path.cwd().glob("*.py"))]
        known = folder / hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        if known.exists():
            return Profile.model_validate_json(known.read_text())
        answer = await ask(job, vocabulary, command)
        half = known.with_suffix(f".{os.getpid()}")
        half.write_text(answer.model_dump_json())
        half.rename(known)
        return answer

    return read_profile


def start(order, lifeline):
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        typed = order.get("as_typed", False)
        os.dup2(os.open(os.devnull, os.O_RDONLY) if typed else lifeline, 0)
        for number, key in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(order[key], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.environ.update(order["environment"])
        if files := int(os.environ.get("FARM_FILES", "0")):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        sys.path[:0] = [word for word in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if word]
        os.chdir(order["cwd"])
        if typed:
            sys.path.insert(0, order["cwd"])  # as `python -m` does
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
    say(ready=True)
    buffer = b""
    while True:
        for key, _ in selector.select():
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
            say(ended=pid, status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    assert farflung.node.agent
    run()
