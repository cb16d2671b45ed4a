"""What keeps a node from joining: each one message, with the right exit status, and no traceback."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from quick_start import Nursery, Started

from farflung.coordinator.store.store import Store
from farflung.proto.words.link import Link, parse_link


@pytest.fixture(scope="module")
def coordinator(
    start: Callable[..., Any], job_file: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Link, Path]:
    """A coordinator that waits for more nodes than will ever come: its link and its state folder."""
    state = tmp_path_factory.mktemp("coordinator") / "state"
    running = start(
        *("coordinator", "start", str(job_file()), "--listen", "127.0.0.1:0"),
        *("--min-nodes", "9", "--state", str(state)),
    )
    return parse_link(running.wait_for("listening")["link"]), state


@pytest.fixture
def join(command: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def attempt(link: Link, *words: str, **environment: str) -> Any:
        return command("join", str(link), "--cache", str(tmp_path / "cache"), *words, "--json", **environment)

    return attempt


@pytest.fixture
def closed_port() -> int:
    return free_port()


def test_nobody_listens_there(coordinator: tuple[Link, Path], join: Callable[..., Any], closed_port: int) -> None:
    done = join(dataclasses.replace(coordinator[0], port=closed_port))
    assert done.status == 2
    assert f"127.0.0.1:{closed_port}" in done.error["message"] and done.error["hint"]


def test_the_name_does_not_resolve(coordinator: tuple[Link, Path], join: Callable[..., Any]) -> None:
    done = join(dataclasses.replace(coordinator[0], host="nowhere.invalid"))
    assert done.status == 2
    assert "nowhere.invalid" in done.error["message"] and "resolve" in done.error["message"]


def test_another_coordinator_answers(coordinator: tuple[Link, Path], join: Callable[..., Any]) -> None:
    done = join(dataclasses.replace(coordinator[0], fingerprint=b"\7" * 32))
    assert done.status in (2, 3)
    assert "certificate" in done.error["message"] or "fingerprint" in done.error["message"]


def test_a_wrong_ticket(coordinator: tuple[Link, Path], join: Callable[..., Any]) -> None:
    number = coordinator[0].ticket.split(".")[0]
    done = join(dataclasses.replace(coordinator[0], ticket=f"{number}.{'0' * 32}"))
    assert done.status == 3
    assert "ticket" in done.error["message"] and "farflung coordinator token" in done.error["hint"]


def test_an_expired_ticket(
    coordinator: tuple[Link, Path], join: Callable[..., Any], command: Callable[..., Any]
) -> None:
    [made] = command("coordinator", "token", str(coordinator[1]), "--ttl", "1s", "--json").events
    time.sleep(1.1)
    done = join(parse_link(made["link"]))
    assert done.status == 3
    assert "expired" in done.error["message"] and "farflung coordinator token" in done.error["hint"]


def test_a_used_up_ticket_opens_nothing(
    coordinator: tuple[Link, Path], join: Callable[..., Any], command: Callable[..., Any]
) -> None:
    [made] = command("coordinator", "token", str(coordinator[1]), "--json").events
    assert made["uses"] == 100 and made["expires"] > time.time() + 86000 and not made["operator"]
    [made] = command("coordinator", "token", str(coordinator[1]), "--uses", "1", "--json").events
    assert made["uses"] == 1
    with contextlib.closing(Store(coordinator[1])) as store:
        assert store.tickets.take_use(parse_link(made["link"]).ticket.split(".")[0])
    done = join(parse_link(made["link"]))
    assert done.status == 3 and "used up" in done.error["message"]
    done = command("status", made["link"], "--json")
    assert done.status == 3 and "used up" in done.error["message"]


@pytest.mark.slow
def test_a_revoked_ticket(
    coordinator: tuple[Link, Path], join: Callable[..., Any], command: Callable[..., Any]
) -> None:
    [made] = command("coordinator", "token", str(coordinator[1]), "--uses", "3", "--json").events
    number = parse_link(made["link"]).ticket.split(".")[0]
    assert command("coordinator", "token", str(coordinator[1]), "--revoke", number, "--json").status == 0
    done = join(parse_link(made["link"]))
    assert done.status == 3 and "revoked" in done.error["message"]

    unknown = command("coordinator", "token", str(coordinator[1]), "--revoke", "00000000", "--json")
    assert unknown.status == 2 and "00000000" in unknown.error["message"]


def test_another_version(coordinator: tuple[Link, Path], nursery: Nursery, tmp_path: Path) -> None:
    script = tmp_path / "another.py"
    script.write_text(
        "import sys, farflung.node.join as join\njoin.PROTOCOL = join.OLDEST_PROTOCOL = 999\n"
        "from farflung.__main__ import main\nmain(sys.argv[1:])"
    )
    out, errors = tmp_path / "out", tmp_path / "errors"
    words = ("python", str(script), "join", str(coordinator[0]), "--cache", str(tmp_path))
    order = {"words": words, "stdout": str(out), "stderr": str(errors), "environment": {}, "cwd": str(tmp_path)}
    assert Started(nursery, nursery.begin(order)).wait() == 3
    said = errors.read_text()
    assert "999" in said and "Traceback" not in said
    assert said.splitlines()[0].startswith("error: ")


def test_a_second_node_with_the_same_name(
    coordinator: tuple[Link, Path], join: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    first = start("join", str(coordinator[0]), "--name", "twin", "--cache", str(tmp_path / "first"))
    first.wait_for("joined")
    done = join(coordinator[0], "--name", "twin")
    assert done.status == 3
    assert "twin" in done.error["message"] and "--name" in done.error["hint"]
    assert first.end() == 130


def test_an_address_that_nobody_can_dial(
    coordinator: tuple[Link, Path], join: Callable[..., Any], closed_port: int
) -> None:
    address = f"127.0.0.1:{closed_port}"
    done = join(coordinator[0], "--listen", "127.0.0.1:0", "--advertise", address)
    assert done.status == 3
    assert address in done.error["message"] and "--advertise" in done.error["hint"]


def test_status_knows_who_it_waits_for(coordinator: tuple[Link, Path], command: Callable[..., Any]) -> None:
    for target in (str(coordinator[0]), str(coordinator[1])):
        plain = command("status", target)
        assert plain.status == 0, plain.stderr
        assert re.search(r"waiting for \d more nodes", plain.stdout)
        [record] = command("status", target, "--json").events
        assert record["phase"] == "waiting"


def test_the_port_is_taken(
    coordinator: tuple[Link, Path], command: Callable[..., Any], job_file: Callable[..., Path], tmp_path: Path
) -> None:
    done = command(
        *("coordinator", "start", str(job_file()), "--listen", coordinator[0].address),
        *("--state", str(tmp_path / "state"), "--json"),
    )
    assert done.status == 2
    assert coordinator[0].address in done.error["message"] and "--listen" in done.error["hint"]
