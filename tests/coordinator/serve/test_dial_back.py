"""Dial-back is no port scanner: it goes where the join comes from, and says no more than whether it worked."""

import asyncio
import ipaddress

import pytest

from farflung.coordinator.serve.calls.dial_back import caller_of, canonical, dial_back, may_dial, networks
from farflung.proto.errors import FarflungError, Refused

HERE = ipaddress.ip_address("127.0.0.1")


def test_what_an_address_is():
    for text in ("127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1"):
        assert canonical(text) == HERE
    assert canonical("2130706433") is None and canonical("127.1") is None, "these are resolved first"
    assert caller_of("ipv4:127.0.0.1:5") == caller_of("ipv6:%5B::ffff:127.0.0.1%5D:5") == HERE
    assert caller_of("ipv6:[2001:db8::1]:5") == ipaddress.ip_address("2001:db8::1")
    assert caller_of("unix:/run/x") is None


def test_what_may_be_dialled():
    other = ipaddress.ip_address("10.1.2.3")
    assert may_dial(HERE, HERE, ()) and not may_dial(other, HERE, ()) and not may_dial(HERE, None, ())
    assert may_dial(other, HERE, networks(["10.0.0.0/8"])) and may_dial(other, None, networks(["10.1.2.3"]))
    assert not may_dial(ipaddress.ip_address("::1"), HERE, networks(["0.0.0.0/0"]))
    with pytest.raises(FarflungError, match="--dial-back"):
        networks(["everywhere"])


@pytest.fixture
async def doors():
    """(port of an open door at 127.0.0.2, port that is closed there, who knocked)."""
    knocks = []

    def knocked(reader, writer):
        knocks.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(knocked, "127.0.0.2", 0)
    closed = await asyncio.start_server(knocked, "127.0.0.2", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (server, closed)]
    closed.close()
    yield ports[0], ports[1], knocks
    server.close()


OTHERS = ["127.0.0.2", "127.2", "2130706434", "0x7f000002", "0177.0.0.2", "[::ffff:127.0.0.2]", "0.0.0.0", "[::]"]


@pytest.mark.parametrize("host", OTHERS)
async def test_a_join_learns_nothing_of_other_machines(cluster, doors, host):
    """With a good ticket, against a real coordinator: open or closed, the answer is the same, and nobody knocks."""
    coordinator = cluster.coordinator()
    link = await coordinator.link
    opened, closed, knocks = doors
    answers = []
    for port in (opened, closed):
        for may in (True, False):
            node = cluster.fake(link, "")
            reply = await node.join(address=f"{host}:{port}", may_dial_out=may)
            assert reply.dials_out == may and bool(reply.refused) == (not may)
            answers.append(reply.refused.replace(str(port), "PORT"))
    assert answers[:2] == answers[2:] and not knocks, answers


async def test_the_operator_may_allow_more(cluster, doors):
    coordinator = cluster.coordinator(dial_back=("127.0.0.2/31",))
    link = await coordinator.link
    opened, closed, knocks = doors
    reply = await cluster.fake(link, "open").join(address=f"127.2:{opened}", may_dial_out=False)
    assert not reply.refused and not reply.dials_out and len(knocks) == 1
    refused = (await cluster.fake(link, "closed").join(address=f"127.0.0.2:{closed}")).refused
    assert refused.startswith(f"unreachable at 127.0.0.2:{closed}\n"), "and not why"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]", "localhost"])
async def test_ones_own_address_however_it_is_written(host):
    """Members are told the number that was dialled."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reached = await dial_back(f"{host}:{port}", HERE, insists=True)
    assert reached.address == f"127.0.0.1:{port}" and not reached.dials_out
    server.close()
    with pytest.raises(Refused, match="unreachable"):
        await dial_back(f"{host}:{port}", HERE, insists=True)
    assert (await dial_back("no-such-host.invalid:1", HERE, insists=False)).dials_out
