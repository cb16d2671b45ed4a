"""A node holds every view against what its owner was promised, and refuses one that breaks it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_answers import FACTS, JOB

from farflung import compress
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.device.limits import Limits
from farflung.node.promises import REQUIREMENTS, Broken, Promises, required_of, terms
from farflung.proto.control_pb2 import Member, View
from farflung.proto.errors import FarflungError
from farflung.scheduler.plans import Plan

PRIVATE = {"data": {"text": ["mine/*.txt"], "where": "node"}, "parallel": {"stages": 1}}
SECURE = {
    "updates": {"mode": "delta", "codec": "intsgd", "secure": True},
    "parallel": {"stages": 1},
    "train": {"batch": 12, "microbatch": 4},
}


def job_with(**tables):
    raw = json.loads(JOB)
    for name, values in tables.items():
        raw[name] = values if name == "data" else {**raw[name], **values}
    raw.pop("checkpoint")
    return Job.model_validate(raw)


def promises_of(job, *required):
    return Promises("a", job, Facts.model_validate_json(FACTS), required, compress.check)


def view_of(wanted, stages=1, pipelines=2, codecs=None, **changes):
    names = [[f"{'abcdefgh'[one * stages + stage]}" for stage in range(stages)] for one in range(pipelines)]
    shares = [wanted.train.microbatches // pipelines] * pipelines
    shares[0] += wanted.train.microbatches - sum(shares)
    cut = [(stage, stage if stage + 1 < stages else 3) for stage in range(stages)]
    plan = Plan(tuple(map(tuple, names)), tuple(cut), tuple(shares), codecs=codecs or {})
    members = [Member(name=name, session="1") for row in names for name in row]
    return View(**{"number": 7, "plan": plan.to_json(), "members": members, "job": wanted.model_dump_json(), **changes})


def test_an_honest_view_is_taken():
    for job in (job_with(), job_with(**PRIVATE), job_with(**SECURE)):
        promises = promises_of(job)
        promises.check_join()
        plan, same = promises.read_view(view_of(job, pipelines=3 if job.updates.secure else 2))
        assert same == job and "a" in plan.nodes
    job = job_with()
    changed = job.model_copy(update={"train": job.train.model_copy(update={"learning_rate": 0.5})})
    assert promises_of(job).read_view(view_of(changed, stages=2, pipelines=1))[1].train.learning_rate == 0.5
    assert promises_of(job).read_view(view_of(job, job=""))[1] == job


def test_codecs_of_links_are_those_that_the_job_lets_a_plan_choose():
    by_link = job_with(activations={"forward": "int8", "backward": "bf16", "by_link": True})
    for codec in ("none", "bf16", "int8"):
        assert promises_of(by_link).read_view(view_of(by_link, stages=2, pipelines=1, codecs={"a>b": codec}))
    for job, codec in ((by_link, "int2"), (by_link, "nonsense"), (job_with(), "bf16")):
        with pytest.raises(Broken, match="which the job does not allow"):
            promises_of(job).read_view(view_of(job, stages=2, pipelines=1, codecs={"a>b": codec}))


def test_a_plan_chooses_what_the_job_leaves_to_it_and_nothing_else():
    job = job_with(updates={"mode": "delta", "every": "auto"})
    plan = json.loads(view_of(job).plan)

    def read(of, chosen):
        return promises_of(of).read_view(view_of(of, plan=json.dumps({**plan, "chosen": chosen})))

    assert read(job, {"updates.every": 20})[0].chosen == {"updates.every": 20}
    for chosen in (
        {},
        {"updates.every": 0},
        {"updates.every": 10**9},
        {"updates.every": True},
        {"train.recompute": True},
    ):
        with pytest.raises(Broken, match="its plan"):
            read(job, chosen)
    with pytest.raises(Broken, match="does not leave to it"):
        read(job_with(), {"updates.every": 20})


@pytest.mark.parametrize(
    ("trials", "sentence"),
    [
        ([[2, True], [6, True]], "tries train.recompute"),
        ([[2, None], [5, None]], "tries microbatches of 5"),
        ([[0, None]], "tries microbatches of 0"),
        ([[1, None]] * 9, "has 9 trials"),
    ],
)
def test_a_view_tries_only_what_the_job_leaves_open(trials, sentence):
    open_job, chosen = job_with(train={"batch": 12, "microbatch": "auto"}), {"train.microbatch": 2}
    fixed = job_with(train={"batch": 12, "microbatch": 2})
    plan = json.loads(view_of(fixed, pipelines=1).plan)

    def read(of, found, chosen=chosen):
        tried = [{"microbatch": size, "recompute": again, "in_flight": []} for size, again in found]
        tuning = {"trials": tried, "why": "", "broken": 0, "measured": False}
        text = json.dumps({**plan, "chosen": chosen, "tuning": tuning})
        return promises_of(of).read_view(view_of(fixed, plan=text, pipelines=1, job=of.model_dump_json()))

    assert len(read(open_job, [[2, None], [4, None], [1, None]])[0].tuning.trials) == 3
    with pytest.raises(Broken, match=sentence):
        read(open_job, trials)
    with pytest.raises(Broken, match="tries microbatches of 4"):
        read(fixed, [[2, None], [4, None]], {})


def test_a_view_whose_blocks_weights_pass_tries_nothing_that_keeps_them():
    job = job_with(train={"batch": 12, "microbatch": 2, "recompute": "auto", "offload": "auto"})
    fixed = job_with(train={"batch": 12, "microbatch": 2})
    plan = json.loads(view_of(fixed, pipelines=1).plan)
    tried = [{"microbatch": 2, "recompute": again, "in_flight": []} for again in (True, False)]
    tuning = {"trials": tried, "why": "", "broken": 0, "measured": False}

    def read(kind):
        text = json.dumps({**plan, "chosen": {"train.offload": kind, "train.recompute": True}, "tuning": tuning})
        return promises_of(job).read_view(view_of(fixed, plan=text, pipelines=1, job=job.model_dump_json()))

    assert len(read("optimizer")[0].tuning.trials) == 2
    with pytest.raises(Broken, match="does not go with"):
        read("parameters")


@pytest.mark.parametrize(
    ("left", "kind", "tried", "sentence"),
    [
        ("auto", "none", {"offload": "moments"}, ""),
        ("auto", "none", {"offload": "moments", "pieces": [2]}, ""),
        ("auto", "none", {"offload": "optimizer"}, "where the moments lie"),
        ("auto", "optimizer", {"offload": "moments"}, "where the moments lie"),
        ("none", None, {"offload": "moments"}, "where the moments lie"),
        ("auto", "none", {"offload": "moments", "pieces": [3]}, "tries microbatches of 2"),
    ],
)
def test_a_view_tries_other_places_of_moments_only_where_the_job_leaves_them_open(left, kind, tried, sentence):
    job = job_with(train={"batch": 12, "microbatch": 2, "offload": left})
    plan = json.loads(view_of(job_with(train={"batch": 12, "microbatch": 2}), pipelines=1).plan)
    trials = [{"microbatch": 2, "recompute": None, "in_flight": [], **one} for one in ({"offload": kind}, tried)]
    tuning = {"trials": trials, "why": "", "broken": 0, "measured": False}
    text = json.dumps({**plan, "chosen": {"train.offload": kind} if kind else {}, "tuning": tuning})
    view = view_of(job, plan=text, pipelines=1, job=job.model_dump_json())
    if not sentence:
        assert promises_of(job).read_view(view)[0].tuning.trials[1].offload == "moments"
        return
    with pytest.raises(Broken, match=sentence):
        promises_of(job).read_view(view)


def two_stages(job):
    return view_of(job, stages=2)


def other(job, table, **values):
    return job.model_copy(update={table: getattr(job, table).model_copy(update=values)})


@pytest.mark.parametrize(
    ("tables", "view", "sentence"),
    [
        (PRIVATE, two_stages, "its plan has 2 stages, and this node's data are private"),
        (PRIVATE, lambda job: view_of(other(job, "data", where="coordinator")), r"cannot change data\.where"),
        (SECURE, lambda job: view_of(job, pipelines=2), "of 2 members a sum hides nothing"),
        (SECURE, lambda job: view_of(other(job, "updates", secure=False), pipelines=3), r"change updates\.secure"),
        (SECURE, lambda job: view_of(other(job, "updates", codec="int8"), pipelines=3), "does not go with"),
        (SECURE, lambda job: view_of(job, pipelines=3, codecs={"updates": "none"}), "with the codec 'none' they would"),
        (SECURE, lambda job: view_of(other(job, "updates", dense_rounds=3), pipelines=3), r"updates\.dense_rounds"),
        ({}, lambda job: view_of(other(job, "model", build="os:system")), r"cannot change model\.build"),
        ({}, lambda job: view_of(other(job, "run", seed=9)), r"cannot change run\.seed"),
        ({}, lambda job: view_of(job, members=[Member(name="x", session="1")]), "it is another node's"),
        ({}, lambda job: view_of(job, members=[Member(name="a", session="1")]), "its plan names 'b', who is no member"),
        ({}, lambda job: view_of(other(job, "train", batch=80)), r"cannot change train\.batch"),
        ({}, lambda job: view_of(job, plan="{}"), "this is not a plan"),
        ({}, lambda job: view_of(job, plan="[" * 100_000), "view 7 is refused"),
        ({}, lambda job: view_of(job, job='{"run": 1}'), "makes no sense"),
    ],
)
def test_views_that_break_a_promise(tables, view, sentence):
    job = job_with(**tables)
    with pytest.raises(Broken, match=sentence) as caught:
        promises_of(job).read_view(view(job))
    assert caught.value.message.startswith("view 7 is refused: ") and caught.value.status == 3 and caught.value.hint


simple = st.one_of(st.none(), st.integers(), st.floats(), st.text())
anything = st.recursive(simple, lambda inner: st.lists(inner, max_size=3))
KEYS = [*json.loads(Plan((("a",),), ((0, 3),), (2,)).to_json())]


@given(st.dictionaries(st.sampled_from(KEYS), anything))
def test_plans_that_make_no_sense(changes):
    job = job_with()
    plan = {**json.loads(view_of(job).plan), **changes}
    try:
        promises_of(job).read_view(view_of(job, plan=json.dumps(plan)))
    except Broken as problem:
        assert problem.message.isprintable() and problem.message.startswith("view 7 is refused")


def test_what_an_owner_insists_on():
    open_run, private, secure = job_with(), job_with(**PRIVATE), job_with(**SECURE)
    promises_of(private, "private", "no-code", "tls").check_join()
    promises_of(secure, "secure").check_join()
    for word in ("private", "secure", "robust"):
        with pytest.raises(Broken, match=f"join only with '{word}', and in this run") as caught:
            promises_of(open_run, word).check_join()
        assert caught.value.status == 3 and word in caught.value.hint
    code = open_run.model_copy(update={"model": open_run.model.model_copy(update={"build": "os:system"})})
    with pytest.raises(Broken, match="the job calls os:system"):
        promises_of(code, "no-code").check_join()
    assert required_of("private, secure") == {"private", "secure"} and not required_of(None)
    with pytest.raises(FarflungError, match="--require privat: there is no such thing") as caught:
        required_of("privat")
    assert all(word in caught.value.hint for word in REQUIREMENTS)


def test_codecs_of_modules_are_code():
    job = other(job_with(), "updates", codec="mycodecs.halves:steps=3")
    assert job.calls == ["mycodecs.halves:steps=3"] and job.modules == {"mycodecs"} and not job_with().modules
    with pytest.raises(Broken, match=r"the job calls mycodecs\.halves"):
        promises_of(job, "no-code").check_join()
    with pytest.raises(Broken, match=r"if you trust it, join with --allow-code mycodecs"):
        promises_of(job).check_join()
    assert any("calls mycodecs.halves:steps=3 of this machine" in line for line in terms(job))


def test_a_job_that_breaks_the_rules_at_the_join():
    job = other(job_with(**PRIVATE), "parallel", stages=2)
    with pytest.raises(Broken, match=r"breaks a rule: .*needs parallel\.stages = 1"):
        promises_of(job).check_join()


def test_what_the_owner_is_told():
    shown = "\n".join(terms(job_with(**PRIVATE), Limits(upload=20e6, hours=8.0)))
    assert "reads text files of this machine (mine/*.txt, below --data FOLDER)" in shown and "stay here" in shown
    assert "takes at most 20 Mbit/s up, 8 hours" in shown and "activations" not in shown
    shown = "\n".join(terms(job_with(), Limits(), secure_link=False))
    assert "reads no files of this machine" in shown and "activations, from which its samples can be rebuilt" in shown
    assert "has no limits" in shown and "has no TLS" in shown
    assert "masked updates" in "\n".join(terms(job_with(**SECURE)))
