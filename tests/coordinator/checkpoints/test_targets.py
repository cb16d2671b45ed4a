"""Checkpoints at a target that is not this machine's disk: a real S3 server over HTTP, which also goes away."""

import asyncio
import contextlib
import hashlib
import json
import subprocess
import time

import fsspec
import pytest
from fsspec.registry import known_implementations

from farflung.coordinator.checkpoints.manifest import MANIFEST
from farflung.coordinator.checkpoints.targets import Target, TargetAway, TargetDamaged, fetched
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.run.durability import mirror
from farflung.coordinator.store.engines.database import LeaseLost
from farflung.coordinator.store.store import Store
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import FarflungError, JobError


def write_checkpoint(folder, step, data=b"weights"):
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    (place / "stage-0").write_bytes(data)
    digests = {"stage-0": hashlib.sha256(data).hexdigest()}
    (place / MANIFEST).write_text(json.dumps({"step": step, "files": ["stage-0"], "digests": digests}))
    return place


@pytest.fixture
def target(s3, request):
    return Target(f"{s3.bucket}/{request.node.name}", s3.options)


@pytest.fixture
def stored(s3, target):
    """The bucket as others see it: a file system, and where the target is in it."""
    return fsspec.core.url_to_fs(target.url, **s3.options)


def test_complete_or_not_there(target, tmp_path, stored):
    files, root = stored
    target.check()
    assert target.steps() == []
    for step in (4, 8, 12):
        target.upload(write_checkpoint(tmp_path / "here", step, b"weights" * step), step)
    assert target.steps() == [4, 8, 12]
    path = target.fetch(8, tmp_path / "there")
    assert path == tmp_path / "there" / "step-00000008" and (path / "stage-0").read_bytes() == b"weights" * 8
    files.rm_file(f"{root}/step-00000012/{MANIFEST}")
    assert target.steps() == [4, 8], "without its manifest it is none"
    target.upload(write_checkpoint(tmp_path / "again", 8, b"another history"), 8)
    assert (target.fetch(8, tmp_path / "there") / "stage-0").read_bytes() == b"another history"
    target.upload(write_checkpoint(tmp_path / "here", 16), 16)
    target.prune(2, 16)
    assert target.steps() == [8, 16]
    assert {path.rpartition("/step-")[2] for path in files.find(root)} == {
        f"{step:08d}/{file}" for step in (8, 16) for file in ("stage-0", MANIFEST)
    }, "what was left of step 12 is gone too"
    target.upload(write_checkpoint(tmp_path / "here", 10), 10)
    target.prune(1, 10)
    assert target.steps() == [10, 16], "a newer one of a history that was given up takes nobody's place"


def test_who_does_not_lead_any_more_writes_nothing(target, tmp_path):
    folder, asked = write_checkpoint(tmp_path / "here", 4), []

    def check():
        asked.append(target.steps())
        if len(asked) == 2:
            raise LeaseLost("the lease has ended")

    with pytest.raises(LeaseLost):
        target.upload(folder, 4, check)
    assert asked == [[], []] and target.steps() == []


def test_digests_are_checked_when_it_is_read(target, tmp_path, stored):
    files, root = stored
    target.upload(write_checkpoint(tmp_path / "here", 4), 4)
    files.pipe_file(f"{root}/step-00000004/stage-0", b"WEIGHTS")
    with pytest.raises(TargetDamaged, match="stage-0 has another digest"):
        target.fetch(4, tmp_path / "there")
    files.rm_file(f"{root}/step-00000004/stage-0")
    with pytest.raises(TargetDamaged, match="lacks stage-0"):
        target.fetch(4, tmp_path / "there")
    files.pipe_file(f"{root}/step-00000004/{MANIFEST}", b'{"step": 4, "files": ["../../x"], "digests": {}}')
    with pytest.raises(TargetDamaged, match="names a file"):
        target.fetch(4, tmp_path / "there")
    files.pipe_file(f"{root}/step-00000004/{MANIFEST}", b'{"step":')
    with pytest.raises(TargetDamaged, match="cannot be read"):
        target.fetch(4, tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())


