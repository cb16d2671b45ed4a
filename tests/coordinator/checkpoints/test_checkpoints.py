"""Checkpoints: complete or not there, verified, few kept; what a view change gives up; disks that fail."""

import hashlib
import json

import pytest
from tensor_files import tensor_file

from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.checkpoints.receiver import receive
from farflung.coordinator.checkpoints.refused import ShardRefused
from farflung.job.data.sampling import Position
from farflung.proto.control_pb2 import Shard


def shard(step, file, data=b"data", files=2, meta=None, offset=0, last=True):
    digest = hashlib.sha256(data).digest()
    return Shard(
        step=step, file=file, offset=offset, data=data, last=last, digest=digest, files=files, meta=meta or "{}"
    )


def deliver(checkpoints, one):
    receiver = receive(checkpoints, one)
    try:
        return receiver.write(one)
    finally:
        receiver.close()


def complete(checkpoints, step, **meta):
    deliver(checkpoints, shard(step, "stage-0", meta=json.dumps({"rounds": {"stage-0": 3}, **meta})))
    return deliver(checkpoints, shard(step, "stage-1", meta=json.dumps({"rounds": {"stage-1": 3}, **meta})))


def test_complete_by_one_rename(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {"run": "x"})
    assert deliver(checkpoints, shard(5, "stage-0")) is None
    assert checkpoints.steps() == [] and checkpoints.path(5) is None
    done = complete(checkpoints, 7, cursor=70, redo=[1, 2])
    assert done.position == Position(7, 70, (1, 2)) and done.path == tmp_path / "step-00000007"
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["rounds"] == {"stage-0": 3, "stage-1": 3} and manifest["run"] == "x"
    assert sorted(path.name for path in done.path.iterdir()) == ["manifest.json", "stage-0", "stage-1"]
    assert checkpoints.file(7, "stage-0") and checkpoints.file(7, "manifest.json")
    assert checkpoints.file(7, "other") is None and checkpoints.file(8, "stage-0") is None
    assert receive(checkpoints, shard(7, "stage-0")) is None


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2, {})
    for step in (1, 2, 3, 10):
        complete(checkpoints, step)
    assert checkpoints.steps() == [3, 10]


def test_damaged_ones_are_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    for step in (1, 2, 3):
        complete(checkpoints, step)
    (tmp_path / "step-00000003" / "stage-1").write_bytes(b"bits flipped")
    (tmp_path / "step-00000002" / "stage-0").unlink()
    newest, passed = checkpoints.newest()
    assert newest.step == 1
    aside = tmp_path / "damaged-step-00000003"
    assert passed[0] == (
        "the checkpoint of step 3 is damaged (stage-1 has another digest); "
        f"it is in {aside} now, for a person to look at or remove; an older one is taken"
    )
    assert len(passed) == 2 and checkpoints.steps() == [1]
    assert (aside / "stage-1").read_bytes() == b"bits flipped" and (tmp_path / "damaged-step-00000002").is_dir()
    assert checkpoints.newest() == (newest, []), "they are said once"
    for step in (2, 3, 4, 5):
        complete(checkpoints, step)
    assert checkpoints.steps() == [3, 4, 5] and aside.is_dir(), "nothing removes them"
    assert Checkpoints(tmp_path / "none", 3, {}).newest() == (None, [])


