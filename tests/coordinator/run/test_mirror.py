"""Whatever goes wrong as checkpoints are carried is said when it happens, and the next ones are carried too."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from farflung.coordinator.run.durability import mirror as module
from farflung.coordinator.run.durability.mirror import Mirror
from farflung.coordinator.store.engines.database import LeaseLost


class Target:
    url = "s3://there"

    def __init__(self, errors):
        self.errors, self.uploaded = list(errors), []

    def upload(self, folder, step, check):
        if self.errors:
            raise self.errors.pop(0)
        self.uploaded.append(step)

    def prune(self, keep, step):
        pass

    def steps(self):
        return self.uploaded

    def address(self, step):
        return f"{self.url}/{step}"


class Checkpoints:
    folder = "here"

    def steps(self):
        return [4]

    def held(self, step):
        return contextlib.nullcontext("here/4")

    def path(self, step):
        return "here/4"


def mirror_to(target, warnings):
    checkpoints = SimpleNamespace(all=list, put=lambda row: None)
    store = SimpleNamespace(put=lambda *_: None, server=None, checkpoints=checkpoints)
    context = SimpleNamespace(
        store=store,
        checkpoints=Checkpoints(),
        emit=lambda event: None,
    )
    return Mirror(target, 3, set(), context, lambda node, message: warnings.append(message), lambda: None)


async def test_it_outlives_any_error_and_says_it(monkeypatch, eventually):
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.01)
    warnings, target = [], Target([KeyError("ETag"), OSError(5, "Input/output error")])
    mirror = mirror_to(target, warnings)
    async with mirror.working():
        mirror.wake()
        await eventually(lambda: target.uploaded == [4])
    assert len(warnings) == 1, "once, until it works again"
    assert warnings[0].startswith("carrying a checkpoint to s3://there failed: KeyError: 'ETag'; training goes on")


async def test_who_does_not_lead_carries_nothing(monkeypatch):
    mirror = mirror_to(Target([LeaseLost("another leads")]), [])
    async with mirror.working():
        mirror.wake()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(asyncio.shield(mirror._task), 60)
