"""The page's routes: a login, one page, its state as server-sent events, the operator's actions, and /metrics.

Thin on purpose: access.py checks access, picture.py makes what is shown, the run performs actions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ... import __version__
from ...proto.errors import FarflungError
from .access import FORGERY_HEADER, OPERATOR, Tokens
from .feed import Feed

log = logging.getLogger(__name__)

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_LARGEST = 16 << 10
_KEEPALIVE_S = 15.0


@dataclass(frozen=True)
class Page:
    """What the routes need. ``command(command, node, argument)`` answers with a sentence or raises FarflungError;
    ``join_line()`` is for operators; ``metrics()`` is Prometheus' text; ``closing`` ends the event streams."""

    tokens: Tokens
    feed: Feed
    join_line: Callable[[], str]
    command: Callable[[str, str, str], Awaitable[str]]
    metrics: Callable[[], tuple[bytes, str]]
    closing: asyncio.Event
    _: KW_ONLY
    secure: bool = False
    """Served over TLS, so that the cookie is for TLS only."""
    proved: Callable[[tuple[str, int] | None], None] = lambda end: None
    """Called with the far end of each connection on which a valid token was shown."""


def make_app(page: Page) -> Starlette:
    """The ASGI application."""
    routes = _Routes(page)
    small = [Middleware(GZipMiddleware, minimum_size=2048)]  # not for events, which compression would delay
    return Starlette(
        routes=[
            Route("/", routes.asset, middleware=small),
            Route("/assets/{name}", routes.asset, middleware=small),
            Route("/login", routes.login, methods=["POST"]),
            Route("/logout", routes.logout, methods=["POST"]),
            Route("/me", routes.me),
            Route("/state", routes.state, middleware=small),
            Route("/events", routes.events),
            Route("/join-line", routes.join_line),
            Route("/command", routes.command, methods=["POST"]),
            Route("/metrics", routes.metrics),
            Route("/health", routes.health),
        ],
        middleware=[Middleware(_Headers)],
        exception_handlers={_Malformed: _malformed, Exception: _broken},
    )


class _Malformed(Exception):
    """A request's body is not what it has to be; the text says why."""