def test_what_is_no_target(monkeypatch):
    monkeypatch.setitem(known_implementations, "absent", {"class": "absentfs.AbsentFS", "err": "Install absentfs"})
    with pytest.raises(JobError, match="absent://x needs the package absentfs") as caught:
        Target("absent://x")
    assert caught.value.hint == "pip install absentfs"
    with pytest.raises(JobError, match="nothing reads nowhere:// addresses"):
        Target("nowhere://x")


def test_export_reads_from_the_target(s3, target, tmp_path, monkeypatch, stored):
    files, root = stored
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint_url"])
    with pytest.raises(FarflungError, match="has no checkpoint"), fetched(target.url):
        pass
    for step in (4, 8):
        target.upload(write_checkpoint(tmp_path / "here", step), step)
    files.pipe_file(f"{root}/step-00000008/stage-0", b"WEIGHTS")
    with fetched(target.url) as folder:
        assert folder.name == "step-00000004" and (folder / "stage-0").read_bytes() == b"weights"
    with pytest.raises(TargetDamaged), fetched(target.url, 8):
        pass
    with pytest.raises(FarflungError, match="no checkpoint of step 5") as caught, fetched(target.url, 5):
        pass
    assert "4, 8" in caught.value.hint


# ---- runs -----------------------------------------------------------------------------------


def job_to(cluster, target, s3, *changes):
    options = json.dumps(s3.options).replace('":', '" =').replace("{", "{ ")
    return cluster.job(("keep = 2", f'keep = 2\nto = "{target.url}"\noptions = {options}'), *changes)


async def test_a_run_writes_to_the_target_and_resumes_from_it(cluster, s3, target, eventually):
    coordinator = cluster.coordinator(job_to(cluster, target, s3, ("steps = 12", "steps = 14")))
    link = await coordinator.link
    nodes = [await cluster.node(link, name) for name in "abcd"]
    done = await coordinator.event("done")
    assert await coordinator.task == 0
    assert done["checkpoint"] == f"{target.url}/step-00000014"
    said = [event["path"] for event in coordinator.events if event["event"] == "checkpoint"]
    assert said[-1] == done["checkpoint"] and len(said) <= 4
    assert target.steps()[-1] == 14 and len(target.steps()) <= 2
    here = sorted(path.name for path in (coordinator.state / "checkpoints").glob("step-*"))
    assert here == ["step-00000014"], "one stays here, for nodes that go back to it"
    status = read_status(coordinator.state)
    assert status["target"] == {"to": target.url, "newest": 14, "why": ""}
    assert status["checkpoints"][-1]["path"] == done["checkpoint"]
    assert nodes[0].job.checkpoint.to == target.url and nodes[0].job.checkpoint.options == {}
    for path in (coordinator.state / "run.sqlite", coordinator.state / "checkpoints" / here[0] / MANIFEST):
        assert s3.options["secret"].encode() not in path.read_bytes(), "credentials go nowhere"
    for node in nodes:
        await node.close()

    again = cluster.coordinator(job_to(cluster, target, s3, ("steps = 12", "steps = 16")), state=cluster.folder / "new")
    link = await again.link
    assert [path.name for path in (again.state / "checkpoints").glob("step-*")] == ["step-00000014"]
    more = [await cluster.node(link, name) for name in "efgh"]
    view = await again.event("view")
    assert "checkpoint of step 14" in view["why"]
    await again.event("done")
    assert await again.task == 0 and more[0].step == 16
    assert target.steps()[-1] == 16

    other = cluster.coordinator(job_to(cluster, target, s3, ("seed = 1", "seed = 2")), state=cluster.folder / "other")
    with pytest.raises(JobError, match=r"checkpoints of another job: run.seed \(1 -> 2\)"):
        await other.task


