"""Real emulations through the relay: namespaces, TUN devices, the kernel's TCP. Skipped without root or TUN."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.deploy.wan import build, check, cli, lab, lateness, probe, script, system
from farflung.deploy.wan.errors import WanError
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.topology import GOODPUT, Change
from farflung.proto.errors import FarflungError

Wan = Callable[..., Lab]
PAIR = {"regions": {"a": {}, "b": {}}, "defaults": {"delay_ms": 20, "rate": "50mbit"}}
COMMAND = [sys.executable, "-m", "farflung.deploy.wan"]


def spaces(made: Lab) -> list[str]:
    return [n for n in made.namespaces if os.path.exists(f"/run/netns/{n}")]


def rtt(made: Lab, i: int = 0, j: int = 1) -> float | None:
    times = sorted(probe.rtt(made, [(i, j)], count=11, interval=0.02, patience=0.3)[i, j])
    return times[len(times) // 2] if times else None


def reliable(made: Lab, measure: Callable[[], float]) -> float:
    """A figure of an emulator that kept up; skipped where this machine is too busy for one."""
    for _ in range(4):
        before = made.stat()
        value = measure()
        late = lab.late_between(before, made.stat())
        usable, why = lateness.verdict(late, made.topology.smallest_delay_ms())
        if usable:
            return value
    pytest.skip(f"this machine is too busy to measure: {why}")


def test_round_trips_goodput_and_loss_are_as_set(wan: Wan) -> None:
    made = wan({**PAIR, "congestion": "cubic"})
    assert abs(reliable(made, lambda: rtt(made)) - 40) <= 2
    stream = None

    def carried() -> float:
        nonlocal stream
        stream = probe.stream(made, (0, 1), 2.5, 1.0)
        return stream.rate(1.0, 3.5)

    assert abs(reliable(made, carried) / (50e6 * GOODPUT) - 1) <= 0.05
    assert stream is not None and stream.congestion == "cubic"
    made.change(Change(0, "set", "a->b", {"loss": 0.05}))
    assert abs(1 - probe.loss(made, (0, 1), 5000) / 5000 - 0.05) <= 0.0125
    made.change(Change(0, "set", "a->b", {"loss": 0.0}))
    assert probe.loss(made, (0, 1), 2000) == 2000


def test_live_changes_cut_restore(wan: Wan) -> None:
    made = wan(PAIR)
    assert cli.change(made.name, "a->b", ["delay=60ms", "rate=5mbit"]) == ["a/0->b/0"]
    assert abs(reliable(made, lambda: rtt(made)) - 80) <= 4
    assert cli.cut(made.name, "a", "b") == ["a/0->b/0", "b/0->a/0"]
    assert rtt(made) is None
    report = cli.check(made.name, quick=True)
    assert report.rows[0].set_loss == 1.0 and report.rows[0].rtt is None and not report.rows[0].misses
    assert cli.restore(made.name) == ["a/0->b/0", "b/0->a/0"]
    assert abs(reliable(made, lambda: rtt(made)) - 40) <= 2
    with pytest.raises(WanError, match="unknown key"):
        cli.change(made.name, "a->b", ["speed=5"])


def test_a_hosts_uplink_downlink_and_delay_change_live(wan: Wan) -> None:
    """An echo has 66 bytes on the wire: at 40 kbit/s its answer takes 13.2 ms longer."""
    made = wan({**PAIR, "regions": {"a": {}, "b": {"uplink": "40mbit"}}})

    def shortest() -> float:
        return reliable(made, lambda: min(probe.rtt(made, [(0, 1)], count=4, interval=0.2)[0, 1]))

    assert abs(shortest() - 40) <= 2
    assert cli.change(made.name, "b", ["uplink=40kbit"]) == ["b/0"]
    assert abs(shortest() - 53.2) <= 2
    assert cli.change(made.name, "b", ["downlink=20kbit"]) == ["b/0"]
    assert abs(shortest() - 79.6) <= 2
    assert cli.change(made.name, "b", ["delay=30ms", "uplink=unlimited"]) == ["b/0", "a/0->b/0", "b/0->a/0"]
    assert abs(shortest() - 86.4) <= 2
    assert cli.cut(made.name, "b") == ["a/0->b/0", "b/0->a/0"]
    assert rtt(made) is None
    assert cli.restore(made.name, "b") == ["b/0", "a/0->b/0", "b/0->a/0"]
    assert lab.load(made.name).now == made.topology
    assert abs(shortest() - 40) <= 2
    with pytest.raises(WanError, match="uplink belongs to a host"):
        cli.change(made.name, "a->b", ["uplink=5mbit"])


def test_a_host_behind_nat_cannot_be_dialled_and_can_dial(wan: Wan, tmp_path: Path) -> None:
    made = wan(
        {"regions": {"a": {}, "b": {"nat": True}, "c": {"nat": True}}, "defaults": {"delay_ms": 5, "rate": "50mbit"}}
    )
    assert not probe.answers(made, 0, 1, 0.5)
    assert probe.answers(made, 1, 0, 2.0)
    assert not probe.answers(made, 1, 2, 0.5)
    assert probe.loss(made, (0, 1), 200) == 200, "what it asked for comes in"
    report = cli.check(made.name, str(tmp_path / "out.svg"), quick=True)
    assert [(r.source, r.target) for r in report.rows if not r.dialled] == [
        ("a/0", "b/0"),
        ("a/0", "c/0"),
        ("b/0", "c/0"),
        ("c/0", "b/0"),
    ]
    assert (tmp_path / "out.svg").read_text().startswith("<svg")


def test_exec_keeps_environment_folder_and_status(wan: Wan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wan(PAIR)
    monkeypatch.setenv("FARFLUNG_MARK", "here")
    monkeypatch.chdir(tmp_path)
    words = 'echo "$FARFLUNG_MARK $PWD $0" > out; ip -o addr show wan0 >> out; getent hosts b-0 >> out; exit 7'
    assert cli.execute(made.name, "a", ["sh", "-c", words, "zero"]) == 7
    said = (tmp_path / "out").read_text()
    assert f"here {tmp_path} zero" in said and "10.77.0.1/16" in said and "10.77.0.2" in said
    done = subprocess.run(
        [*COMMAND, "exec", made.name, "b/0", "--", "sh", "-c", "cat; exit 3"],
        input="piped",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "piped")
    done = subprocess.run(
        [*COMMAND, "exec", made.name, "b/0", "--", "no-such-command"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 127 and "no command 'no-such-command'" in done.stderr and "Traceback" not in done.stderr


def test_down_removes_all_after_kill_9_and_ends_only_its_own(wan: Wan) -> None:
    made, other = wan(PAIR), wan(PAIR)
    sleeper = subprocess.Popen([*COMMAND, "exec", made.name, "a", "--", "sleep", "300"])
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        until = time.monotonic() + 10
        while sleeper.pid not in system.inhabitants(made.namespaces) and time.monotonic() < until:
            time.sleep(0.05)
        relay = made.process["relay"][0]
        os.kill(relay, signal.SIGKILL)
        until = time.monotonic() + 5
        while system.started(relay) and time.monotonic() < until:
            time.sleep(0.02)
        with pytest.raises(WanError, match="is broken: its relay is gone"):
            check.check(lab.load(made.name), quick=True)
        assert rtt(other) is not None
        gone = cli.down(made.name)
        assert sorted(gone["namespaces"]) == sorted(made.namespaces) and gone["processes"] == 1
        assert sleeper.wait(5) != 0
        assert bystander.poll() is None
        assert spaces(made) == [] and not made.folder.exists()
        assert rtt(other) is not None, "another emulation stays as it is"
    finally:
        for process in (sleeper, bystander):
            process.kill()
            process.wait()
    with pytest.raises(WanError, match="is not up"):
        cli.down(made.name)


def test_an_up_that_is_killed_half_way_leaves_nothing_that_down_cannot_find(wan: Wan) -> None:
    made = wan(PAIR)  # only for its name and the skips
    cli.down(made.name)
    code = (
        "import os, signal, sys; from farflung.deploy.wan import build, files\n"
        "build._start_relay = lambda made: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"build.up(files.parse({ {**PAIR, 'name': made.name}!r}, 'x', 'x'), 'relay')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(spaces(made)) == 2
    with pytest.raises(WanError, match="is up, or was not taken down"):
        build.up(made.topology, "relay")
    assert len(cli.down(made.name)["namespaces"]) == 2
    assert spaces(made) == []


def test_what_another_version_built_is_told_and_can_be_taken_down(wan: Wan, capsys: pytest.CaptureFixture[str]) -> None:
    made, other = wan(PAIR), wan(PAIR)
    state = made.folder / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "links": []}))
    with pytest.raises(WanError, match="another version of farflung built"):
        check.check(cli.find(made.name), quick=True)
    assert cli.main(["list"]) == 0
    said = capsys.readouterr().out
    assert f"{made.name}: another version" in said and f"{other.name}: relay, 2 hosts" in said
    assert len(cli.down(made.name)["namespaces"]) == 2 and spaces(made) == []


def test_the_machine_keeps_its_own_settings(wan: Wan) -> None:
    def settings() -> list[str]:
        kept = ["net.ipv4.tcp_allowed_congestion_control", "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_rmem"]
        values = [Path("/proc/sys", *key.split(".")).read_text() for key in kept]
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        return [*values, *sorted(line.split(":")[1] for line in links.splitlines())]

    before = settings()
    made = wan({**PAIR, "congestion": "cubic", "tcp_memory": "32MiB"})
    assert settings() == before
    said = subprocess.run(
        [
            "ip",
            "netns",
            "exec",
            made.namespace(0),
            "cat",
            "/proc/sys/net/ipv4/tcp_congestion_control",
            "/proc/sys/net/ipv4/tcp_rmem",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == ["cubic", "4096", "131072", str(32 << 20)]
    cli.down(made.name)
    assert settings() == before
    with pytest.raises(WanError, match="no congestion control 'nosuch'"):
        wan({**PAIR, "congestion": "nosuch"})
    assert settings() == before


def test_a_script_is_played_in_time(wan: Wan) -> None:
    moments = [
        {"at": 0.2, "set": "a", "delay_ms": 50, "uplink": "5mbit"},
        {"at": 0.6, "cut": "a->b"},
        {"at": 1.0, "restore": "a"},
    ]
    made = wan({**PAIR, "script": moments})
    seen: list[tuple[float, str, int]] = []
    script.play(made, threading.Event(), lambda at, change, count: seen.append((at, script.words(change), count)))
    assert [(w, n) for _, w, n in seen] == [("set a uplink=5mbit delay_ms=50", 3), ("cut a->b", 1), ("restore a", 3)]
    assert all(abs(at - due) < 0.3 for (at, _, _), due in zip(seen, (0.2, 0.6, 1.0), strict=True))
    assert lab.load(made.name).now == made.topology


def test_the_command_from_up_to_down(tmp_path: Path, wan: Wan) -> None:
    name = f"t{os.getpid()}-command"
    wan_file = tmp_path / "two.toml"
    wan_file.write_text(
        f'name = "{name}"\n[regions.a]\n[regions.b]\n[defaults]\ndelay_ms = 10\nrate = "20mbit"\n'
        '[[script]]\nat = 0\nset = "a->b"\nloss = "1%"\n'
    )

    def command(*words: str) -> tuple[int, dict]:
        done = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    try:
        status, up = command("up", str(wan_file), "--backend", "relay", "--play")
        assert status == 0 and up["backend"] == "relay" and [h["host"] for h in up["hosts"]] == ["a/0", "b/0"]
        until = time.monotonic() + 10
        while lab.load(name).now.links[0, 1].loss != 0.01 and time.monotonic() < until:
            time.sleep(0.1)
        assert lab.load(name).now.links[0, 1].loss == 0.01, "the player has played"
        status, report = command("check", str(wan_file), "--quick", "--picture", str(tmp_path / "p.svg"))
        assert report["event"] == "check" and len(report["rows"]) == 2 and report["late"]["packets"] > 0
        assert status == (0 if report["ok"] else 4)
        assert command("set", name, "a->b", "rate=5mbit")[1]["changed"] == ["a/0->b/0"]
        assert command("up", str(wan_file))[0] == 2
    finally:
        status, gone = command("down", name)
    assert status == 0 and len(gone["namespaces"]) == 2 and gone["processes"] == 1  # the player was done
    status, error = command("down", name)
    assert status == 2 and error["event"] == "error" and "is not up" in error["message"] and error["hint"]


def test_a_machine_that_cannot_gets_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(WanError, match="needs root"):
        build.choose(None)
    for words in (
        ["check", "lan"],
        ["exec", "lan", "lan-0", "--", "true"],
        ["down", "lan"],
        ["run", "lan", "job.toml"],
    ):
        assert cli.main(words) == 2
        assert "needs root" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system, "capabilities", lambda: 0xA80425FB)  # a container's root
    with pytest.raises(WanError, match="SYS_ADMIN"):
        build.choose(None)
    monkeypatch.setattr(system, "capabilities", lambda: (1 << 41) - 1)
    with pytest.raises(WanError, match="no backend 'magic'"):
        build.choose("magic")
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(system, "has_netem", lambda: True)
    assert build.choose(None) == "netem"
    assert build.choose("relay") == "relay" if os.path.exists("/dev/net/tun") else True
    monkeypatch.setattr(system, "has_netem", lambda: False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(WanError, match="neither sch_netem nor"):
        build.choose("auto")
    with pytest.raises(WanError, match="no sch_netem"):
        build.choose("netem")


def test_a_run_with_a_bad_job_ends_with_the_jobs_error_and_takes_its_wan_down(wan: Wan, tmp_path: Path) -> None:
    made = wan(PAIR)  # only for its name and the skips
    cli.down(made.name)
    job = tmp_path / "job.toml"
    job.write_text('[run]\nname = "x"\nsteps = 3\n[modle]\nfamily = "gpt2"\n')
    events: list[dict] = []
    with pytest.raises(FarflungError, match="modle") as caught:
        cli.run(
            made.topology, str(job), lambda e: events.append(dict(e)), backend="relay", state=str(tmp_path / "state")
        )
    assert caught.value.status == 2
    assert [e["what"] for e in events if e["event"] == "wan"] == ["up"]
    assert made.name not in lab.names() and spaces(made) == []
