"""Two machines with one key: the second is told, and the first stays; one that is gone comes back."""

from farflung.coordinator.run.nodes import second
from farflung.coordinator.run.nodes.second import HEARTBEATS_S, SILENCE_S, lives


def test_only_a_heartbeat_that_began_later_shows_that_there_are_two():
    assert lives(None, 10.0, 10.0) is False  # killed: its stream is gone
    assert lives(9.9, 10.0, 11.0) is None
    assert lives(10.0 + HEARTBEATS_S / 2, 10.0, 11.0) is None  # may have been on its way
    assert lives(10.0 + HEARTBEATS_S, 10.0, 12.0) is True
    assert lives(9.9, 10.0, 10.0 + SILENCE_S) is False  # suspended, or cut off


async def test_a_copied_folder_does_not_put_out_who_is_in(cluster, eventually, monkeypatch):
    monkeypatch.setattr(second, "SILENCE_S", 300.0)  # this machine may be slow
    coordinator = cluster.coordinator()
    link = await coordinator.link
    first = await cluster.node(link, "a")
    copied = cluster.fake(link, "a", key=first.key)
    reply = await copied.join()
    assert "a is in the run already" in reply.refused and "--cache DIR" in reply.refused
    assert not reply.passes and not reply.over and first.stopped is None
    assert not [one for one in coordinator.events if one["event"] == "left"]

    await first.die()
    reply = await cluster.fake(link, "a", key=first.key).join()
    assert not reply.refused


async def test_a_life_that_falls_silent_gives_way(cluster, monkeypatch):
    monkeypatch.setattr(second, "SILENCE_S", 0.5)
    link = await cluster.coordinator().link
    first = await cluster.node(link, "a")
    first.fall_silent()
    again = cluster.fake(link, "a", key=first.key)
    assert (await again.join()).refused == ""
