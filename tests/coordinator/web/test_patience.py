"""Those who send half a request, or read nothing, do not keep the page's connections for themselves."""

import asyncio
import dataclasses
from typing import Any

import pytest

from farflung.coordinator.web import patience
from farflung.coordinator.web.app import make_app
from farflung.coordinator.web.server import PageServer, bind


@pytest.fixture
async def port(site: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patience, "STALL_S", 0.5)
    monkeypatch.setattr(patience, "MOST_CONNECTIONS", 3)
    page = dataclasses.replace(site.page, closing=asyncio.Event())
    server = PageServer(make_app(page), bound := bind("127.0.0.1:0"))
    server.start()
    yield bound.getsockname()[1]
    page.closing.set()
    await server.stop()


HALVES = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ",
    "half a body": b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("said", HALVES.values(), ids=HALVES.keys())
async def test_half_a_request_is_not_waited_for(port: int, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_the_oldest_that_says_nothing_makes_room(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"ok\n")
    for _, one in (*held, (reader, writer)):
        one.close()


async def test_events_go_on_and_who_reads_none_of_them_is_ended(site: Any, port: int) -> None:
    """A stream that waits for something to happen is no stalled one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    words = f"GET /events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.tokens.viewer}\r\n\r\n"
    writer.write(words.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    site.run.train()
    rest = asyncio.ensure_future(reader.read())
    await asyncio.sleep(2.0)
    assert not rest.done()
    rest.cancel()
    writer.close()


def test_an_answer_that_is_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        waiting, ended = 100_000, False

        def get_write_buffer_size(self) -> int:
            return self.waiting

        def abort(self) -> None:
            self.ended = True

    class Loop:
        def call_later(self, *_: Any) -> None:
            return None

    class One(patience.PatientProtocol):
        has_no_request = False  # type: ignore[assignment]

        def __init__(self) -> None:
            self.transport, self.loop = Line(), Loop()  # type: ignore[assignment]
            self.flow = type("Flow", (), {"write_paused": True})()

    one = One()
    for _ in range(5):  # slow, but it reads
        one.transport.waiting -= 1  # type: ignore[attr-defined]
        one._look_again()
    assert not one.transport.ended  # type: ignore[attr-defined]
    one._look_again()
    assert one.transport.ended  # type: ignore[attr-defined]
