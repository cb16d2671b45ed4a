"""The routes over HTTP: what each may be asked by whom, and what comes back."""

import asyncio
import dataclasses
import json
import re
import ssl
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest

from farflung.coordinator.trust.authority import load_authority
from farflung.coordinator.web.access import FORGERY_HEADER, write_certificate
from farflung.coordinator.web.app import make_app
from farflung.coordinator.web.server import PageServer, bind, url_of
from farflung.proto.errors import FarflungError

ASSETS = Path(__file__).parents[3] / "coordinator" / "web" / "assets"


def test_the_page_is_whole_and_works_offline(site: Any) -> None:
    page = site.anybody.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    wanted += [
        f"assets/{name}" for file in ASSETS.glob("*.js") for name in re.findall(r'from "\./(.+?)"', file.read_text())
    ]
    assert len(wanted) >= 5
    for name in wanted:
        assert site.anybody.get(f"/{name}").status_code == 200, name
    for file in ASSETS.iterdir():
        text = file.read_text()
        assert not re.search(r"(?:src|href|url\(|import|from)\s*[=(]?\s*[\"']?(?:https?:)?//", text), file.name
        assert "innerHTML" not in text and "eval(" not in text, file.name
    assert " style=" not in page.text and "onclick=" not in page.text and "<script>" not in page.text


def test_the_browser_is_told_to_trust_nothing_else(site: Any) -> None:
    for path in ("/", "/assets/page.js", "/me", "/nothing"):
        headers = site.anybody.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/../access.py", "/%2e%2e/access.py", "/assets/..%2faccess.py", "/assets/access.py"])
def test_only_assets_are_served(site: Any, path: str) -> None:
    assert site.anybody.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/state", "/events", "/join-line", "/metrics"])
def test_nothing_without_a_login(site: Any, path: str) -> None:
    refused = site.anybody.get(path)
    assert refused.status_code == 401 and refused.json()["error"] == "log in first"
    assert site.anybody.post("/command", json={}).status_code == 401


def test_login_sets_a_cookie_that_scripts_cannot_read(site: Any) -> None:
    answer = site.client().post("/login", json={"token": site.tokens.viewer})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and site.tokens.run in cookie
    assert answer.json()["role"] == "viewer" and "action" not in answer.json()
    for wrong in ({"token": "guess"}, {"token": 7}, {}):
        assert site.client().post("/login", json=wrong).status_code == 403


