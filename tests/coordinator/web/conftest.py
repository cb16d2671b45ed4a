"""The page over a made-up run, without a socket; and what an operator and a viewer send."""

import asyncio
from collections.abc import Iterator

import pytest
from made_up_run import MadeUpRun
from starlette.testclient import TestClient

from farflung.coordinator.observe.metrics import Counts, registry_of, text_of
from farflung.coordinator.web.access import FORGERY_HEADER, Tokens
from farflung.coordinator.web.app import Page, make_app
from farflung.coordinator.web.feed import Feed
from farflung.proto.errors import Refused

TOKENS = Tokens("5f2c9a01d3e7b864", "the-viewer's", "the-operator's")


class Site:
    """``anybody``, ``viewer`` and ``operator`` are clients; ``commands`` what the run was told."""

    def __init__(self, run: MadeUpRun) -> None:
        self.run, self.commands, self.tokens = run, [], TOKENS
        feed = Feed(run)
        registry = registry_of(lambda: feed.record, Counts(), run.observed)
        self.page = Page(
            TOKENS,
            feed,
            lambda: "farflung join farflung://x",
            self._command,
            lambda: text_of(registry),
            asyncio.Event(),
        )
        self.app = make_app(self.page)
        self.anybody, self.viewer, self.operator = self.client(), self.client("viewer"), self.client("operator")

    def client(self, role: str = "") -> TestClient:
        client = TestClient(self.app, base_url="http://127.0.0.1:7071")
        if role:
            assert client.post("/login", json={"token": getattr(TOKENS, role)}).status_code == 200
        return client

    async def _command(self, command: str, node: str, argument: str) -> str:
        if node == "nobody":
            raise Refused("there is no node nobody", "farflung status shows who is in")
        self.commands.append((command, node, argument))
        return f"{node} is asked to leave"

    @property
    def action(self) -> dict[str, str]:
        return {FORGERY_HEADER: TOKENS.action_word}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield Site(MadeUpRun(tmp_path_factory.mktemp("run"), steps=120))
