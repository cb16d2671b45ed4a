"""Pictures of the web page in a real browser, and of a terminal: ``python -m benchmarks.page_pictures OUT``.

Shows a made-up run of six nodes, the same at every call; docs/page-*.png and docs/status.svg come from here.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from made_up_run import MadeUpRun
from PIL import Image
from playwright.async_api import Browser, async_playwright
from rich.console import Console

from farflung.cli.one_run.watch import screen_of
from farflung.coordinator.web.access import Tokens
from farflung.coordinator.web.app import Page, make_app
from farflung.coordinator.web.feed import Feed
from farflung.coordinator.web.server import PageServer, bind

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SHOTS = (("light", 1440, 1330, "light"), ("dark", 1440, 1330, "dark"), ("phone", 390, 844, "light"))


async def pictures(out: Path, browser_path: str) -> None:
    """Write page-light.png, page-dark.png, page-phone.png and status.svg."""
    tokens = Tokens("5f2c9a01d3e7b864", "viewer", "operator")
    with tempfile.TemporaryDirectory() as folder:
        run = MadeUpRun(Path(folder))
        svg = terminal(run.record())
        await asyncio.to_thread((out / "status.svg").write_text, svg)
        run.offered = ["pause", "drain", "evict"]
        closing = asyncio.Event()

        async def command(command: str, node: str, argument: str) -> str:
            return f"{command} {node}"

        page = Page(tokens, Feed(run), lambda: "farflung join farflung://...", command, lambda: (b"", ""), closing)
        bound = bind("127.0.0.1:0")
        server = PageServer(make_app(page), bound)
        server.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/#{tokens.operator}"
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
            for name, width, height, scheme in SHOTS:
                await shot(browser, url, out / f"page-{name}.png", width, height, scheme)
            await browser.close()
        closing.set()
        await server.stop()


def terminal(record: dict[str, Any]) -> str:
    """`farflung status --watch` as SVG, with whatever monospaced font there is: nothing is loaded from elsewhere."""
    console = Console(record=True, width=132, file=io.StringIO())
    console.print(screen_of(record))
    drawn = console.export_svg(title="farflung status LINK --watch")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


async def shot(browser: Browser, url: str, path: Path, width: int, height: int, scheme: str) -> None:
    """One picture of the page."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    tab = await context.new_page()
    tab.on("console", lambda message: print(path.name, message.type, message.text))
    tab.on("pageerror", lambda error: print(path.name, error))
    await tab.goto(url)
    await tab.wait_for_selector(".node-row")
    await tab.wait_for_timeout(700)
    await tab.screenshot(path=path)
    await context.close()
    # Few colours: a fifth of the size, and nothing that an eye would miss.
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("out", type=Path)
    words.add_argument("--browser", default="/usr/bin/chromium")
    given = words.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(pictures(given.out, given.browser))