MALFORMED = {
    "a lone surrogate": rb'{"token": "\ud800"}',
    "a lone surrogate as a name": rb'{"\udfff": 1}',
    "nested arrays": b'{"token": ' + b"[" * 8000 + b"]" * 8000 + b"}",
    "nested arrays without an end": b"[" * 16_000,
    "no UTF-8": b'{"token": "\xff\xfe"}',
    "a number of 10,000 digits": b'{"token": ' + b"9" * 10_000 + b"}",
    "an array": b"[]",
    "nothing": b"",
    "too long": b"x" * 100_000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_body_is_refused_with_one_line(site: Any, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    word = {FORGERY_HEADER: site.tokens.action_word}
    for client, path in ((site.client(), "/login"), (site.operator, "/command")):
        caplog.clear()
        answer = client.post(path, content=body, headers=word)
        assert answer.status_code == 400 and "malformed" in answer.json()["error"]
        told = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert len(told) == 1 and len(told[0].getMessage()) < 200 and told[0].exc_info is None


def test_logout(site: Any) -> None:
    client = site.client("viewer")
    assert client.get("/me").json()["role"] == "viewer"
    client.post("/logout")
    assert client.get("/me").json() == {"role": None} and client.get("/state").status_code == 401


def test_the_join_line_is_for_operators(site: Any) -> None:
    assert site.operator.get("/join-line").json() == {"line": "farflung join farflung://x"}
    assert site.viewer.get("/join-line").status_code == 403
    assert "farflung://" not in site.viewer.get("/state").text


def test_state_is_what_the_page_draws(site: Any) -> None:
    state = site.viewer.get("/state").json()
    assert state["run"]["name"] == "shakespeare-1b" and state["run"]["phase"] == "training"
    assert [node["node"] for node in state["nodes"]][:2] == ["frankfurt-1", "frankfurt-2"]
    assert state["bottleneck"]["node"] == "attic"


def test_actions(site: Any) -> None:
    body = {"command": "drain", "node": "attic", "argument": ""}
    answer = site.operator.post("/command", json=body, headers=site.action)
    assert answer.json() == {"answer": "attic is asked to leave"} and site.commands == [("drain", "attic", "")]
    refused = site.operator.post("/command", json={**body, "node": "nobody"}, headers=site.action)
    assert refused.status_code == 409
    assert refused.json() == {"error": "there is no node nobody", "hint": "farflung status shows who is in"}
    assert site.operator.post("/command", json={**body, "node": 3}, headers=site.action).status_code == 400
    assert len(site.commands) == 1


def test_another_site_cannot_act(site: Any) -> None:
    """With the cookie but without the word that only the page knows; nor can a viewer, even with the word."""
    before = len(site.commands)
    body = {"command": "evict", "node": "attic"}
    assert site.operator.post("/command", json=body).status_code == 403
    assert site.operator.post("/command", data=body).status_code == 403
    assert site.viewer.post("/command", json=body, headers=site.action).status_code == 403
    assert site.operator.get("/command").status_code == 405
    assert len(site.commands) == before


def test_a_script_uses_the_token(site: Any) -> None:
    bearer = {"authorization": f"Bearer {site.tokens.viewer}"}
    assert "farflung_step " in site.anybody.get("/metrics", headers=bearer).text
    assert site.anybody.get("/metrics", headers={"authorization": "Bearer no"}).status_code == 401
    assert site.anybody.get("/health").text == "ok\n"


async def test_events_come_as_the_run_goes_on(site: Any) -> None:
    """Over a real socket: the whole at first, then what is new, then the end."""
    page = dataclasses.replace(site.page, closing=asyncio.Event())
    server = PageServer(make_app(page), bound := bind("127.0.0.1:0"))
    server.start()
    url = url_of(bound, False, "")
    assert url.startswith("http://127.0.0.1:")
    headers = {"authorization": f"Bearer {site.tokens.viewer}"}
    seen: list[tuple[str, Any]] = []
    try:
        async with (
            httpx2.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("GET", url + "events", headers=headers) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    seen.append((kind, json.loads(line[6:])))
                    if kind == "state" and len(seen) == 2:
                        site.run.train()
                    elif kind == "state":
                        page.closing.set()
    finally:
        await server.stop()
    assert [kind for kind, _ in seen] == ["curves", "state", "curves", "state", "end"]
    first, second = seen[0][1], seen[2][1]
    assert len(first["point_rows"]) > 100 and len(second["point_rows"]) == 2
    assert second["point_rows"][-1][0] == site.run.step == seen[3][1]["run"]["step"]


def test_beyond_loopback_it_is_tls(site: Any, tmp_path: Path) -> None:
    """With the run's own certificate, which names the coordinator, and a cookie for TLS only."""
    authority = load_authority(tmp_path / "identity")
    files = write_certificate(tmp_path, authority.certificate, authority.key)
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o600
    page = dataclasses.replace(site.page, secure=True)

    async def ask() -> httpx2.Response:
        server = PageServer(make_app(page), bound := bind("127.0.0.1:0"), files)
        server.start()
        trusted = ssl.create_default_context(cafile=files[0])
        try:
            async with httpx2.AsyncClient(verify=trusted, timeout=60, trust_env=False) as client:
                url = url_of(bound, True, "")
                body, name = {"token": site.tokens.operator}, {"sni_hostname": "coordinator"}
                return await client.post(url + "login", json=body, extensions=name)
        finally:
            await server.stop()

    answer = asyncio.run(ask())
    assert answer.status_code == 200 and "secure" in answer.headers["set-cookie"].lower()


def test_addresses() -> None:
    with bind(None) as first, bind(None) as second:
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        first.listen()
        taken = f"127.0.0.1:{first.getsockname()[1]}"
        with pytest.raises(FarflungError, match="the port is taken") as caught:
            bind(taken)
        assert "--page" in caught.value.hint
    with bind("0.0.0.0:0") as wide:
        assert url_of(wide, True, "203.0.113.9").startswith("https://203.0.113.9:")
    with pytest.raises(FarflungError, match="--page"):
        bind("nonsense")


def test_stopping_before_a_request(site: Any) -> None:
    async def life() -> None:
        server = PageServer(make_app(site.page), bind("127.0.0.1:0"))
        server.start()
        await asyncio.sleep(0)
        await asyncio.wait_for(server.stop(), 20)

    asyncio.run(life())
