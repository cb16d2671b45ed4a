"""Reports of steps that the machine gets together change what the same reports would change one by one."""

from hypothesis import given
from hypothesis import strategies as st
from membership_script import Script

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.members import altered, replace
from farflung.coordinator.membership.state import Node

REPORTS = st.lists(
    st.tuples(st.sampled_from("abcdx"), st.integers(0, 2), st.integers(0, 9), st.floats(0, 1e3), st.floats(0, 5)),
    max_size=12,
)


@given(REPORTS)
def test_together_or_one_by_one(reports):
    alone, together, finished = Script().started(), Script().started(), []
    for name, view, step, seconds, later in reports:
        event = s.StepFinished(name, name + "1", view, step, seconds)
        alone(event, dt=later)
        finished.append((event, alone.now))
    together(s.Steps(tuple(finished)), dt=alone.now - together.now)
    assert together.state == alone.state


def test_a_step_proves_that_its_node_is_there():
    script = Script().started()
    script(s.Steps(((s.StepFinished("a", "a1", 1, 1, 0.5), script.now + 2.0),)), dt=2.0)
    assert script.state.nodes["a"].heard == script.now and script.state.reported == {"a": 1}
    script(s.Steps(((s.StepFinished("a", "another life", 1, 2, 0.5), script.now),)))
    assert script.state.reported == {"a": 1}


def test_a_node_altered_is_a_node_replaced():
    node = Node("a", "a1", "a:1", 3.0)
    assert altered(node, heard=4.0, stuck="why") == replace(node, heard=4.0, stuck="why")
    assert node.heard == 3.0
