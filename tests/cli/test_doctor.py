"""``farflung doctor``: each obstacle is named, with what to do about it."""

import hashlib
import io
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from join_answers import JOB
from ports import free_port

from farflung.cli.doctor.checks import examine
from farflung.cli.doctor.findings import Finding, found_lines, show
from farflung.cli.doctor.machine import RECOMMENDED, network
from farflung.cli.doctor.of_a_run import ways
from farflung.cli.screen.output import Output
from farflung.coordinator.trust.authority import Authority, load_authority
from farflung.proto.words.link import Link


def findings(link: Link) -> dict[str, Finding]:
    """The checks that need the coordinator, by name."""
    from farflung.cli.doctor.of_a_run import coordinator

    return {finding.check: finding for finding in coordinator(link)}


def link_to(host: str, port: int, fingerprint: bytes = b"\1" * 32) -> Link:
    return Link(host, port, "0" * 16, "0" * 8 + "." + "0" * 32, fingerprint)


@pytest.fixture
def closed_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return load_authority(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of something that shows the authority's certificate to everyone."""
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "both.pem").write_bytes(authority.certificate + authority.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except (ssl.SSLError, OSError):
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_name_that_does_not_resolve() -> None:
    found = findings(link_to("nowhere.invalid", 7070))
    assert list(found) == ["name"] and not found["name"].ok
    assert "nowhere.invalid does not resolve" in found["name"].found and "--advertise" in found["name"].hint


def test_nobody_listens(closed_port: int) -> None:
    found = findings(link_to("127.0.0.1", closed_port))
    assert found["name"].ok and not found["connection"].ok
    assert f"127.0.0.1:{closed_port} does not answer" in found["connection"].found


def test_the_right_coordinator(server: int, authority: Authority) -> None:
    found = findings(link_to("127.0.0.1", server, authority.fingerprint))
    assert [name for name, one in found.items() if one.ok] == ["name", "connection", "packets", "certificate", "clock"]


def test_somebody_else_answers(server: int) -> None:
    found = findings(link_to("127.0.0.1", server, hashlib.sha256(b"another").digest()))
    assert not found["certificate"].ok and "not the one that the link names" in found["certificate"].found


def test_no_link_and_no_such_device() -> None:
    found = {one.check: one for one in examine(None, "cuda:77")}
    assert list(found) == ["disk", "open files", "memory", "device", "network"]
    assert not found["device"].ok and "--device cpu" in found["device"].hint


def test_show_says_what_to_type() -> None:
    wrong = Finding("disk", False, "none free", "free some")
    out = Output(stdout=io.StringIO())
    assert show(out, iter([Finding("memory", True, "8 GB free"), wrong])) == 2
    assert "ok  memory" in out.stdout.getvalue() and "next: free some" in out.stdout.getvalue()
    out = Output(as_json=True, stdout=io.StringIO())
    assert show(out, iter([Finding("memory", True, "8 GB free")])) == 0
    assert json.loads(out.stdout.getvalue())["ok"] is True


def test_what_would_make_long_ways_faster(tmp_path: Path) -> None:
    def settings(**changes: str) -> Finding:
        for name, value in RECOMMENDED.items():
            file = tmp_path / name.replace(".", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(changes.get(name.rpartition(".")[2], value) + "\n")
        return network(tmp_path)

    assert settings().better == ""
    stock = settings(tcp_congestion_control="cubic", tcp_wmem="4096\t16384\t4194304")
    assert stock.ok and "up to 208 Mbit/s a connection at 100 ms" in stock.found
    assert stock.better == "sysctl -w net.ipv4.tcp_congestion_control='bbr' net.ipv4.tcp_wmem='4096 16384 33554432'"
    assert "does not show" in network(tmp_path / "none").found
    written = io.StringIO()
    assert show(Output(stdout=written), iter([stock])) == 0
    assert "faster over long ways: sysctl -w" in written.getvalue()


def test_which_way_links_go() -> None:
    """An open node answers, another does not, one is behind NAT, one has left."""
    nodes = [
        {"node": name, "address": f"{name}:1", "dials_out": name in "cd", "left": 1.0 if name == "x" else None}
        for name in "abcdx"
    ]
    links = [
        {"from": "a", "to": "b", "way": "opened by a"},
        {"from": "c", "to": "d", "way": "relayed by the coordinator"},
        {"from": "a", "to": "x", "way": "opened by a"},
    ]
    tried = []

    def dial(address: str) -> str:
        tried.append(address)
        return "" if address == "a:1" else "connection refused"

    here, run = ways({"nodes": nodes, "links": links}, dial)
    assert here.ok and here.found == (
        "direct to a; c, d would dial this machine, or meet it at the coordinator if nobody can dial it either; "
        "b (connection refused) cannot be reached from here"
    )
    assert "--advertise" in here.better and sorted(tried) == ["a:1", "b:1"]
    assert run.found == "a > b opened by a; c > d relayed by the coordinator"
    assert list(ways({"nodes": nodes[-1:], "links": links}, dial)) == []


def test_what_the_run_would_do_with_this_machine() -> None:
    from farflung.cli.doctor.of_a_run import terms_of

    job = json.loads(JOB)
    told = [one.found for one in terms_of({"job": job}, link_to("x", 1))]
    assert "reads no files of this machine: the coordinator sends it the training data that it needs" in told
    assert not any("no TLS" in one for one in told)
    assert any("no TLS" in one.found for one in terms_of({"job": job}, link_to("x", 1, bytes(32))))
    (wrong,) = terms_of({"job": {"run": "\x1b[2J"}}, link_to("x", 1))
    assert not wrong.ok and "makes no sense" in wrong.found and wrong.found.isprintable()
    assert not list(terms_of({}, link_to("x", 1)))  # of a version that does not tell


def test_what_was_found_stays_below_itself_in_a_narrow_terminal() -> None:
    finding = Finding("the run", True, "tells the coordinator its device, address, links, losses and times")
    [first, *others] = found_lines(finding, 50)
    assert first.startswith("ok  the run      tells the coordinator") and others
    assert all(len(line) <= 50 and line[:17] == " " * 17 for line in others)
    assert found_lines(finding, 0) == [f"ok  the run      {finding.found}"]