def test_what_was_read_last_counts_while_the_folder_cannot_be_read(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(tmp_path, 3, {})
    complete(checkpoints, 1)
    assert checkpoints.is_past(1)
    complete(checkpoints, 2)

    def fails(self):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.iterdir", fails)
        assert checkpoints.is_past(2) and checkpoints.has_whole(1, 1, "stage-0") and not checkpoints.is_past(3)
        assert not checkpoints.has_whole(1, 3, "stage-0")
    assert caplog.text.count("Too many open files") == 1, "not at every tick"
    assert checkpoints.is_past(2) and not checkpoints.is_past(3)


def test_one_that_cannot_be_moved_aside_is_passed_over_where_it_is(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 3, {})
    for step in (1, 2):
        complete(checkpoints, step)
    (tmp_path / "step-00000002" / "manifest.json").write_text("{")

    def fails(self, target):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.replace", fails)
        newest, passed = checkpoints.newest()
    assert newest.step == 1 and "cannot be moved aside (Read-only file system)" in passed[0]
    assert not checkpoints.is_past(2), "the next of that step takes its place"
    assert complete(checkpoints, 2).step == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a few bytes", "is no safetensors file"),
        (tensor_file({"w": ("F32", 4)})[:-1], "has 15 bytes of tensors"),
        (tensor_file({"w": ("F32", 4)}).replace(b"[4]", b"[5]"), "whose shape takes another number"),
        (tensor_file({"w": ("F32", 4)}).replace(b"F32", b"I32"), "as I32, not F32 or BF16"),
    ],
)
def test_files_of_tensors_are_looked_into_at_a_start(tmp_path, data, why):
    """The digest is that of the manifest, and no node could load it: what comes before it is taken."""
    checkpoints = Checkpoints(tmp_path, 3, {})
    for step, content in ((1, tensor_file({"w": ("F32", 4), "m": ("BF16", 4)})), (2, data)):
        deliver(checkpoints, shard(step, "stage-0.safetensors", content, files=1))
    newest, passed = Checkpoints(tmp_path, 3, {}).newest()
    assert newest.step == 1 and why in passed[0] and len(passed) == 1


