"""The page in a real browser, over a made-up run: it renders, follows the run, acts, and believes nobody."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from chromium import chromium, until

from farflung.coordinator.web.app import make_app
from farflung.coordinator.web.picture import picture
from farflung.coordinator.web.server import PageServer, bind, url_of

EVIL = '<img src="x" onerror="window.broken = 1"><script>window.broken = 2</script>'


@pytest.fixture
async def url(site: Any) -> Any:
    page = dataclasses.replace(site.page, closing=asyncio.Event())
    server = PageServer(make_app(page), bound := bind("127.0.0.1:0"))
    server.start()
    yield url_of(bound, False, "")
    page.closing.set()
    await server.stop()


async def test_somebody_looks(site: Any, url: str) -> None:
    async with chromium(viewport={"width": 1280, "height": 900}, color_scheme="light") as (tab, errors):
        await tab.goto(f"{url}#{site.tokens.viewer}")
        await tab.wait_for_selector(".node-row")
        assert await tab.evaluate("location.hash") == "" and await tab.title() != ""
        assert await tab.inner_text("#name") == "shakespeare-1b" and await tab.inner_text("#phase") == "training"
        assert await tab.locator(".map .node").count() == 6 and await tab.locator(".map .link path").count() == 8
        assert "Held up by\nattic" in await tab.inner_text("#tiles")
        assert await tab.locator("#chart-loss path.line").count() == 2
        assert await tab.locator(".map .link.held").count() == 2
        # A viewer sees no secret and can do nothing.
        assert not await tab.is_visible("#join") and await tab.locator(".node-row button").count() == 0

        # Nothing that a person looks for is cut, and who is gone is still there.
        cut = "[...document.querySelectorAll('.node-row *, .split-row .who, .tile b, #links td')]"
        over = "filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)"
        assert await tab.evaluate(f"{cut}.{over}.length") == 0
        assert "ip-10-2-0-7.us-west-2.compute.internal:4300" in await tab.inner_text("#nodes")
        assert "gone since" in await tab.inner_text(".node-row.gone:has-text('spot-7')")
        assert await tab.inner_text("#nodes-note") == "6 in, 2 not training, 1 gone"
        assert await tab.inner_text("#logout") == "Log out" and not await tab.is_visible("#loading")

        # It follows the run.
        for _ in range(3):
            site.run.train()
        await until(tab, f"document.querySelector('#tiles b').textContent.startsWith('{site.run.step}')")

        # What nodes say is text.
        site.run.store.warnings.add(site.run.now, "attic", EVIL)
        site.run.train()
        await until(tab, "document.querySelector('#warnings').textContent.includes('onerror')")
        assert await tab.evaluate("window.broken") is None and await tab.locator("#warnings img").count() == 0

        # A chosen node's links alone; light and dark; a tip over a curve.
        await tab.click(".map .node[aria-label=attic]")
        assert await tab.inner_text("#links-note") == "of attic"
        before = await tab.evaluate("getComputedStyle(document.body.parentNode).backgroundColor")
        await tab.click("#theme")
        assert await tab.evaluate("getComputedStyle(document.body.parentNode).backgroundColor") != before
        await tab.hover("#chart-loss svg.chart")
        assert "step" in await tab.inner_text("#chart-loss .tip")

        # A telephone: nothing wider than the screen.
        await tab.set_viewport_size({"width": 360, "height": 740})
        await until(tab, "document.documentElement.scrollWidth <= 360")
        assert errors == []


async def test_a_step_unlike_all_others_does_not_set_the_scale(site: Any, url: str) -> None:
    async with chromium(viewport={"width": 1280, "height": 900}) as (tab, errors):
        await tab.goto(f"{url}#{site.tokens.viewer}")
        await tab.wait_for_selector("#chart-time svg")
        draw = """async () => {
          const { chart, smoothed } = await import("./assets/charts.js");
          const host = document.getElementById("chart-speed");
          const odd = { 0: 900, 30: 5000 };
          const rows = Array.from({ length: 60 }, (_, at) => [at + 1, odd[at] ?? 10 + (at % 3)]);
          chart(host, [{ name: "x", color: "c1", points: rows }], { from: 0, steady: true });
          const ticks = [...host.querySelectorAll("text.end")].map((one) => Number(one.textContent));
          return [Math.max(...ticks), smoothed(rows)[30][1]];
        }"""
        highest, smooth = await tab.evaluate(draw)
        assert highest < 30 and smooth <= 12
        assert errors == []


async def test_one_node_alone_has_no_link_to_measure(site: Any, url: str) -> None:
    async with chromium(viewport={"width": 1280, "height": 900}) as (tab, _):

        async def only_attic(route: Any) -> None:
            state = {**feed, "nodes": [one for one in feed["nodes"] if one["node"] == "attic"], "links": []}
            body = f"event: state\ndata: {json.dumps(state)}\n\n"
            await route.fulfill(status=200, headers={"content-type": "text/event-stream"}, body=body)

        feed = json.loads(json.dumps(picture(site.run.record(), [], [])))
        await tab.route("**/events", only_attic)
        await tab.goto(f"{url}#{site.tokens.viewer}")
        await tab.wait_for_selector(".node-row")
        assert await tab.inner_text("#links") == "Only one node is here, so there is no link."


async def test_the_operator_acts(site: Any, url: str) -> None:
    site.run.offered = ["pause", "drain", "evict"]
    before = len(site.commands)
    async with chromium(viewport={"width": 1280, "height": 900}) as (tab, errors):
        await tab.goto(url)
        await tab.fill("#token", "nonsense")
        await tab.press("#token", "Enter")
        await until(tab, "document.querySelector('#login-error').textContent !== ''")
        for _ in range(600):
            if errors:
                break
            await asyncio.sleep(0.1)
        [refusal] = errors  # the browser itself says that a request was refused
        assert "403" in refusal
        errors.clear()
        await tab.fill("#token", site.tokens.operator)
        await tab.press("#token", "Enter")
        await tab.wait_for_selector(".node-row")

        await tab.click("#join")
        await tab.wait_for_selector("#join-dialog[open]")
        assert await tab.inner_text("#join-line") == "farflung join farflung://x"
        await tab.click("#join-close")

        await tab.click(".node-row:has(.who:has-text('attic')) >> text=Drain")
        assert "Let attic leave?" in await tab.inner_text("#act-dialog")
        assert len(site.commands) == before  # not before it is confirmed
        await tab.click("#act-go")
        await tab.wait_for_selector("#toast:not([hidden])")
        assert await tab.inner_text("#toast") == "attic is asked to leave"
        assert site.commands[before:] == [("drain", "attic", "")]
        assert errors == []

        # Who was put out may come back.
        site.run.offered = ["pause", "readmit"]
        site.run.store.put("evicted", json.dumps({"spot-7": {"key": "", "why": "evicted by alice"}}))
        await tab.click("#views li.gone:has-text('spot-7') >> text=Readmit")
        assert "Let spot-7 join again?" in await tab.inner_text("#act-dialog")
        await tab.click("#act-go")
        await until(tab, "document.querySelector('#act-dialog').open === false")
        assert site.commands[before + 1 :] == [("readmit", "spot-7", "")]

        await tab.reload()  # the cookie is enough
        await tab.wait_for_selector(".node-row")
        await tab.click("#logout")
        await tab.wait_for_selector("#login:not([hidden])")
