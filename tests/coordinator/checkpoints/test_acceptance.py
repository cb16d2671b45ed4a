"""Which files of checkpoints are taken: a member that sends others ruins nothing."""

import json
from dataclasses import replace

import pytest
from coordinator_process import pairs
from tensor_files import stage_file, tensor_file

from farflung.coordinator.checkpoints.acceptance import MOMENTS, NotAccepted, expected, finished, tensors_of
from farflung.coordinator.checkpoints.tensor_header import look_into
from farflung.coordinator.membership.signals import Announcement, Member
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.data.sampling import Position
from farflung.job.schema import Job
from farflung.node.state.optimizers.make_optimizer import make_optimizer

JOB = {
    "run": {"steps": 400},
    "model": {"family": "gpt2", "layers": 2, "width": 8, "heads": 2, "context": 16},
    "data": {"text": ["text.txt"]},
    "train": {"batch": 8, "microbatch": 2},
    "checkpoint": {"every": 100},
}
SIZES = (300, 40, 40, 280)
FIRST, SECOND = "stage-0.safetensors", "stage-1.safetensors"


def job_of(**tables):
    return Job.model_validate({**JOB, **{name: {**JOB.get(name, {}), **table} for name, table in tables.items()}})


def facts_of(tied=False):
    layers = [
        LayerProfile(name=f"layer {at}", parameters=size, flops_per_sample=1.0, activation_elements_per_sample=1)
        for at, size in enumerate(SIZES)
    ]
    profile = Profile(layers=layers, tied=tied, family="gpt2")
    fields = {"samples": 50, "validation_samples": 0, "context": 16, "vocabulary": 32, "token_dtype": "uint8"}
    return Facts(**fields, steps=400, tokens_digest="", artifacts={}, profile=profile)


def view(number, names="abcd", step=0, **changes):
    plan = pairs(list(names), None, frozenset())  # a and d keep
    members = tuple(Member(name, f"{name}-1", "127.0.0.1:1") for name in names)
    return Announcement(number, plan, members, Position(step, step * 8), **changes)


def ask(views, sender, step, file, reached=400, number=0, job=None, last=400):
    return expected(
        views,
        job or job_of(),
        facts_of(),
        reached,
        last,
        (sender, f"{sender}-1"),
        step=step,
        file=file,
        view=number,
    )


def refusal(*words, **keys):
    with pytest.raises(NotAccepted) as caught:
        ask(*words, **keys)
    return caught.value


def test_only_from_the_keeper_for_a_finished_step_that_is_due():
    views = [view(1)]
    wanted = ask(views, "a", 100, FIRST)
    assert (wanted.view, wanted.files, wanted.cursor) == (1, 2, 800)
    assert ask(views, "d", 400, SECOND).step == 400, "the last step is due"
    for sender, step, file, why in (
        ("b", 100, FIRST, "b keeps no file"),
        ("a", 100, SECOND, "a keeps no file"),
        ("a", 100, "stage-00.safetensors", "a keeps no file"),
        ("e", 100, FIRST, "e is in no view"),
        ("a", 150, FIRST, "no checkpoint is due at step 150"),
        ("a", 199_999, FIRST, "the run ends with step 400"),
    ):
        assert why in refusal(views, sender, step, file).why
    far = refusal(views, "a", 200, FIRST, reached=130)
    assert "step 200 was not finished in view 1" in far.why and far.early
    with pytest.raises(NotAccepted, match="keeps no file"):
        expected(views, job_of(), facts_of(), 400, 400, ("a", "an older life"), step=100, file=FIRST)


def test_a_view_that_is_over_keeps_what_it_finished():
    views = [view(1), view(2, "bcda", 200)]  # of view 2 b and a keep
    assert ask(views, "d", 100, SECOND).view == 1
    assert ask(views, "d", 200, SECOND, number=1).view == 1, "its own last step"
    both = [view(1), view(2, step=200)]
    assert ask(both, "a", 200, FIRST).view == 2 and ask(both, "a", 200, FIRST, number=1).cursor == 1600
    late = refusal(views, "d", 300, SECOND)
    assert "was not finished in view 1" in late.why and not late.early
    assert "keeps no file" in refusal(views, "d", 300, SECOND, number=2).why


def test_delta_mode_may_have_to_settle_first():
    job = job_of(updates={"mode": "delta", "every": 10, "overlap": 2})
    assert ask([view(2, step=200)], "a", 213, FIRST, job=job).cursor == 213 * 8
    assert "is due" in refusal([view(2, step=200)], "a", 270, FIRST, job=job).why


def test_a_step_is_finished_when_others_say_so_too():
    plan, job = view(1).plan, job_of()
    assert finished(plan, 7, {}, job) == 7
    assert finished(plan, 0, {"a": 10**9}, job) == 0
    assert finished(plan, 0, {"a": 10**9, "b": 50, "c": 51}, job) == 50
    assert finished(plan, 0, dict.fromkeys("abcd", 60), job) == 60
    two = view(1, "ab").plan
    assert finished(two, 0, {"a": 10**9, "b": 3}, job) == 3
    delta = job_of(updates={"mode": "delta", "every": 10})
    assert finished(plan, 0, {"a": 10**9, "b": 50, "c": 50}, delta) == 80, "pipelines may be a round or two apart"