async def test_a_target_that_goes_away(cluster, s3, target, monkeypatch):
    """Training goes on, it is said once, the newest stays here, and arrives when the target is back."""
    monkeypatch.setattr(mirror, "FIRST_RETRY_S", 0.1)
    monkeypatch.setattr(mirror, "LONGEST_RETRY_S", 0.2)
    coordinator = cluster.coordinator(job_to(cluster, target, s3, ("steps = 12", "steps = 6000")))
    link = await coordinator.link
    nodes = [await cluster.node(link, name, step_s=0.02) for name in "abcd"]
    await coordinator.event("checkpoint")
    s3.stop()
    try:
        warning = await away(coordinator)
        assert "training goes on" in warning["message"] and target.url in warning["message"]
        status = read_status(coordinator.state)
        assert "cannot be" in status["target"]["why"]
        step = nodes[0].step
        await coordinator.event("step", step=step + 20)
        here = coordinator.state / "checkpoints"
        assert list(here.glob("step-*/manifest.json")), "the last good one is kept"
        last = max(event["step"] for event in coordinator.events if event["event"] == "checkpoint")
    finally:
        s3.start()
    while not any("takes checkpoints again" in event.get("message", "") for event in coordinator.events):
        await asyncio.sleep(0.02)
        assert not coordinator.task.done()
    assert max(event["step"] for event in coordinator.events if event["event"] == "checkpoint") > last
    said = [event for event in coordinator.events if event["event"] == "warning" and target.url in event["message"]]
    assert len(said) == 1
    assert read_status(coordinator.state)["target"]["why"] == ""
    assert await coordinator.end() == 130


async def away(coordinator, timeout=120.0):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not coordinator.task.done():
        for event in coordinator.events:
            if event["event"] == "warning" and "cannot be" in event["message"]:
                return event
        await asyncio.sleep(0.02)
    raise AssertionError(f"nobody said that the target is away: {coordinator.events[-5:]}")


async def test_a_target_that_is_away_from_the_start(cluster, s3, target):
    options = {**s3.options, "endpoint_url": "http://127.0.0.1:9"}
    path = job_to(cluster, target, s3)
    path.write_text(path.read_text().replace(s3.options["endpoint_url"], options["endpoint_url"]))
    with pytest.raises(TargetAway, match="cannot be written"):
        await cluster.coordinator(path).task


# ---- a full disk ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 32 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system needs root and the right to mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_a_full_disk(cluster, small_disk, eventually):
    """Training goes on, it is said, views wait; nothing is missing when there is room again."""
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 60000")), state=small_disk / "state")
    link = await coordinator.link
    nodes = [await cluster.node(link, name, step_s=0.02) for name in "abcd"]
    await coordinator.event("checkpoint", 2)

    def is_said(words):
        fill(small_disk)  # an old checkpoint may have gone meanwhile
        return any(words in event.get("message", "") for event in coordinator.events)

    await eventually(lambda: is_said("training goes on, view changes wait"), 120.0)
    await eventually(lambda: is_said("No space left on device"), 120.0)
    good = max(event["step"] for event in coordinator.events if event["event"] == "checkpoint")
    step = nodes[0].step
    await eventually(lambda: nodes[0].step > step + 20, 120.0)
    await nodes[3].say(goodbye=pb.Goodbye(why="its owner wants it back"))
    await coordinator.event("view", view=2)
    await asyncio.sleep(0.5)
    assert nodes[0].view.number == 1, "nobody hears of a view that is not stored"
    (small_disk / "filler").unlink()
    await eventually(lambda: nodes[0].view.number == 2, 120.0)
    assert any("takes what had to wait" in event.get("message", "") for event in coordinator.events)
    step = nodes[0].step
    await coordinator.event("step", step=step + 5)
    assert await coordinator.end() == 130
    with contextlib.closing(Store(coordinator.state)) as store:
        steps = [row.step for row in store.steps.all()]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= step + 5
        assert [row.number for row in store.views.all()][:2] == [1, 2]
        assert any("view changes wait" in message for _, _, message in store.warnings.newest(1000))
    assert good in {int(path.name[5:]) for path in (small_disk / "state" / "checkpoints").glob("step-*")} or (
        max(event["step"] for event in coordinator.events if event["event"] == "checkpoint") > good
    ), "the last good checkpoint stays until there is a newer one"
