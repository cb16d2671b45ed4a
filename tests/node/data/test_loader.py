"""Microbatches that a thread makes ahead."""

import threading

import pytest
import torch
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.node.data.loader import Loader
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

CPU = torch.device("cpu")
FACTS = facts_of(samples=40, validation=4, context=8, vocabulary=29, steps=4)
BATCHES = [[1, 2], [3, 4], [5, 6], [7, 8]]


class Watched(Windows):
    """Notes which thread made which batch."""

    def __init__(self, bad=(), problem=None):
        super().__init__(FACTS)
        self.made, self.bad, self.apart, self.problem = [], bad, True, problem

    def placed(self, ids):
        self.made.append((list(ids), threading.current_thread().name))
        if list(ids) in self.bad:
            raise self.problem
        return super().placed(ids)


@pytest.fixture
def watched():
    data = Watched()
    loader = Loader(data, CPU)
    yield data, loader
    loader.close()


def test_one_microbatch_is_made_ahead_and_each_once(watched):
    data, loader = watched
    loader.announce(BATCHES)
    for number, ids in enumerate(BATCHES):
        wait_until(lambda number=number: len(data.made) == number + 1)
        tokens, targets, places = loader.placed(ids)
        assert torch.equal(tokens, data.batch(ids)[0]) and torch.equal(targets, data.batch(ids)[1]) and places is None
    assert data.made == [(ids, "loader") for ids in BATCHES]


def test_what_is_not_announced_is_made_by_whoever_asks(watched):
    data, loader = watched
    loader.announce(BATCHES[:1])
    assert torch.equal(loader.placed([9, 9])[0], data.batch([9, 9])[0])
    assert ([9, 9], threading.current_thread().name) in data.made
    loader.placed(BATCHES[0])
    loader.placed(BATCHES[0])  # again, as the two ends of a pipeline on one node do
    assert sum(ids == BATCHES[0] for ids, _ in data.made) == 2


def test_a_new_view_announces_others(watched):
    data, loader = watched
    loader.announce(BATCHES)
    wait_until(lambda: data.made)
    loader.announce([[20, 21], [3, 4]])
    for ids in ([20, 21], [3, 4]):
        assert torch.equal(loader.placed(ids)[0], data.batch(ids)[0])
    assert len(data.made) == 3  # [1, 2] was made for nothing


@pytest.mark.parametrize("problem", [FarflungError("row 5 is damaged"), SystemExit("own code gives up")])
def test_an_error_is_raised_where_the_microbatch_is_asked_for(problem):
    data = Watched(bad=[[3, 4]], problem=problem)
    loader = Loader(data, CPU)
    loader.announce(BATCHES)
    loader.placed([1, 2])
    wait_until(lambda: len(data.made) == 2)
    with pytest.raises(type(problem), match=str(problem.args[0])):
        loader.placed([3, 4])
    loader.placed([5, 6])
    loader.close()


def test_data_whose_pieces_come_by_messages_are_made_here():
    data = Watched()
    data.apart = False
    loader = Loader(data, CPU)
    loader.announce(BATCHES)
    loader.placed(BATCHES[0])
    assert data.made == [(BATCHES[0], threading.current_thread().name)]


def test_the_thread_ends_and_samples_stay():
    loader = Loader(Watched(), CPU)
    loader.announce(BATCHES)
    loader.close()
    loader.close()
    loader.announce(BATCHES)
    assert not loader._thread.is_alive() and len(loader.placed([1, 2])[0]) == 2


def test_a_run_takes_its_microbatches_from_the_thread_which_ends_with_it():
    job = Job.model_validate(
        {
            "run": {"name": "loader", "steps": 4},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 6, "microbatch": 2, "eval_every": 0},
        }
    )
    data, hub = Watched(), Hub(job, FACTS)
    hub.start("n0", data)
    hub.begin(Plan(pipelines=(("n0",),), stages=((0, 2),), microbatches=(3,)), ["n0"], checkpoint=0)
    hub.finish(["n0"])
    assert not hub.errors
    trained = [ids for ids, _ in data.made if ids[0] < FACTS.samples]
    assert len(trained) == 12 and len({tuple(ids) for ids in trained}) == 12  # each of them once
    assert not hub.trainers["n0"]._loader._thread.is_alive()  # the steps had announced them, so there was one
