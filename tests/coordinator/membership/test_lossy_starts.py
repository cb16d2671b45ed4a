"""Groups that start while every tenth message between the nodes and the coordinator is lost: one view each, no split.

This is the membership machine with nodes that follow its orders, in simulated time. A message is never lost silently
in a stream: the stream breaks with it, the node connects again and says which view it has, and what had not arrived is
said again.
"""

import random
from dataclasses import dataclass, field

import pytest
from membership_script import Script

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import TRAINING

NAMES = "abcd"
LOSS = 0.1
CONNECT_AGAIN_S = 1.0
PATIENCE_S = 200.0


@dataclass
class Starter:
    """A node that answers every order; ``unheard``: what it has said and nobody has received yet."""

    name: str
    joined: bool = False
    connected: bool = False
    back_at: float = 0.0
    view: int = 0
    trains: int = 0
    inbox: list = field(default_factory=list)
    unheard: list = field(default_factory=list)

    def take(self, order):
        life = (self.name, self.name + "1")
        if isinstance(order, s.SendMeasure):
            self.unheard.append(s.Measured(*life))
        elif isinstance(order, s.SendFlush):
            self.unheard.append(s.Flushed(*life, order.view, 0, 0))
        elif isinstance(order, s.SendView):
            self.view = order.view.number
            self.unheard.append(s.Prepared(*life, order.view.number))
        elif isinstance(order, s.SendStart):
            self.trains = order.view


class LossyStart:
    """All messages between a coordinator and four nodes, some of them lost."""

    def __init__(self, seed):
        self.script, self.chance = Script(), random.Random(seed)
        self.nodes = {name: Starter(name, back_at=self.chance.random()) for name in NAMES}
        self.views, self.lost = {}, 0

    def loses(self, node):
        if self.chance.random() >= LOSS:
            return False
        self.lost += 1
        node.connected, node.inbox, node.back_at = False, [], self.script.now + CONNECT_AGAIN_S
        if node.joined:
            self.feed(s.StreamEnded(node.name, node.name + "1", "lost"))
        return True

    def feed(self, event):
        self.script(event)
        for effect in self.script.effects:
            if isinstance(effect, s.SendView):
                self.views[effect.view.number] = effect.view
            if isinstance(effect, s.Dial):  # it lives, and its port answers
                self.feed(s.Dialled(effect.name, effect.session, True, ""))
            elif isinstance(effect, (s.SendMeasure, s.SendFlush, s.SendView, s.SendStart)):
                for name in (effect.to,) if isinstance(effect.to, str) else effect.to:
                    if self.nodes[name].connected:
                        self.nodes[name].inbox.append(effect)

    def connect(self, node):
        if not node.joined:
            if self.loses(node):
                return
            self.feed(s.Joined(node.name, node.name + "1", ""))
            node.joined = True
        if self.loses(node):
            return
        node.connected = True
        self.feed(s.Hello(node.name, node.name + "1", node.view))

    def turn(self):
        """Half a second of everybody's messages, in a random order."""
        for node in self.chance.sample(list(self.nodes.values()), len(self.nodes)):
            if not node.connected and self.script.now >= node.back_at:
                self.connect(node)
            while node.connected and node.inbox and not self.loses(node):
                node.take(node.inbox.pop(0))
            while node.connected and node.unheard and not self.loses(node):
                self.feed(node.unheard.pop(0))
            if node.connected and not self.loses(node):
                self.feed(s.Heard(node.name, node.name + "1"))
        self.script.now += 0.5
        self.feed(s.Tick())

    def run(self):
        while self.script.now < PATIENCE_S and any(not node.trains for node in self.nodes.values()):
            self.turn()
        return self


@pytest.mark.parametrize("block", range(5))
def test_a_group_that_starts_under_loss_forms_one_view(block):
    lost = 0
    for seed in range(10 * block, 10 * block + 10):
        start = LossyStart(seed).run()
        assert start.script.state.phase == TRAINING, (seed, start.script.state.why)
        assert {node.trains for node in start.nodes.values()} == {1}, seed
        assert list(start.views) == [1] and sorted(start.views[1].plan.nodes) == list(NAMES), seed
        lost += start.lost
    assert lost >= 20
