"""A stage's sections are of whole parameters, as even as can be, and depend on the model alone."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from windows import facts_of

from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.state.sections.cut import SECTIONS, even, sections_of_a_stage
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan, section_parameters
from farflung.proto.words.sections import TIED, piece_of, section_of, stage_of
from farflung.scheduler import Plan

PLAN = Plan((("a", "b"), ("c", "d")), ((0, 2), (3, 5)), (1, 1))
FACTS = facts_of(samples=8, validation=1, context=16, vocabulary=97, steps=1)


def job_of(**job) -> Job:
    model = {"family": "gpt2", "layers": 4, "width": 32, "heads": 4, "context": 16}
    return Job.model_validate({"model": model, "data": {"text": ["none.txt"]}, "train": {"batch": 2}, **job})


@given(st.lists(st.integers(1, 1 << 40), max_size=40), st.integers(1, 12))
def test_heaps_are_even(sizes, count):
    heaps = even(sizes, count)
    assert len(heaps) == count and sorted(index for heap in heaps for index in heap) == list(range(len(sizes)))
    assert all(heap == sorted(heap) for heap in heaps)
    sums = [sum(sizes[index] for index in heap) for heap in heaps]
    # No heap exceeds another by more than its own smallest entry: moving that one would not help.
    for one, heap in zip(sums, heaps, strict=True):
        assert not heap or one - min(sums) <= min(sizes[index] for index in heap)
    assert sorted(map(bool, heaps), reverse=True) == list(map(bool, heaps))


def test_a_stage_has_sections_only_where_islands_hold_pieces():
    assert sections_of_a_stage(job_of()) == 1
    assert sections_of_a_stage(job_of(parallel={"inside": "fsdp"})) == SECTIONS
    definition = model_of(job_of(), FACTS)
    whole = section_parameters(definition, PLAN, (0,))
    cut = section_parameters(definition, PLAN, (0,), SECTIONS)
    assert list(whole) == [section_of(0), TIED] and list(cut) == [*(section_of(0, n) for n in range(SECTIONS)), TIED]
    assert sorted(chain.from_iterable(cut.values())) == sorted(chain.from_iterable(whole.values()))
    assert {stage_of(name) for name in section_parameters(definition, PLAN, (1,), SECTIONS)} == {0, 1}  # tied: 0
    assert [piece_of(name) for name in cut] == [*range(SECTIONS), 0] and piece_of(section_of(3)) == 0


def test_each_member_publishes_its_part_of_a_stage_although_each_section_is_one_block():
    job, last = job_of(updates={"pattern": "publishers", "block": 1 << 20}), section_of(1, 7)
    plan = Plan(tuple((f"a{n}", f"b{n}") for n in range(4)), PLAN.stages, (1,) * 4)
    published = []
    for name, names in section_parameters(model_of(job, FACTS), plan, (1,), SECTIONS).items():
        if name != TIED:
            layout = Layout.of(name, {one: model_of(job, FACTS).shapes[one] for one in names})
            (part,) = round_plan(plan, layout, job.updates).parts
            published.append(part.publisher)
    assert sorted(published) == sorted([f"b{n}" for n in range(4)] * 2) and last == "stage-1.7"
