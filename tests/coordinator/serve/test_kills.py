"""A coordinator that is killed (-9) at any moment, and one that takes over from it: nothing is lost, nothing twice."""

import asyncio
import contextlib
import random
import signal
import zlib

import pytest
from ports import free_port
from steady_node import steady

from farflung.coordinator.observe.status import read_status
from farflung.coordinator.replay.recorder import FOLDER
from farflung.coordinator.replay.replay import replay
from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.links import issue
from farflung.proto.words.link import parse_link

TIMING = {"settle_s": 0.2, "measure_s": 3.0, "return_s": 30.0, "last_checkpoint_s": 60.0}
STEPS = 120


def check_nothing_lost(store, nodes, steps):
    """Every sample in exactly one committed step; views and terms only grow, and a number is one view."""
    rows = store.steps.all()
    assert [row.step for row in rows] == list(range(1, steps + 1))
    assert {row.samples for row in rows} == {8}, "every sample of every step, once"
    assert store.evals.all()[-1].step == steps
    stored = {row.number: row for row in store.views.all()}
    for node in nodes:
        assert node.terms == sorted(node.terms)
        told = [order.view for order in node.orders if order.WhichOneof("kind") == "view"]
        numbers = [view.number for view in told]
        assert numbers == sorted(numbers)
        for view in told:
            row = stored[view.number]
            assert (row.plan, row.step, row.cursor) == (view.plan, view.step, view.cursor)
    assert store.checkpoints.all()[-1].step == steps


def check_replays(state, nodes):
    """What all coordinators of the run decided they decide again, and no secret is kept to show it."""
    done = replay(state)
    assert done.lives >= 1 and done.transitions >= 3
    recorded = b"".join(zlib.decompressobj().decompress(file.read_bytes()) for file in (state / FOLDER).iterdir())
    secrets = [value.split()[2] for node in nodes for _, value in node.metadata] + [nodes[0].link.ticket]
    assert all(len(secret) > 10 and secret.encode() not in recorded for secret in secrets)


async def kills(process, cluster, fake_node, seed, count, steps, **options):
    """Train with four nodes while the coordinator is killed ``count`` times; its last process, and the nodes."""
    chance = random.Random(seed)
    job = cluster.job(("steps = 12", f"steps = {steps}"))
    listen = f"127.0.0.1:{free_port()}"
    coordinator = process(job, listen=listen, timing=TIMING, **options)
    link = parse_link((await coordinator.event("listening"))["link"])
    kind = steady(fake_node)
    kind.hold = share = steps // (count + 1)  # however long a restart takes, something is left to train after it
    nodes = [await cluster.node(link, name, kind=kind, step_s=0.02) for name in "abcd"]
    for _ in range(count):
        after = chance.choice(["listening", "view", "view", "step", "checkpoint"])
        await coordinator.event(after, chance.randint(1, 3) if after == "step" else 1)
        await asyncio.sleep(chance.choice([0.0, chance.uniform(0.0, 0.4)]))
        coordinator.kill()
        kind.hold += share
        coordinator = process(job, listen=listen, timing=TIMING, **options)
    kind.hold = steps
    return coordinator, nodes


async def test_killed_at_random_moments(process, cluster, fake_node):
    coordinator, nodes = await kills(process, cluster, fake_node, seed=1, count=3, steps=STEPS)
    assert (await coordinator.event("done"))["samples"] == STEPS * 8
    assert await coordinator.ended() == 0
    with contextlib.closing(Store(coordinator.state)) as store:
        check_nothing_lost(store, nodes, STEPS)
        assert store.get("term") == "4"
    check_replays(coordinator.state, nodes)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(2, 7))
async def test_killed_at_many_random_moments(process, cluster, fake_node, seed):
    coordinator, nodes = await kills(process, cluster, fake_node, seed, count=20, steps=1512)
    assert (await coordinator.event("done", timeout=250.0))["samples"] == 1512 * 8
    with contextlib.closing(Store(coordinator.state)) as store:
        check_nothing_lost(store, nodes, 1512)


# ---- taking over ----------------------------------------------------------------------------

SECRET = {"FARFLUNG_IDENTITY_PASSPHRASE": "a passphrase of the test"}


async def led(process, cluster, fake_node, postgres, job, state):
    """A coordinator with a database and four nodes that train up to step 40, from its third step on: the options that
    its followers share, the process, its link, the nodes' class and the nodes."""
    shared = {
        "database": postgres.new_database(),
        "listen": f"127.0.0.1:{free_port()}",
        "environment": SECRET,
        "timing": TIMING,
    }
    first = process(job, state=state, **shared)
    link = parse_link((await first.event("listening"))["link"])
    kind = steady(fake_node)
    kind.hold = 40
    nodes = [await cluster.node(link, name, kind=kind, step_s=0.02) for name in "abcd"]
    await first.event("step", 3)
    return shared, first, link, kind, nodes


