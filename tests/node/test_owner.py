"""What the owner of a node's machine wants and allows."""

import time

from farflung.node.device.identity import save_key
from farflung.node.device.limits import TERM_SECONDS, Limits, Owner
from farflung.node.entering import as_before, one_of_a_name, within
from farflung.node.training.external.external_loop import LoopOwner
from farflung.proto.control_pb2 import Device


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_wishes(tmp_path):
    clock, file = Clock(), tmp_path / "pause"
    owner = Owner(file, Limits(hours=2), clock)
    assert owner.wish() is None
    owner.paused = True
    assert owner.wish().stays and "SIGUSR1" in owner.wish().why
    owner.paused = False
    file.touch()
    assert owner.wish() is None, "it is looked for twice a second"
    clock.now += 1
    assert owner.wish().stays and str(file) in owner.wish().why
    file.unlink()
    clock.now += 1
    assert owner.wish() is None
    clock.now += 2 * 3600
    assert owner.wish().why == "leaving: its owner gave it 2 hours" and not owner.wish().stays
    owner.taken_away = True
    assert owner.wish().seconds == TERM_SECONDS and not owner.wish().stays


def test_a_file_that_is_there_from_the_start(tmp_path):
    (tmp_path / "pause").touch()
    assert Owner(tmp_path / "pause").wish().stays


def test_the_plan_sees_what_is_allowed():
    device = within(Device(memory_bytes=8 << 30), Limits(upload=2e7, memory=6 << 30, hours=3))
    assert (device.memory_bytes, device.upload_bps, device.hours) == (6 << 30, 2e7, 3)
    assert within(Device(memory_bytes=4 << 30), Limits(memory=6 << 30)).memory_bytes == 4 << 30
    assert within(Device(memory_bytes=4 << 30), Limits()).upload_bps == 0


def test_a_machine_comes_back_as_itself(tmp_path):
    assert as_before(tmp_path, "run") == ("", None)
    save_key(tmp_path, "run", "node-1", b"key")
    save_key(tmp_path, "other", "node-9", b"key")
    name, lock = as_before(tmp_path, "run")
    assert name == "node-1"
    assert as_before(tmp_path, "run") == ("", None), "a second process at the same time is somebody else"
    save_key(tmp_path, "run", "node-2", b"key")
    second, other = as_before(tmp_path, "run")
    assert second == "node-2"
    lock.close()
    other.close()
    with one_of_a_name(tmp_path, "run", "node-2"):
        first, lock = as_before(tmp_path, "run")
        assert first == "node-1"
        lock.close()


def test_a_loop_s_first_step_may_take_minutes():
    """It compiles: nobody knows yet how long a step takes, and no limit begins at zero."""
    owner = LoopOwner()
    owner.waits(time.monotonic() - 121.0)
    assert owner.wish() is None
    owner.came(time.monotonic())
    for _ in range(9):
        owner.waits(time.monotonic() - 1.0)
        owner.came(time.monotonic())
    owner.waits(time.monotonic() - 31.0)
    assert owner.wish().stays, "ten of its usual steps, or half a minute"
