"""What a question for a plan counts with; of a thousand nodes as quickly as of one."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st
from membership_script import planner
from planners import measured

from farflung.coordinator.membership.questions import Question
from farflung.coordinator.planning.claims import MOST
from farflung.coordinator.planning.measured import MediansBeside

CLAIMS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 1.0, 2.0, 3.5, 7.0]), max_size=8)


@given(CLAIMS, st.sampled_from("abcdefgh"))
def test_the_median_of_the_others(claimed, name):
    others = [one for other, one in claimed.items() if other != name and one > 0]
    assert MediansBeside(claimed)(name) == (median(others) if others else 0.0)


def test_a_question_of_thousands_of_equal_devices_is_put_at_once():
    """With a median for each of them it would take minutes, in which no heartbeat is heard."""
    names, known = measured(3000)
    asked = known.search(Question(tuple(names), planner(names, None, frozenset()), frozenset()), names, 0.0)
    assert len(asked.devices) == 3000 and {one.tflops for one in asked.devices} == {30.0}


def test_a_claim_counts_beside_the_others():
    names, known = measured(3)
    known.joined("n1", {"kind": "cuda", "description": "another", "tflops": 30_000.0})
    asked = known.search(Question(tuple(names), None, frozenset()), names, 0.0)
    assert [one.tflops for one in asked.devices] == [30.0, MOST * 30.0, 30.0]
