"""A coordinator that attacks the machine of a volunteer: nothing outside the node's own folder changes."""

import contextlib
import json
import socket
from io import StringIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from join_answers import DEVICE, FACTS, JOB, RUN, TICKET
from stub_coordinator import StubCoordinator

from farflung.cli.own_data import _tokenizer_of
from farflung.cli.screen.output import Output
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens, disk_for_tokens
from farflung.node.data.streamed import StreamedTokens
from farflung.node.join import join
from farflung.node.promises import read_facts, read_job
from farflung.proto.control_pb2 import Holder, JoinReply, Member, View
from farflung.proto.errors import FarflungError
from farflung.proto.words.border import below
from farflung.proto.words.link import NO_FINGERPRINT, Link
from farflung.scheduler.plans import Plan

WAY_OUT = "x/../../../.bashrc.d"
GOOD = {"name": "swift-otter", "session": "s1", "secret": "hush", "job": JOB, "facts": FACTS}
NASTY = [
    WAY_OUT,
    "../../.bashrc.d",
    "/etc/cron.d/x",
    "..",
    "a\0b",
    "a\nb",
    "\x1b]0;owned\x07\x1b[2J",
    "\ud800",
    "~/.ssh/authorized_keys",
    "a" * (1 << 20),
    "-rf",
]


def home_at(folder):
    """A home folder with what an attacker likes to write or remove, and the node's own folder in it."""
    (folder / ".bashrc.d").mkdir(parents=True)
    (folder / ".bashrc.d" / "mine.sh").write_text("echo mine")
    (folder / ".ssh").mkdir()
    (folder / ".cache" / "farflung").mkdir(parents=True)
    return folder


def outside(home):
    """Everything below a home folder that is not the node's own."""
    own = home / ".cache" / "farflung"
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in home.rglob("*")
        if path != own and own not in path.parents
    }


@pytest.mark.parametrize(("what", "secure"), [("name", True), ("digest", True), ("name", False)])
def test_a_real_node_and_a_coordinator_that_wants_to_write_into_its_home(tmp_path, authority, nursery, secure, what):
    home = home_at(tmp_path / "home")
    before = outside(home)
    with contextlib.closing(StubCoordinator((authority.certificate, authority.key) if secure else None)) as stub:
        said = dict(GOOD)
        if what == "digest":
            facts = {**json.loads(FACTS), "tokens_digest": f"{WAY_OUT}/../{WAY_OUT}", "samples": 4}
            said["facts"] = json.dumps(facts)
        else:
            said[what] = WAY_OUT
        stub.join_reply = JoinReply(**said)
        stub.artifacts = {"data/tokens": b"#!/bin/sh\necho owned\n" * 100}
        link = Link("127.0.0.1", stub.port, RUN, TICKET, authority.fingerprint if secure else NO_FINGERPRINT)
        words = ["join", "--device", "cpu", *([] if secure else ["--insecure"])]
        done = nursery.run(*words, HOME=str(home), FARFLUNG_LINK=str(link))
        assert len(stub.joins) == 1 and set(stub.kinds()) <= {"hello", "heartbeat", "goodbye"}, "it may say why it goes"
    assert done.returncode == 3, done.stderr
    assert "is no " in done.stderr and "leave this run" in done.stderr and "Traceback" not in done.stderr
    assert outside(home) == before


def all_that_a_node_writes(stub, cache):
    """What a node does on its disk with an answer to its join."""
    joined = join(Link("127.0.0.1", stub.port, RUN, TICKET), DEVICE, cache=cache)

    def fetch(name, offset=0, length=64):
        return b"x" * (length or 64)

    pieces = below(cache, f"pieces-{RUN}-{joined.name}")
    disk_for_tokens(joined.job, joined.facts, cache, pieces, 1 << 20)
    _tokenizer_of(
        joined.job.model_copy(update={"data": joined.job.data.model_copy(update={"tokenizer": "t"})}),
        joined.facts,
        fetch,
        cache,
    )
    streamed = StreamedTokens(joined.facts, lambda *asked: lambda: fetch(*asked), pieces, 1 << 20, print)
    streamed.batch([0])
    Tokens(joined.facts, fetch, cache)


nasty = st.one_of(st.sampled_from(NASTY), st.text("./\\\0\n\x1b~a", max_size=12), st.text(max_size=30))
STRINGS = ["name", "session", "secret", "refused", "job", "facts"]
IN_FACTS = ["tokens_digest", "token_dtype", "artifacts"]


@given(where=st.sampled_from([*STRINGS, *IN_FACTS]), text=nasty)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_answers_to_a_join(stub, tmp_path_factory, where, text):
    home = home_at(tmp_path_factory.mktemp("home") / "alice")
    before = outside(home)
    facts = {**json.loads(FACTS), "tokens_digest": "ab" * 32, "samples": 4, "validation_samples": 0}
    if where == "artifacts":
        facts[where] = {text: "ab" * 32, "tokenizer/tokenizer.json": text}
    elif where in IN_FACTS:
        facts[where] = text
    said = {**GOOD, "facts": json.dumps(facts)}
    if where in STRINGS:
        try:
            text.encode()
        except UnicodeEncodeError:
            return  # no message carries it
        said[where] = text
    stub.join_reply = JoinReply(**said)
    screen = StringIO()
    try:
        all_that_a_node_writes(stub, home / ".cache" / "farflung")
    except FarflungError as problem:
        Output(stderr=screen).fail(problem)
    assert outside(home) == before
    assert not set(screen.getvalue()) & set("\0\x1b\x07\ud800") and "this should not happen" not in screen.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"sets": [["own", 5]]},
        {"sets": [["own", -1]], "artifacts": {"data/eval": "0" * 64}},
        {"sets": [["own", 1]] * 65, "artifacts": {"data/eval": "0" * 64}},
        {"artifacts": {"data/../x": "0" * 64}},
    ],
)
def test_evaluation_sets_that_make_no_sense(changes):
    with pytest.raises(FarflungError):
        read_facts(json.dumps({**json.loads(FACTS), **changes}))