async def test_a_second_coordinator_takes_over(process, cluster, fake_node, postgres, tmp_path):
    """Two coordinators, one database, one address; the leader is killed in the middle of a view change."""
    job = cluster.job(("steps = 12", f"steps = {STEPS}"))
    shared, first, link, kind, nodes = await led(process, cluster, fake_node, postgres, job, tmp_path / "one")
    second = process(job, state=tmp_path / "two", **shared)
    await second.said("stands by")
    await nodes[0].leave()
    await first.event("view", view=2)
    first.kill()
    await second.said("from now on")
    new_link = parse_link((await second.event("listening"))["link"])
    assert new_link.fingerprint == link.fingerprint and new_link.run == link.run
    view = await second.event("view")
    assert view["view"] > 2
    # a third, while the second is asked to end: it hands over and nobody is told to stop
    third = process(job, state=tmp_path / "three", **shared)
    await third.said("stands by")
    second.signal(signal.SIGTERM)
    assert await second.ended() == 130
    await third.said("from now on")
    kind.hold = STEPS
    await third.event("done")
    assert await third.ended() == 0
    with contextlib.closing(Store(shared["database"])) as store:
        rows = store.steps.all()
        assert [row.step for row in rows] == list(range(1, STEPS + 1))
        assert {row.samples for row in rows} == {8}
        assert int(store.get("term")) >= 3  # more where a loaded machine let a lease run out
        assert store.checkpoints.all()[-1].step == STEPS
        views = [row.number for row in store.views.all()]
        assert views == sorted(views)
    for node in nodes[1:]:
        assert node.terms == sorted(node.terms) and node.terms[-1] == 3


async def test_a_leader_that_was_frozen_is_no_leader(process, cluster, fake_node, postgres, tmp_path):
    """Stopped for longer than its lease, it wakes up, writes nothing, orders nothing, and stands by."""
    job = cluster.job(("steps = 12", "steps = 6000"))
    shared, first, _, _, nodes = await led(process, cluster, fake_node, postgres, job, tmp_path / "one")
    second = process(job, state=tmp_path / "two", **{**shared, "listen": f"127.0.0.1:{free_port()}"})
    await second.said("stands by")
    first.signal(signal.SIGSTOP)
    await second.event("listening")
    first.signal(signal.SIGCONT)
    await first.said("the nodes train on")
    await first.said("stands by")
    with contextlib.closing(Store(shared["database"])) as store:
        terms = sum(one["event"] == "listening" for coordinator in (first, second) for one in coordinator.events)
        assert int(store.get("term")) == terms >= 2, "who took the lease said so, and what woke up took none"
        assert store.views.last().number == 1
    assert not [order for node in nodes for order in node.orders if order.WhichOneof("kind") == "stop"]


async def test_a_second_coordinator_has_the_same_data(process, cluster, postgres, tmp_path):
    """Under another name it is the same; with other content it is refused before it stands by."""
    shared = {"database": postgres.new_database(), "listen": f"127.0.0.1:{free_port()}", "environment": SECRET}
    first = process(cluster.job(), state=tmp_path / "one", **shared)
    link = parse_link((await first.event("listening"))["link"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    job = elsewhere / "job.toml"
    job.write_text((tmp_path / "job.toml").read_text().replace("text.txt", "copy.txt"))
    (elsewhere / "copy.txt").write_text((tmp_path / "text.txt").read_text())
    second = process(job, state=tmp_path / "two", **shared)
    await second.said("stands by")
    with contextlib.closing(Store(shared["database"])) as store:
        assert issue(shared["database"]).fingerprint == link.fingerprint, "a ticket needs no passphrase"
        status = read_status(shared["database"])
        assert status["running"] and len(status["standbys"]) == 1 and status["leader"] not in status["standbys"]
        assert "PRIVATE" not in store.get("identity"), "the keys are sealed"
    (elsewhere / "copy.txt").write_text("something else\n" * 200)
    third = process(job, state=tmp_path / "three", **shared)
    assert await third.ended() != 0 and "data/tokens differ" in third.errors
    for passphrase, words in (("", "has no 12 characters"), ("of some other run", "was sealed with another")):
        environment = {"FARFLUNG_IDENTITY_PASSPHRASE": passphrase}
        fourth = process(cluster.job(), state=tmp_path / "four", **{**shared, "environment": environment})
        assert await fourth.ended() != 0 and words in fourth.errors


async def test_a_database_that_goes_away(process, cluster, fake_node, postgres, tmp_path):
    """The leader stands by, the nodes train on, and it leads again when the database is back: nothing is missing."""
    shared = {"database": postgres.new_database(), "listen": f"127.0.0.1:{free_port()}", "environment": SECRET}
    job = cluster.job(("steps = 12", f"steps = {STEPS}"))
    coordinator = process(job, state=tmp_path / "one", timing=TIMING, **shared)
    link = parse_link((await coordinator.event("listening"))["link"])
    kind = steady(fake_node)
    kind.hold = 40
    nodes = [await cluster.node(link, name, kind=kind, step_s=0.02) for name in "abcd"]
    await coordinator.event("step", 3)
    postgres.stop()
    try:
        await coordinator.said("the nodes train on")
        kind.hold = 80
        await coordinator.said("is away")
    finally:
        postgres.start()
    await coordinator.said("from now on")
    await coordinator.event("listening", 2)
    kind.hold = STEPS
    assert (await coordinator.event("done"))["samples"] == STEPS * 8
    assert await coordinator.ended() == 0
    with contextlib.closing(Store(shared["database"])) as store:
        check_nothing_lost(store, nodes, STEPS)
