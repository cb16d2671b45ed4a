"""What nodes make of edited views is the whole view, whatever was lost on the way."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.coordinator.membership.view_orders import ViewOrders
from farflung.node.io.to_coordinator.packed_views import PackedViews
from farflung.proto import control_pb2 as pb
from farflung.proto.messages.delta import KEPT


def view(number, names):
    members = [pb.Member(name=name, session=f"{name}-session", address=f"{name}.example.org:7070") for name in names]
    holders = [pb.Holder(layer=layer, nodes=names[layer::4]) for layer in range(4)]
    return pb.View(number=number, plan=f'{{"pipelines": {[names]}}}', members=members, holders=holders, step=number)


def hello(node, session="a-1"):
    return pb.Hello(session=session, holds=node.newest)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_edited_views_equal_whole_views(seed):
    """Nodes whose streams break, which miss orders, do not prepare, and a coordinator that starts again."""
    chance, orders = random.Random(seed), ViewOrders()
    nodes = {f"s{number}": PackedViews() for number in range(4)}
    for session, node in nodes.items():
        orders.attend(session, hello(node, session))
    names = [f"n{number}" for number in range(60)]
    for number in range(1, 15):
        names = chance.sample(names, len(names) - 1) if chance.random() < 0.2 else names[:-1]
        whole = view(number, names)
        if chance.random() < 0.1:
            orders = ViewOrders()
            for session, node in nodes.items():
                orders.attend(session, hello(node, session))
        for session, node in nodes.items():
            fate = chance.random()
            if fate < 0.15:  # its stream broke: the order is lost, and it comes back
                orders.order(session, pb.Order(term=2, view=whole))
                orders.attend(session, hello(node, session))
                continue
            order = orders.order(session, pb.Order(term=2, view=whole))
            assert order.term == 2 and node.open(pb.Order.FromString(order.SerializeToString()).packed) == whole
            if fate < 0.3:
                again = orders.order(session, pb.Order(term=2, view=whole))  # said again
                assert node.open(again.packed) == whole
            if fate < 0.9:
                orders.prepared(session, number)


def test_a_view_without_one_node_is_small():
    orders, node = ViewOrders(), PackedViews()
    names = [f"n{number}" for number in range(1000)]
    orders.attend("a-1", hello(node))
    first = orders.order("a-1", pb.Order(view=view(1, names)))
    node.open(first.packed)
    orders.prepared("a-1", 1)
    second = orders.order("a-1", pb.Order(view=view(2, names[:500] + names[501:])))
    assert second.packed.base == 1 and second.ByteSize() < 500 < view(2, names).ByteSize() / 100


def test_who_says_nothing_gets_whole_views():
    orders = ViewOrders()
    orders.attend("a-1", pb.Hello(session="a-1"))
    order = pb.Order(view=view(1, ["a"]))
    assert orders.order("a-1", order) is order and orders.order("nobody", order) is order


def test_a_node_far_behind_gets_the_whole():
    orders, node = ViewOrders(), PackedViews()
    orders.attend("a-1", hello(node))
    node.open(orders.order("a-1", pb.Order(view=view(1, ["a"]))).packed)
    orders.prepared("a-1", 1)
    orders.attend("b-1", pb.Hello(session="b-1", holds=0))
    for number in range(2, 2 + KEPT):
        orders.order("b-1", pb.Order(view=view(number, ["a", "b"])))
    order = orders.order("a-1", pb.Order(view=view(2 + KEPT, ["a"])))
    assert order.packed.base == 0 and node.open(order.packed) == view(2 + KEPT, ["a"])


def test_what_cannot_be_made_whole_is_refused_and_asked_for_anew():
    orders, node = ViewOrders(), PackedViews()
    orders.attend("a-1", hello(node))
    node.open(orders.order("a-1", pb.Order(view=view(1, ["a"]))).packed)
    with pytest.raises(ValueError, match="does not have"):
        node.open(pb.PackedView(number=3, base=2))
    assert node.newest == 0  # the next hello says so
    orders.attend("a-1", hello(node))
    order = orders.order("a-1", pb.Order(view=view(2, ["a"])))
    order.packed.digest = b"12345678"
    with pytest.raises(ValueError, match="another than the coordinator's"):
        node.open(order.packed)


def test_a_node_that_never_prepares_keeps_no_more_than_the_coordinator():
    orders, node = ViewOrders(), PackedViews()
    orders.attend("a-1", hello(node))
    for number in range(1, 3 * KEPT):
        whole = view(number, ["a", "b", f"c{number}"])
        assert node.open(orders.order("a-1", pb.Order(view=whole)).packed) == whole
    assert len(node._bytes) == KEPT and node.newest == number
