"""The page of a real run in a real browser: processes that train on this machine, and somebody who watches."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, until
from long_run import long_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """(the process, the page's address for the operator) of a coordinator and two nodes."""
    with long_run(tmp_path) as (process, events, _):
        yield process, next(one["page"] for one in events if one["event"] == "listening")
    assert process.returncode == 130


@pytest.mark.slow
async def test_somebody_watches_a_run(run: tuple[Any, str]) -> None:
    process, address = run
    async with chromium(viewport={"width": 1440, "height": 900}) as (tab, errors):
        await tab.goto(address)
        await until(tab, "document.querySelector('#phase').textContent === 'training'")
        step = "parseInt(document.querySelector('#tiles b').textContent)"
        await until(tab, f"{step} >= 10")
        first = await tab.evaluate(step)
        await until(tab, f"{step} > {first + 5}")
        await until(tab, "document.querySelectorAll('#chart-loss path.line').length === 2")
        await until(tab, "document.querySelectorAll('.split-row').length === 2")
        assert await tab.locator(".map .node").count() == 2
        await until(tab, "document.querySelector('#map').textContent.includes('bit/s')")
        await tab.click("#join")
        await tab.wait_for_selector("#join-dialog[open]")
        assert (await tab.inner_text("#join-line")).startswith("farflung join farflung://")
        await tab.click("#join-close")

        await tab.click("#commands >> text=Pause")
        await tab.click("#act-go")
        await until(tab, "document.querySelector('#phase').textContent === 'paused'")
        await tab.click("#commands >> text=Resume")
        await tab.click("#act-go")
        await until(tab, "document.querySelector('#phase').textContent === 'training'")
        paused = await tab.evaluate(step)
        await until(tab, f"{step} > {paused}")
        assert errors == []

        process.send_signal(signal.SIGINT)
        await until(tab, "!document.querySelector('#away').hidden")