def test_a_view_change_gives_up_what_is_of_lost_weights(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    deliver(checkpoints, shard(4, "stage-0"))
    deliver(checkpoints, shard(6, "stage-0"))
    under_way = receive(checkpoints, shard(6, "stage-1", last=False))
    under_way.write(shard(6, "stage-1", last=False))
    checkpoints.discard_after(5, 2)
    with pytest.raises(ShardRefused, match="given up by a view change"):
        under_way.write(shard(6, "stage-1", offset=4))
    under_way.close()
    assert deliver(checkpoints, shard(4, "stage-1")).step == 4
    assert deliver(checkpoints, shard(6, "stage-1")) is None, "stage-0 of the lost step 6 does not count"
    assert deliver(checkpoints, shard(6, "stage-0")).step == 6


def test_pieces_in_order(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    first = shard(1, "stage-0", last=False)
    receiver = receive(checkpoints, first)
    receiver.write(first)
    with pytest.raises(ShardRefused, match="came where 4 was due"):
        receiver.write(shard(1, "stage-0", offset=8))
    receiver.close()
    assert not list(checkpoints.incoming.iterdir())


def test_a_disk_that_does_not_take_it(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3, {})
    with pytest.raises(ShardRefused, match="cannot write stage-0 of step 1: Not a directory"):
        deliver(checkpoints, shard(1, "stage-0"))


def of_view(view, number, file, files=2, data=b"data", **meta):
    return shard(number, file, data, files, json.dumps({"view": view, "rounds": {file: view}, **meta}))


def test_another_view_begins_the_step_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    deliver(checkpoints, of_view(1, 9, "stage-0", 3, b"of view 1"))
    deliver(checkpoints, of_view(1, 9, "stage-2", 3))
    assert deliver(checkpoints, of_view(2, 9, "stage-0", data=b"of view 2")) is None
    assert deliver(checkpoints, of_view(1, 9, "stage-1", 3)) is None, "a late file of the view before is nobody's"
    done = deliver(checkpoints, of_view(2, 9, "stage-1", data=b"of view 2"))
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["files"] == ["stage-0", "stage-1"] and manifest["rounds"] == {"stage-0": 2, "stage-1": 2}
    assert {path.name for path in done.path.iterdir()} == {"manifest.json", "stage-0", "stage-1"}
    assert (done.path / "stage-0").read_bytes() == b"of view 2" and checkpoints.newest()[0] == done


def test_a_complete_checkpoint_stays_when_another_view_sends_the_step_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    under_way = receive(checkpoints, of_view(2, 9, "stage-0"))
    for file in ("stage-0", "stage-1"):
        done = deliver(checkpoints, of_view(1, 9, file))
    assert receive(checkpoints, of_view(2, 9, "stage-1")) is None
    assert under_way.write(of_view(2, 9, "stage-0", data=b"late")) is None
    under_way.close()
    assert (done.path / "stage-0").read_bytes() == b"data" and not list(checkpoints.incoming.iterdir())


def test_what_an_earlier_view_sends_of_a_step_that_is_trained_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    checkpoints.discard_after(5, 3)
    with pytest.raises(ShardRefused, match="step 6 was given up by a view change"):
        deliver(checkpoints, of_view(2, 6, "stage-0"))
    assert deliver(checkpoints, of_view(2, 5, "stage-0")) is None
    assert deliver(checkpoints, of_view(2, 5, "stage-1")).step == 5
    assert deliver(checkpoints, of_view(3, 6, "stage-0")) is None
    assert deliver(checkpoints, of_view(3, 6, "stage-1")).step == 6


def test_what_is_unfinished_below_a_complete_step_is_thrown_away(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {})
    deliver(checkpoints, shard(4, "stage-0"))
    late = receive(checkpoints, shard(4, "stage-1"))
    deliver(checkpoints, shard(8, "stage-0"))
    complete(checkpoints, 6)
    assert [path.name for path in checkpoints.incoming.iterdir()] == ["step-00000008"]
    assert late.write(shard(4, "stage-1")) is None
    late.close()
    assert receive(checkpoints, shard(4, "stage-1")) is None and checkpoints.steps() == [6]
    assert [path.name for path in checkpoints.incoming.iterdir()] == ["step-00000008"]
    assert deliver(checkpoints, shard(8, "stage-1")).step == 8


def test_what_was_unfinished_at_a_start_is_thrown_away(tmp_path):
    deliver(Checkpoints(tmp_path, 3, {}), shard(4, "stage-0", b"of a run of yesterday"))
    checkpoints = Checkpoints(tmp_path, 3, {})
    checkpoints.clear_receiving()
    assert not checkpoints.incoming.exists()
    assert deliver(checkpoints, shard(4, "stage-1")) is None


def test_a_damaged_checkpoint_is_replaced(tmp_path):
    first = Checkpoints(tmp_path, 1, {})
    for step in (3, 6):
        first = Checkpoints(tmp_path, 2, {})
        complete(first, step)
    (tmp_path / "step-00000006" / "stage-1").write_bytes(b"bits flipped")
    checkpoints = Checkpoints(tmp_path, 2, {})
    assert checkpoints.newest()[0].step == 3
    assert complete(checkpoints, 4).step == 4 and checkpoints.steps() == [3, 4]
    assert complete(checkpoints, 6).step == 6
    assert checkpoints.newest()[0].step == 6 and checkpoints.steps() == [4, 6]
    assert not list(checkpoints.incoming.iterdir())


def test_optimizer_steps_are_kept_file_by_file(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3, {"run": "x"})
    deliver(checkpoints, of_view(1, 9, "stage-0", optimizer_steps=9, cursor=72, redo=[], step=9))
    done = deliver(checkpoints, of_view(1, 9, "stage-1", optimizer_steps=4, cursor=72, redo=[], step=9, run="y"))
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["optimizer_steps"] == 9 and manifest["run"] == "x"
    assert manifest["meta"]["stage-1"] == {"view": 1, "rounds": {"stage-1": 1}, "optimizer_steps": 4, "run": "y"}


def test_a_view_that_is_no_number(tmp_path):
    with pytest.raises(ShardRefused, match="no number"):
        deliver(Checkpoints(tmp_path, 3, {}), of_view("newest", 9, "stage-0"))
