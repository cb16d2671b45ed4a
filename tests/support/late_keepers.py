"""Keepers of stages that are asked for their stage before they have begun to load it."""

from farflung.node.training.trainer import Trainer


def install(monkeypatch, plan):
    keepers, take_up = {plan.keeper(stage) for stage in range(len(plan.stages))}, Trainer._take_up

    def late(trainer, *place):
        if trainer.name in keepers:
            for _ in range(20):
                trainer.pump(0.05)
        return take_up(trainer, *place)

    monkeypatch.setattr(Trainer, "_take_up", late)