def test_what_a_file_says_of_the_stream_is_what_the_plan_gives():
    wanted = ask([view(1)], "a", 100, FIRST)
    assert wanted.complaint(2, {"view": 1, "step": 100, "cursor": 800, "redo": [], "optimizer_steps": 100}) == ""
    assert wanted.complaint(2, {"cursor": 800, "loss_scale": [65536.0, 99, 1]}) == ""
    for said in (
        {"cursor": 2**60},
        {"cursor": 800, "view": 2},
        {"cursor": 800, "step": 90},
        {"cursor": 800, "redo": [800]},
        {"cursor": 800, "redo": [0] * 801},
        {"cursor": 800, "redo": "x"},
        {"cursor": 800, "optimizer_steps": 2**60},
        {"cursor": 800, "loss_scale": 65536.0},
        {"cursor": 800, "loss_scale": [3.0, 0, 0]},
        {"cursor": 800, "loss_scale": ["x", 0, 0]},
        {"cursor": 800, "loss_scale": [65536.0, 0, 2**60]},
    ):
        assert wanted.complaint(2, said), said
    assert "has 2 files, not 1" in wanted.complaint(1, {"cursor": 800})


def test_the_files_that_nodes_write(tmp_path):
    """The names and the sizes of the two rooms agree."""
    for name, moments in MOMENTS.items():
        train = {"optimizer": name, "momentum": 0.9 if name == "sgd" else 0.0}
        assert make_optimizer(job_of(train=train)).moments == moments
    wanted = tensors_of(job_of(train={"moments": "bf16"}), facts_of(), view(1).plan, 0)
    assert wanted.kinds == {"": "F32", "optimizer.m.": "BF16", "optimizer.v.": "BF16"} and wanted.most == 340
    outer = "nesterov:lr=0.7,momentum=0.9"
    secure = job_of(updates={"mode": "delta", "secure": True, "codec": "intsgd", "outer": outer})
    assert set(tensors_of(secure, facts_of(), view(1).plan, 0).kinds) == {"", "optimizer.outer."}
    tied = tensors_of(job_of(), facts_of(tied=True), view(1).plan, 1)
    assert (tied.least, tied.most) == (40, 320)


def test_a_file_holds_what_the_plan_gives_its_stage(tmp_path):
    wanted, path = tensors_of(job_of(), facts_of(), view(1).plan, 0), tmp_path / "file"

    def wrong(data):
        path.write_bytes(data)
        return look_into(path, wanted)[0]

    good = stage_file({"x": 300, "y": 40})
    assert wrong(good) == "" and len(good) <= wanted.most_bytes + 500
    prefixes = ("", "optimizer.m.", "optimizer.v.")
    whole = {prefix + "x": ("F32", 340) for prefix in prefixes}
    for data, why in (
        (b"x" * 100, "no safetensors file"),
        (good[:-1], "where its header says"),
        (good + b"x", "where its header says"),
        (good[:8] + b"[" + good[9:], "damaged header"),
        (stage_file({"x": 300}), "has 300 weights, where the plan's stage has 340"),
        (stage_file({"x": 340}, ("m",)), "other tensors under 'optimizer.v.'"),
        (stage_file({"x": 340}, ("m", "v", "w")), "has 680 weights"),
        (tensor_file({**whole, "optimizer.m.x": ("BF16", 340)}), "as BF16, not F32"),
        (tensor_file({**whole, "x": ("F32", 10), "y": ("F32", 330)}), "other tensors under"),
        (json.dumps({}).encode().rjust(8), "no safetensors file"),
    ):
        assert why in wrong(data), why
    overlap = {"x": {"dtype": "F32", "shape": [340], "data_offsets": [0, 1360]}}
    words = json.dumps({**overlap, "y": overlap["x"]}).encode()
    assert "overlap" in wrong(len(words).to_bytes(8, "little") + words + bytes(1360))
    deep = b"[" * 100_000
    assert "damaged" in wrong(len(deep).to_bytes(8, "little") + deep)
    own = replace(wanted, kinds={"": "F32"}, own=2)
    path.write_bytes(stage_file({"x": 300, "y": 40}, ("exp_avg", "exp_avg_sq")))
    assert look_into(path, own)[0] == ""
    path.write_bytes(stage_file({"x": 340}, ("1", "2", "3")))
    assert "3 kinds" in look_into(path, own)[0]


def test_factored_moments_are_a_row_and_a_column(tmp_path):
    wanted, path = tensors_of(job_of(train={"optimizer": "adafactor"}), facts_of(), view(1).plan, 0), tmp_path / "file"

    def wrong(rows_and_columns):
        shapes = {"w": (30, 10), "b": (40,), "optimizer.v.w": rows_and_columns, "optimizer.v.b": (40,)}
        path.write_bytes(tensor_file({name: ("F32", shape) for name, shape in shapes.items()}))
        return look_into(path, wanted)[0]

    assert wrong((40,)) == ""
    for other in ((30, 10), (300,), (39,), (1, 40)):
        assert "other tensors under 'optimizer.v.'" in wrong(other)
