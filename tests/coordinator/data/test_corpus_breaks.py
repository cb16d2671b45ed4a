"""A file of tokens that cannot be read while a run needs it: nodes wait for its place, and end where it was changed."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import fsspec
import grpc
import numpy as np
import pytest

from farflung.coordinator.data.artifacts import Artifacts
from farflung.coordinator.data.corpus.index import index_tokens
from farflung.coordinator.serve.calls.joining import Identity
from farflung.coordinator.serve.calls.service import CoordinatorService
from farflung.job.schema import Job
from farflung.node.io.to_coordinator import artifacts as node_artifacts
from farflung.node.peers.traffic import Traffic
from farflung.proto.connections import rpc
from farflung.proto.errors import FarflungError, RunFailed

NAME, TOKENS = "memory:///breaks/a.bin", "data/tokens"


@asynccontextmanager
async def a_node_of(state, patience):
    """A node's side of the artifacts of a coordinator that reads NAME."""
    job = Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 64},
            "data": {"tokens": [NAME], "validation": 0.0},
        }
    )
    artifacts = Artifacts({TOKENS: index_tokens(job, 256, "uint8", 64, state).path})
    context = SimpleNamespace(store=None, checkpoints=None)
    run = SimpleNamespace(context=context, sessions=SimpleNamespace(knows=lambda *session: True))
    server = grpc.aio.server(options=rpc.server_options())
    rpc.add_CoordinatorServicer_to_server(CoordinatorService(run, artifacts, Identity("r", None, state)), server)
    port = rpc.bind(server, "127.0.0.1:0", None)
    await server.start()
    metadata = rpc.session_metadata("a", "1", "s")
    node = node_artifacts.Artifacts(f"127.0.0.1:{port}", rpc.Credentials(), metadata, Traffic(), patience)
    try:
        yield node
    finally:
        await node.close()
        await server.stop(0)


@pytest.fixture
def tokens():
    found = (np.arange(100_000) ** 2 % 251).astype("<u2").tobytes()
    fsspec.filesystem("memory").pipe_file("/breaks/a.bin", found)
    return found


def test_a_place_that_does_not_answer_is_waited_for(tmp_path, tokens, monkeypatch):
    memory = type(fsspec.filesystem("memory"))
    read, tries = memory.cat_file, []

    async def scenario():
        async with a_node_of(tmp_path, 60.0) as node:
            wanted = await node.fetch(TOKENS, 0, 1000)

            def cut_off(self, path, start=None, end=None, **more):
                tries.append(start)
                if len(tries) < 3:
                    raise ConnectionError("no route to the store")
                return read(self, path, start, end, **more)

            monkeypatch.setattr(memory, "cat_file", cut_off)
            assert await node.fetch(TOKENS, 0, 1000) == wanted and len(tries) == 3

    asyncio.run(scenario())


def test_a_place_that_stays_away_is_named(tmp_path, tokens, monkeypatch):
    def cut_off(*_, **__):
        raise ConnectionError("no route to the store")

    async def scenario():
        async with a_node_of(tmp_path, 0.1) as node:
            await node.describe(TOKENS)
            monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", cut_off)
            with pytest.raises(RunFailed, match=r"cannot fetch data/tokens: tried for 0 s.*no route to the store"):
                await node.fetch(TOKENS, 0, 1000)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("content", "how"),
    [
        (lambda raw: b"\7\0" + raw[2:], "piece 0 has other tokens"),
        (lambda raw: b"\7\7" + raw[2:], "has the token 1799"),
        (lambda raw: raw[:1000], "it ends at byte 1000"),
        (lambda raw: None, "it is gone"),
    ],
)
def test_a_file_that_was_replaced_ends_the_node_at_once(tmp_path, tokens, content, how):
    store = fsspec.filesystem("memory")

    async def scenario():
        async with a_node_of(tmp_path, 3600.0) as node:
            await node.fetch(TOKENS, 0, 1000)
            store.rm_file("/breaks/a.bin")
            if raw := content(tokens):
                store.pipe_file("/breaks/a.bin", raw)
            with pytest.raises(FarflungError) as caught:
                await node.fetch(TOKENS, 0, 1000)
            assert caught.value.status == 4 and how in caught.value.message
            assert f"data.tokens: {NAME} was changed since the run began" in caught.value.message

    asyncio.run(scenario())


def test_a_range_that_is_refused_of_a_file_that_shrank(tmp_path, tokens, monkeypatch):
    """As S3 does it: 416, where local files give fewer bytes."""
    store = fsspec.filesystem("memory")

    def refuses(*_, **__):
        raise OSError("The requested range is not satisfiable")

    async def scenario():
        async with a_node_of(tmp_path, 3600.0) as node:
            await node.describe(TOKENS)
            store.pipe_file("/breaks/a.bin", tokens[:1000])
            monkeypatch.setattr(type(store), "cat_file", refuses)
            with pytest.raises(FarflungError, match="was changed since the run began: it has another size"):
                await node.fetch(TOKENS, 0, 1000)

    asyncio.run(scenario())
