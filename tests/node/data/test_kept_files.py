"""What runs leave below a cache folder goes oldest first, and what a process uses is spared."""

import contextlib
import os
import time

import pytest

from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens, disk_for_tokens
from farflung.node.data.streamed import StreamedTokens
from farflung.node.device.disk_cache import Held, make_room


def facts(digest="new"):
    return Facts(
        samples=8,
        validation_samples=2,
        context=49,
        vocabulary=256,
        token_dtype="uint16",
        steps=1,
        tokens_digest=digest,
        profile=Profile(layers=[], tied=False, family=""),
        artifacts={},
    )


@pytest.fixture
def cache(tmp_path):
    """Tokens of 100 bytes used an hour ago, a folder of 300 used two hours ago, a file of somebody else."""
    (tmp_path / "pieces-run-a").mkdir()
    for name, size in (("tokens-old", 100), ("pieces-run-a/0-1", 200), ("pieces-run-a/0-2", 100), ("run-a.key", 5)):
        (tmp_path / name).write_bytes(bytes(size))
    for name, hours in (("tokens-old", 1), ("pieces-run-a", 2)):
        os.utime(tmp_path / name, (time.time() - 3600 * hours,) * 2)
    return tmp_path


def left(cache):
    return sorted(path.name for path in cache.iterdir())


def test_the_oldest_goes_first_and_no_more_than_must(cache):
    assert make_room(cache, 600, 1000, ()) == 600 and len(left(cache)) == 3
    assert make_room(cache, 700, 1000, ()) == 900 and left(cache) == ["run-a.key", "tokens-old"]
    assert make_room(cache, 1000, 1000, [cache / "tokens-old"]) == 1000 and left(cache) == ["run-a.key", "tokens-old"]
    assert make_room(cache, 1000, 1000, ()) == 1000 and left(cache) == ["run-a.key"]


def test_what_is_in_use_or_was_just_made_is_spared_and_counts(cache):
    with contextlib.closing(Held(cache / "pieces-run-a")):
        assert make_room(cache, 1000, 1000, ()) == 700 and left(cache) == ["pieces-run-a", "run-a.key"]
    os.utime(cache / "pieces-run-a")
    assert make_room(cache, 1000, 200, ()) == 0 and left(cache) == ["pieces-run-a", "run-a.key"]


def test_datasets_hold_what_they_use(tmp_path):
    data = bytes(1000)
    digest = "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53"
    kept = Tokens(facts(digest), lambda name, offset, length: data[offset : offset + length], tmp_path)
    streamed = StreamedTokens(facts(digest), lambda *_: lambda: data, tmp_path / "pieces-run-b", 1 << 20, pytest.fail)
    kept.batch([0])
    streamed.batch([0])
    names = left(tmp_path)
    assert names == ["pieces-run-b", f"tokens-{digest}"]
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    assert make_room(tmp_path, 1 << 30, 1 << 30, ()) < 1 << 30 and left(tmp_path) == names
    del kept, streamed


@pytest.mark.parametrize(("limit", "room"), [(0, 5000), (1100, 1000), (1099, 999), (90, 0), (9000, 5000)])
def test_the_disk_of_an_owner(tmp_path, limit, room):
    job = Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 49},
            "data": {"tokens": ["a.bin"], "validation": 0.0, "cache_gb": 5e-6},
        }
    )
    (tmp_path / "tokens-other").write_bytes(bytes(100))
    (tmp_path / "tokens-new").write_bytes(bytes(1000))
    assert disk_for_tokens(job, facts(), tmp_path, tmp_path / "pieces-run-a", limit) == room
