"""What a running coordinator does about a checkpoint that somebody cannot read, on its disk and at a target."""

import hashlib
import json

import pytest

from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.checkpoints.receiver import receive
from farflung.coordinator.checkpoints.targets import Target, TargetAway
from farflung.coordinator.membership import signals as s
from farflung.coordinator.run.durability.fallback import answer
from farflung.job.data.sampling import Position
from farflung.proto.control_pb2 import Shard


@pytest.fixture
def checkpoints(tmp_path):
    found = Checkpoints(tmp_path / "here", 3, {})
    for step in (4, 8):
        data = f"weights of {step}".encode()
        said = {"meta": json.dumps({"cursor": 8 * step}), "digest": hashlib.sha256(data).digest()}
        shard = Shard(step=step, file="stage-0", data=data, last=True, files=1, **said)
        receiver = receive(found, shard)
        receiver.write(shard)
        receiver.close()
    return found


@pytest.fixture
def target(checkpoints, tmp_path):
    made = Target(f"memory://fallback{tmp_path}")
    for step in (4, 8):
        made.upload(checkpoints.path(step), step)
    return made


def damage(checkpoints, step):
    (checkpoints.path(step) / "stage-0").write_bytes(b"weights of ?")


def test_what_is_whole_stays(checkpoints):
    assert answer(s.LookAt(8, "x"), checkpoints, None, None) == s.CheckpointSound(8)
    assert checkpoints.steps() == [4, 8]


def test_what_is_damaged_is_put_aside_and_the_one_before_is_taken(checkpoints, tmp_path):
    damage(checkpoints, 8)
    lost = answer(s.LookAt(8, "x"), checkpoints, None, None)
    assert (lost.step, lost.position) == (8, Position(4, 32)) and checkpoints.steps() == [4]
    assert "damaged (stage-0 has another digest); it is in" in lost.why
    assert (tmp_path / "here" / "damaged-step-00000008" / "stage-0").read_bytes() == b"weights of ?"
    assert answer(s.LookAt(8, "x"), checkpoints, None, None).position == Position(4, 32), "asked again"


def test_what_nobody_can_use_is_put_aside_although_it_is_whole(checkpoints):
    lost = answer(s.PutAside(8, "a, b cannot read stage-0"), checkpoints, None, None)
    assert lost.position == Position(4, 32) and "is not used (a, b cannot read stage-0)" in lost.why
    damage(checkpoints, 4)
    assert answer(s.LookAt(4, "x"), checkpoints, None, None).position == Position(), "none is left"


def test_a_targets_copy_replaces_what_is_damaged_here(checkpoints, target):
    damage(checkpoints, 8)
    lost = answer(s.LookAt(8, "x"), checkpoints, target, None)
    assert lost.position == Position(8, 64) and (checkpoints.path(8) / "stage-0").read_bytes() == b"weights of 8"


def test_but_not_what_nobody_can_use(checkpoints, target):
    lost = answer(s.PutAside(8, "x"), checkpoints, target, None)
    assert lost.position == Position(4, 32) and target.steps() == [4]


def test_a_target_that_is_away_is_waited_for_before_all_is_lost(checkpoints, target, monkeypatch):
    for step in (4, 8):
        damage(checkpoints, step)

    def away(self):
        raise TargetAway("it is away")

    monkeypatch.setattr(Target, "steps", away)
    for _ in range(2):
        with pytest.raises(TargetAway):
            answer(s.LookAt(8, "x"), checkpoints, target, None)
    monkeypatch.undo()
    assert answer(s.LookAt(8, "x"), checkpoints, target, None).position == Position(8, 64)
