"""A node that lost its run joins again by itself, and ends only for what waiting cannot mend."""

import math

import pytest

from farflung.node import agent
from farflung.node.device.limits import Limits, Owner
from farflung.node.device.own_folder import own_folder, writable
from farflung.node.rejoin import FIRST_S, LONGEST_S, SETTLED_S, Backoff, RunOver, mends, told, wait
from farflung.node.training.endings import Stopped, error_of
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import FarflungError, NotNow, Parted, Refused, RunFailed, Unreachable
from farflung.proto.words.link import NO_FINGERPRINT, Link

LINK = Link("127.0.0.1", 1, "abcdef", "number.secret", NO_FINGERPRINT)


def test_pauses_grow_to_a_minute_and_begin_anew_after_a_life_that_lasted():
    backoff = Backoff(chance=lambda: 0.5)
    pauses = [backoff.next(1.0) for _ in range(9)]
    assert pauses[:3] == pytest.approx([FIRST_S, 2 * FIRST_S, 4 * FIRST_S]) and pauses[-1] == pytest.approx(LONGEST_S)
    assert backoff.next(SETTLED_S) == pytest.approx(FIRST_S)
    assert Backoff(chance=lambda: 0.0).next(0.0) == pytest.approx(0.8 * FIRST_S)


@pytest.mark.parametrize(
    ("problem", "new", "was_in"),
    [
        (Parted("its session is over"), True, True),
        (Unreachable("nothing listens there"), False, True),
        (NotNow("unreachable"), False, True),
        (Refused("evicted"), False, False),
        (RunOver("the run is over"), False, False),
        (RunFailed("step 3 cannot be computed"), False, False),
        (FarflungError("another coordinator"), False, False),
    ],
)
def test_what_waiting_mends(problem, new, was_in):
    assert (mends(problem, False), mends(problem, True)) == (new, was_in)


@pytest.mark.parametrize("was_in", [False, True])
def test_an_owner_says_how_long_it_looks(was_in):
    away, full = Unreachable("nothing listens there"), NotNow("the run is full")
    for problem in (away, full):
        assert mends(problem, was_in, math.inf, 1e9) and mends(problem, was_in, 3600.0, 3599.0)
        assert not mends(problem, was_in, 3600.0, 3600.0) and not mends(problem, was_in, 0.0, 0.0)
    assert not mends(Refused("evicted"), was_in, math.inf) and not mends(RunOver("it is over"), was_in, math.inf)
    assert mends(Parted("its session is over"), was_in, 0.0), "the coordinator is there"


def test_the_screen_says_how_long_it_looks():
    away = Unreachable("nothing listens there")
    assert told(away, 4.2, False) == "nothing listens there: this node tries again in 4 s"
    assert "until it is in or you stop it (--patience" in told(away, LONGEST_S, True, math.inf)
    assert told(away, LONGEST_S, True, 1800.0).endswith("under its key in 60 s, and gives up in 30 min (--patience)")


def test_the_coordinator_s_word_that_a_part_is_over_means_another():
    parted = error_of(Stopped(pb.Stop(why="not prepared; join again", failed=True, again=True)))
    assert isinstance(parted, Parted) and parted.status == 4
    assert not isinstance(error_of(Stopped(pb.Stop(why="evicted", refused=True))), Parted)


def test_an_owner_s_hours_end_the_wait():
    times = iter([0.0, 0.0, 0.0, 3600.0 * 9])
    owner = Owner(limits=Limits(hours=8.0), clock=lambda: next(times, 3600.0 * 9))
    wish = wait(100.0, owner, clock=lambda: 0.0)
    assert wish is not None and "8 hours" in wish.why
    assert wait(0.0, owner) is None


@pytest.fixture
def lives(monkeypatch, tmp_path):
    """A node whose lives end as a list says; (exit status, events, names that its lives began with)."""

    def run(*ends, **options):
        ends, names, said = list(ends), [], []

        def live(settings, owner, past, *rest):
            names.append(past.name)
            end = ends.pop(0)
            if isinstance(end, FarflungError):
                if isinstance(end, Parted):
                    past.joined, past.name = True, "lab-3"
                raise end

        monkeypatch.setattr(agent, "live", live)
        monkeypatch.setattr(agent, "obey_signals", lambda owner: None)
        monkeypatch.setattr(agent, "wait", lambda pause, owner: None)
        status = agent.run(LINK, cache=tmp_path, insecure=True, emit=said.append, **options)
        return status, said, names

    return run


def test_it_comes_back_under_its_name_until_the_run_is_done(lives):
    parted, away = Parted("the session of lab-3 is over; join again"), Unreachable("nothing listens there")
    status, said, names = lives(parted, away, NotNow("unreachable at a:1"), parted, 0)
    assert status == 0 and names == ["", *["lab-3"] * 4]
    assert [event["event"] for event in said] == ["warning"] * 4
    assert "is over; join again: this node joins again under its key in 1 s" in said[0]["message"]


def test_it_ends_as_the_run_does(lives):
    status, said, _ = lives(Parted("gone"), RunOver("the run is over"))
    assert status == 0 and said[-1]["event"] == "left" and said[-1]["why"] == "the run is over"


def test_it_ends_when_it_is_put_out_or_another_has_its_key(lives):
    with pytest.raises(Refused):
        lives(Parted("gone"), Refused("lab-3 is in the run already, with this same key"))


def test_a_first_join_that_reaches_nobody_says_so_at_once_and_a_machine_that_was_in_waits(lives, tmp_path):
    with pytest.raises(Unreachable):
        lives(Unreachable("nothing listens there"))
    key = tmp_path / "identity" / LINK.run / "lab-3.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"x")
    assert lives(Unreachable("nothing listens there"), 0)[0] == 0


def test_a_first_join_waits_for_a_coordinator_if_its_owner_says_so(lives):
    away = Unreachable("nothing listens there")
    status, said, _ = lives(away, NotNow("the run is full"), away, 0, patience=math.inf)
    assert status == 0 and len(said) == 3 and all("this node tries again in" in event["message"] for event in said)
    with pytest.raises(Unreachable):
        lives(away, patience=0.0)


def test_a_node_without_a_home_names_what_to_type(monkeypatch, tmp_path):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 123456789)
    with pytest.raises(FarflungError, match="HOME is not set, and user 123456789") as caught:
        own_folder()
    assert "--cache DIR" in caught.value.hint and own_folder(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", "/")
    assert str(own_folder()) == "/.cache/farflung"


def test_a_folder_that_takes_nothing_is_named_before_a_ticket_is_spent(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FarflungError, match="cannot keep its key and data in"):
        writable(tmp_path / "file" / "cache")
    assert writable(tmp_path / "a" / "b").is_dir() and not list((tmp_path / "a" / "b").iterdir())