@pytest.fixture(scope="module")
def stub():
    with contextlib.closing(StubCoordinator()) as made:
        yield made


@given(st.dictionaries(st.sampled_from([*json.loads(FACTS), "x"]), st.one_of(nasty, st.floats(), st.integers())))
def test_facts_that_make_no_sense(changes):
    with contextlib.suppress(FarflungError):
        read_facts(json.dumps({**json.loads(FACTS), **changes}))
    with contextlib.suppress(FarflungError):
        read_job(json.dumps({**json.loads(JOB), **changes}))


PRIVATE_JOB = Job.model_validate(
    {
        "run": {"name": "small", "steps": 4},
        "model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 2, "context": 32},
        "data": {"text": ["*.txt"], "where": "node", "validation": 0.1},
        "train": {"batch": 8, "microbatch": 4},
        "parallel": {"stages": 1},
    }
)
LAYERS = [
    LayerProfile(name=name, parameters=9000, flops_per_sample=1e6, activation_elements_per_sample=1024)
    for name in ("embedding", "block 0", "block 1", "head")
]


def test_a_plan_that_would_show_a_private_text_is_refused_and_nothing_is_sent(tmp_path, nursery):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("nobody may know of this. " * 400)
    facts = Facts.model_validate_json(FACTS).model_copy(
        update={"samples": 32, "profile": Profile(layers=LAYERS, tied=True, family="gpt2")}
    )
    said = {**GOOD, "job": PRIVATE_JOB.model_dump_json(), "facts": facts.model_dump_json()}
    with contextlib.closing(StubCoordinator()) as stub, socket.create_server(("127.0.0.1", 0)) as neighbour:
        stub.join_reply = JoinReply(**said)
        link = Link("127.0.0.1", stub.port, RUN, TICKET, NO_FINGERPRINT)
        home, files = home_at(tmp_path / "home"), (tmp_path / "out", tmp_path / "errors")
        words = ["join", "--insecure", "--device", "cpu", "--data", str(mine)]
        node = nursery.start(*words, out=files[0], errors=files[1], HOME=str(home), FARFLUNG_LINK=str(link))
        stub.wait("hello")
        plan = Plan((("swift-otter", "thief"),), ((0, 0), (1, 3)), (2,), why="two are faster")
        port = neighbour.getsockname()[1]
        members = [
            Member(name="swift-otter", session="s1", address=stub.joins[0].address),
            Member(name="thief", session="s2", address=f"127.0.0.1:{port}"),
        ]
        holders = [Holder(layer=layer) for layer in range(4)]
        stub.order(view=View(number=1, plan=plan.to_json(), members=members, holders=holders, job=said["job"]))
        node.wait()
        out, err = (file.read_text() for file in files)
        goodbye = stub.wait("goodbye")[0].why
        neighbour.settimeout(0.2)
        with pytest.raises(TimeoutError):
            neighbour.accept()
        heard = b"".join(report.SerializeToString() for report in stub.reports)
    assert node.returncode == 3, err
    assert "view 1 is refused: its plan has 2 stages, and this node's data are private" in err
    assert goodbye.startswith("view 1 is refused: its plan has 2 stages")
    assert b"nobody may know" not in heard and "prepared" not in stub.kinds()
    assert "reads text files of this machine (*.txt, below --data FOLDER); they and their tokens stay here" in out


def test_a_run_that_is_not_what_an_owner_insists_on(tmp_path, nursery):
    with contextlib.closing(StubCoordinator()) as stub:
        stub.join_reply = JoinReply(**GOOD)
        link = Link("127.0.0.1", stub.port, RUN, TICKET, NO_FINGERPRINT)
        words = ["--insecure", "--device", "cpu", "--require", "private,no-code"]
        done = nursery.run("join", *words, HOME=str(tmp_path), FARFLUNG_LINK=str(link))
        assert done.returncode == 3, done.stderr
        goodbye = stub.wait("goodbye")[0].why
    assert "this node is to join only with 'private', and in this run the coordinator has the data" in done.stderr
    assert goodbye.startswith("this node is to join only with 'private'")


def test_who_is_told_a_job_that_is_none_says_goodbye(tmp_path):
    with contextlib.closing(StubCoordinator()) as stub:
        stub.join_reply = JoinReply(**{**GOOD, "job": "nonsense"})
        with pytest.raises(FarflungError, match="the coordinator's job makes no sense"):
            join(Link("127.0.0.1", stub.port, RUN, TICKET, NO_FINGERPRINT), DEVICE, "", "", tmp_path)
        assert "the coordinator's job makes no sense" in stub.wait("goodbye")[0].why
