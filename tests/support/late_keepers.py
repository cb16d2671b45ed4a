"""Keepers of stages that are asked for their stage before they have begun to load it."""

from farflung.node.training.changes.placement import Placement


def install(monkeypatch, plan):
    keepers, take_up = {plan.keeper(stage) for stage in range(len(plan.stages))}, Placement.take_up

    def late(placement, *place):
        context = placement._holdings.context
        if context.name in keepers:
            for _ in range(20):
                context.pump(0.05)
        return take_up(placement, *place)

    monkeypatch.setattr(Placement, "take_up", late)
