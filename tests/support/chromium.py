"""A headless Chromium of this machine, driven by Playwright; what it complains about is kept."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
PATIENCE_MS = 60_000


@asynccontextmanager
async def chromium(**context: Any) -> AsyncIterator[tuple[Any, list[str]]]:
    """(a tab, its errors): exceptions, failed requests and what the console calls an error or a warning."""
    api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    errors: list[str] = []
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE_MS)
        tab = await (await browser.new_context(**context)).new_page()
        tab.set_default_timeout(PATIENCE_MS)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        tab.on("requestfailed", lambda request: errors.append(f"{request.url} {request.failure}"))
        try:
            yield tab, errors
        finally:
            await browser.close()


async def until(tab: Any, expression: str) -> None:
    """Waits until a JavaScript expression is true. Playwright's own waiting needs eval, which the page forbids."""
    for _ in range(PATIENCE_MS // 100):
        if await tab.evaluate(expression):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"never true: {expression}; the page says: {await tab.inner_text('body')}")
