"""Starts farflung's commands quickly: a process that has the libraries loaded forks for each of them.

Whoever wants a process connects to the socket whose descriptor is this one's argument, and sends a line of JSON for
each: {"words", "environment", "cwd"} and, by name, the files "stdout" and "stderr". The words "python FILE" run a
script, and {"as_typed": true} means words that nothing is added to. Answers are lines too: {"pid"} of what was
started, {"ended": pid, "status"} of what has ended (negative: the signal). A line may carry descriptors:
{"given": 3} are stdin, stdout and stderr; {"lifeline": true} is a pipe that commands of this connection have as their
stdin, so that they end when the test does, however it ends. With {"bound": true} what was started is killed when the
connection ends. This one ends with its own stdin.

Three more of the processes that a command starts are forked here, which stand-ins ask for (forked.py): a local run's
(where FARM_FORKS says it), the search for plans, and the export for eval.command. A coordinator here asks once for the
profile of a model: the next that would ask the same question, of the same modules in its folder, has the answer. The
one that asks gets it from a fork too.
"""

import contextlib
import hashlib
import importlib
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

import cryptography.hazmat.backends.openssl.backend
import forked
import transformers.models.auto.modeling_auto
import transformers.models.gpt2.modeling_gpt2  # what a node spends its first seconds with

import farflung.cli.one_run.linkfile
import farflung.cli.own_data
import farflung.cli.screen.events.run_summary
import farflung.coordinator.serve.serve
import farflung.coordinator.web.server
import farflung.job.files
import farflung.node.agent
from farflung.__main__ import main
from farflung.cli.local import children
from farflung.coordinator.data import facts
from farflung.coordinator.observe.takers import eval_command
from farflung.coordinator.planning import searches
from farflung.coordinator.run.effects import planning
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
    quick = tuple(forked.module(cost.__name__))

    async def read_profile(job, vocabulary, command):
        if command != facts.PROFILE_COMMAND:
            return await ask(job, vocabulary, command)  # another's answers may be others
        asked = question(job, vocabulary)
        known = folder / hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        if known.exists():
            return Profile.model_validate_json(known.read_text())
        answer = await ask(job, vocabulary, quick)
        half = known.with_suffix(f".{os.getpid()}")
        half.write_text(answer.model_dump_json())
        half.rename(known)
        return answer

    return read_profile


class Asker:
    """A connection: what it has sent, and who it started."""

    def __init__(self, connection):
        self.socket = connection
        self.lifeline = None
        self.buffer, self.descriptors = b"", []
        self.bound = set()

    def orders(self):
        """What has come in, or None at the end."""
        with contextlib.suppress(ConnectionError):
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            self.descriptors += descriptors
            if data:
                *lines, self.buffer = (self.buffer + data).split(b"\n")
                return [json.loads(line) for line in lines]
        return None

    def take(self, count):
        taken, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return taken

    def say(self, **what):
        with contextlib.suppress(OSError):  # it may be gone itself
            self.socket.sendall(json.dumps(what).encode() + b"\n")

    def close(self):
        for pid in self.bound:
            for kill in (os.kill, os.killpg):  # as a fork that is not a group yet, and then all that it started
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for descriptor in [self.lifeline, *self.descriptors]:
            if descriptor is not None:
                os.close(descriptor)
        self.socket.close()


def begin(order, asker):
    """Fork: the pid."""
    given = asker.take(order.get("given", 0))
    pid = os.fork()
    if pid:
        for one in given:
            os.close(one)
        return pid
    code = 70
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        typed = order.get("as_typed", False)
        if not given:
            stdin = os.open(os.devnull, os.O_RDONLY) if typed else asker.lifeline
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            given = [stdin, *(os.open(order[key], flags, 0o600) for key in ("stdout", "stderr"))]
        for number, one in enumerate(given):
            os.dup2(one, number)
            os.close(one)
        obey(order, typed)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def obey(order, typed):
    """In the fork: run the command."""
    os.environ.update(order["environment"])
    if os.environ.pop("FARM_FORKS", ""):
        children.subprocess = forked.IN_ITS_PLACE
    if files := int(os.environ.get("FARM_FILES", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    words = order["words"]
    sys.path[:0] = [word for word in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if word]
    os.chdir(order["cwd"])
    if module := order.get("module"):
        sys.argv = [module, *words]
        raise SystemExit(main(words) if module == "farflung" else importlib.import_module(module).main())
    if typed:
        if not order.get("given"):
            sys.path.insert(0, order["cwd"])  # as `python -m` does, and `python -P -m` does not
        main(words)
    elif words[0] == "python":
        sys.argv = words[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        lasting = words[0] == "join" or words[:2] == ["coordinator", "start"]
        main([*words, "--json", *(["--lifeline"] if lasting else [])])


class Server:
    def __init__(self, listener):
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        for one in (0, self.woken, listener):
            self.selector.register(one, selectors.EVENT_READ)
        self.asked = {}

    def run(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    self.selector.register(connection, selectors.EVENT_READ, Asker(connection))
                elif key.data is not None:
                    self.hear(key.data)
                elif key.fd == 0:
                    return
                else:
                    os.read(key.fd, 1 << 16)
            self.reap()

    def hear(self, asker):
        if (orders := asker.orders()) is None:
            self.selector.unregister(asker.socket)
            asker.close()
            return
        for order in orders:
            if "lifeline" in order:
                (asker.lifeline,) = asker.take(1)
                continue
            pid = begin(order, asker)
            self.asked[pid] = asker
            if order.get("bound"):
                asker.bound.add(pid)
            asker.say(pid=pid)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            asker = self.asked.pop(pid)
            asker.bound.discard(pid)
            asker.say(ended=pid, status=os.waitstatus_to_exitcode(status))


def load_numba():
    """What a node with more than a hundred thousand parameters spends a second with before its first compiled loop."""
    with contextlib.suppress(ImportError):
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def run():
    load_numba()
    listener = socket.socket(fileno=int(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="farflung-profiles-") as folder:
        facts.read_profile = remembers(Path(folder), facts.read_profile)
        searches.COMMAND = planning.COMMAND = tuple(forked.module(searches.COMMAND[-1]))
        eval_command.python = forked
        Server(listener).run()


LOADED = (cryptography.hazmat, transformers.models, farflung.cli, farflung.coordinator, farflung.job, farflung.node)
"""What its forks need not import."""

if __name__ == "__main__":
    run()
