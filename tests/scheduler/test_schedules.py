"""Every schedule finishes with blocking receives, and does every microbatch exactly once each way."""

import pytest

from farflung.scheduler import Action, PlanError, actions, in_flight


def completes(lists, stages, chunks, sends=None):
    """Runs the lists with blocking receives. `sends`: how many unread messages a sender may have (None: any number)."""
    position = [0] * stages
    arrived = set()
    unread = [0] * stages
    last = stages * chunks - 1
    progress = True
    while progress:
        progress = False
        for node in range(stages):
            while position[node] < len(lists[node]):
                action = lists[node][position[node]]
                place = action.chunk * stages + node
                if action.kind == "F":
                    needs = None if place == 0 else ("F", place - 1, action.microbatch)
                    sends_it = place < last
                else:
                    needs = ("F", place, action.microbatch) if place == last else ("B", place + 1, action.microbatch)
                    sends_it = place > 0
                if needs is not None and needs not in arrived:
                    break
                if sends is not None and sends_it and unread[node] >= sends:
                    break
                if needs is not None and needs[1] != place and needs[1] % stages != node:
                    unread[needs[1] % stages] -= 1
                if sends_it and stages > 1:
                    unread[node] += 1
                arrived.add((action.kind, place, action.microbatch))
                position[node] += 1
                progress = True
    return all(position[node] == len(lists[node]) for node in range(stages))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_plain_schedules_complete(kind, stages):
    for microbatches in range(1, 9):
        lists = [actions(kind, stage, stages, microbatches) for stage in range(stages)]
        for order in lists:
            expected = sorted(Action(k, m) for k in "FB" for m in range(microbatches))
            assert sorted(order) == expected
            backwards = [a.microbatch for a in order if a.kind == "B"]
            assert backwards == sorted(backwards)
        assert completes(lists, stages, 1)
        if kind == "1f1b":
            assert completes(lists, stages, 1, sends=2)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", range(1, 9))
def test_interleaved_completes(chunks, stages):
    for microbatches in range(1, 9):
        lists = [actions("interleaved", stage, stages, microbatches, chunks) for stage in range(stages)]
        for order in lists:
            expected = sorted(Action(k, m, c) for k in "FB" for m in range(microbatches) for c in range(chunks))
            assert sorted(order) == expected
            for chunk in range(chunks):
                backwards = [a.microbatch for a in order if a.kind == "B" and a.chunk == chunk]
                assert backwards == sorted(backwards)
        assert completes(lists, stages, chunks)


def test_one_forward_one_backward_by_hand():
    assert [str(a) for a in actions("1f1b", 0, 2, 3)] == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert [str(a) for a in actions("1f1b", 1, 2, 3)] == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert [str(a) for a in actions("gpipe", 0, 2, 2)] == ["F0", "F1", "B0", "B1"]
    assert str(actions("interleaved", 0, 2, 2, 2)[2]) == "F0.1"


def test_in_flight_is_what_one_forward_one_backward_saves():
    assert [in_flight("1f1b", stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [in_flight("gpipe", stage, 4, 8) for stage in range(4)] == [8] * 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pipedream", 0, 2, 2), "unknown schedule"),
        (("gpipe", 2, 2, 2), "no stage 2"),
        (("gpipe", 0, 2, 0), "at least 1 microbatch"),
        (("gpipe", 0, 2, 2, 2), "one chunk"),
    ],
)
def test_impossible_schedules_are_refused(arguments, says):
    with pytest.raises(PlanError, match=says):
        actions(*arguments)
