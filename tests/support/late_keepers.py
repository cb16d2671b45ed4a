"""Keepers of stages that are asked for their stage before they have begun to load it."""

from farflung.node.training.view_change import ViewChange


def install(monkeypatch, plan):
    keepers, take_up = {plan.keeper(stage) for stage in range(len(plan.stages))}, ViewChange.take_up

    def late(change, *place):
        context = change._holdings.context
        if context.name in keepers:
            for _ in range(20):
                context.pump(0.05)
        return take_up(change, *place)

    monkeypatch.setattr(ViewChange, "take_up", late)