class _Routes:
    def __init__(self, page: Page) -> None:
        self.page = page

    def _role(self, request: Request) -> str | None:
        role = self.page.tokens.role_of_request(request.cookies, request.headers.get("authorization", ""))
        if role is not None and request.client is not None:
            self.page.proved((request.client.host, request.client.port))
        return role

    async def asset(self, request: Request) -> Response:
        """The page itself and its files; there is nothing secret in them."""
        name = PurePosixPath(request.path_params.get("name", "index.html")).name
        file = resources.files(__package__) / "assets" / name
        kind = KINDS.get(PurePosixPath(name).suffix)
        if kind is None or not file.is_file():
            return PlainTextResponse("there is no such page\n", 404)
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    async def login(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        token = (await _body(request)).get("token")
        role = self.page.tokens.role_of(token) if isinstance(token, str) else None
        if role is None:
            return _refused(403, "this token opens nothing: copy the whole address that the coordinator printed")
        response = JSONResponse(self._who(role))
        response.set_cookie(
            self.page.tokens.cookie, str(token), httponly=True, samesite="strict", secure=self.page.secure, path="/"
        )
        return response

    async def logout(self, request: Request) -> Response:
        """Forget the cookie."""
        response = Response(status_code=204)
        response.delete_cookie(self.page.tokens.cookie, path="/", httponly=True, samesite="strict")
        return response

    async def me(self, request: Request) -> Response:
        """Who is looking; ``role`` is null before the login."""
        role = self._role(request)
        return JSONResponse(self._who(role) if role else {"role": None}, headers={"cache-control": "no-store"})

    def _who(self, role: str) -> dict[str, Any]:
        who = {"role": role, "run": self.page.tokens.run, "version": __version__}
        return {**who, "action": self.page.tokens.action_word} if role == OPERATOR else who

    async def state(self, request: Request) -> Response:
        """The state once, for scripts."""
        if not self._role(request):
            return _login_first()
        return Response(self.page.feed.state(), media_type="application/json", headers={"cache-control": "no-store"})

    async def events(self, request: Request) -> Response:
        """The state and the curves whenever they change."""
        if not self._role(request):
            return _login_first()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[str]:
        feed, closing = self.page.feed, self.page.closing
        before, seen, silent = "", (-1, 0, 0), 0.0
        while True:
            state = feed.state()
            if state != before:
                curves = feed.curves(*seen)
                rows = len(curves["point_rows"]), len(curves["eval_rows"])
                seen = (curves["edition"], curves["points"] + rows[0], curves["evals"] + rows[1])
                before, silent = state, 0.0
                yield _event("curves", json.dumps(curves)) + _event("state", state)
            elif silent >= _KEEPALIVE_S:
                silent = 0.0
                yield ": still here\n\n"
            if closing.is_set():
                yield _event("end", "{}")
                return
            pause = feed.pause
            silent += pause
            try:
                await asyncio.wait_for(closing.wait(), pause)
            except asyncio.TimeoutError:
                continue

    async def join_line(self, request: Request) -> Response:
        """The line that joins a node; it has a ticket, so only operators see it."""
        if self._role(request) != OPERATOR:
            return _refused(403, "the join line is for operators") if self._role(request) else _login_first()
        return JSONResponse({"line": self.page.join_line()}, headers={"cache-control": "no-store"})

    async def command(self, request: Request) -> Response:
        """An action of the operator."""
        role = self._role(request)
        if role is None:
            return _login_first()
        if not self.page.tokens.may_act(role, request.headers.get(FORGERY_HEADER, "")):
            return _refused(403, "only the operator's page may do this: log in with the operator's token")
        body = await _body(request)
        words = [body.get(key, "") for key in ("command", "node", "argument")]
        if not all(isinstance(word, str) for word in words):
            return _refused(400, "command, node and argument are texts")
        try:
            return JSONResponse({"answer": await self.page.command(*words)})
        except FarflungError as error:
            return _refused(409, error.message, error.hint)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text."""
        if not self._role(request):
            return _login_first()
        text, kind = self.page.metrics()
        return Response(text, headers={"content-type": kind})

    async def health(self, request: Request) -> Response:
        """Answers a supervisor's health check."""
        return PlainTextResponse("ok\n")


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, in which every text can be encoded as UTF-8. Raises _Malformed."""
    found = bytearray()
    try:
        async for chunk in request.stream():
            found += chunk
            if len(found) > _LARGEST:
                raise _Malformed(f"it has more than {_LARGEST} bytes")
    except ClientDisconnect:
        raise _Malformed("it ended before its end") from None
    try:
        body = json.loads(found)
        json.dumps(body, ensure_ascii=False).encode()  # json accepts an unpaired surrogate; UTF-8 does not
    except RecursionError:
        raise _Malformed("it is nested too deeply") from None
    except ValueError:
        raise _Malformed("it is no JSON in UTF-8") from None
    if not isinstance(body, dict):
        raise _Malformed("it is no JSON object")
    return body


async def _malformed(request: Request, error: Exception) -> Response:
    log.warning("refused a request for %s: its body is malformed, %s", request.url.path, error)
    return _refused(400, f"the body of this request is malformed: {error}")


def _refused(status: int, message: str, hint: str = "") -> Response:
    return JSONResponse({"error": message, "hint": hint}, status, headers={"cache-control": "no-store"})


def _login_first() -> Response:
    response = _refused(401, "log in first", "use the token that the coordinator printed at its start")
    response.headers["www-authenticate"] = "Bearer"
    return response


async def _broken(request: Request, error: Exception) -> Response:
    return _refused(500, "this should not happen; the coordinator's log says more")


class _Headers:
    """Adds HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items() if key.encode() not in known]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await self.app(scope, receive, with_headers)
