"""A codec of one's own: one file, one line that registers it, one golden file; and gone again."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import golden_blobs as golden
import numpy as np
import pytest
import torch
from windows import Windows, facts_of

from farflung import compress
from farflung.cli import codecs as cli
from farflung.cli.jobs.codecs_of_a_job import check_codec
from farflung.compress import CodecError, ddp
from farflung.compress.exchange.phases import Context, Gather, Program, Reduce
from farflung.compress.exchange.simulation import run as run_programs
from farflung.compress.specs import registry
from farflung.compress.specs.spec import bits_of
from farflung.compress.stateful.feedback import Feedback
from farflung.job.schema import Job
from farflung.scheduler import Plan
from farflung.scheduler.workloads.codecs import bits_of as planned_bits
from farflung.testing.loopback import Hub

ROOT = Path(__file__).resolve().parents[2]
FILE = '''
import torch
from farflung import compress
from farflung.compress.codec import bytes_tensor, tensor_bytes


@compress.register
class Eighths(compress.Codec):
    """Equal steps up to the largest, nearest: the example of this test."""

    declaration = compress.declare(
        "eighths", 200, "equal steps, one scale",
        bits=lambda values, count: 8 * count + 32,
        traits=compress.Traits(feedback=True),
        parameters=(
            compress.Parameter("steps", 8, "on each side of zero", 1, 127),
            compress.Parameter("feedback", False, "keep what was not sent"),
        ),
    )

    def write(self, x, key):
        top = x.abs().max()
        steps = self.spec.number("steps")
        level = (x / torch.where(top > 0, top, 1.0) * steps).round()
        return [tensor_bytes(top.view(1)), tensor_bytes(level.to(torch.int8))]

    def read(self, reader, header, device):
        top, steps = reader.float32(), self.spec.number("steps")
        level = bytes_tensor(reader.take(header.elements), torch.int8, device).float()
        return level / steps * top
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module mycodecs, which registers a codec when it is imported; forgotten afterwards."""
    (tmp_path / "mycodecs.py").write_text(FILE)
    monkeypatch.setattr(registry, "_allowed", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("mycodecs", None)
    if "eighths" in compress.names():
        compress.unregister("eighths")


def test_one_file_one_line_and_one_golden_file_add_a_codec_and_take_it_away(own: Path) -> None:
    before = {spec: golden.made(spec) for spec in ("int8", "eden")}
    names, x = compress.names(), golden.vector()
    with pytest.raises(CodecError, match="--allow-code mycodecs"):
        compress.make("mycodecs.eighths")
    compress.allow(["mycodecs"])
    codec = compress.make("mycodecs.eighths:steps=16")  # the line of a job; the module is imported by it
    assert compress.names() == [*names, "eighths"] and compress.make("eighths:steps=16") is codec
    blob = codec.encode(x.view(15, 20))
    assert compress.decode(blob).shape == (15, 20) and len(blob) * 8 <= bits_of("eighths:steps=16", 300) + 64
    total, into = torch.ones(300), torch.empty(300)
    compress.add(blob, total, 0.5)
    compress.decode_into(blob, into)
    assert torch.equal(total, 1 + into * 0.5) and compress.norm(blob, 300) == pytest.approx(float(into.norm()))
    compress.check("mycodecs.eighths", "update")
    with pytest.raises(CodecError, match="biased"):
        compress.check("eighths", "gradient")
    assert compress.check("eighths:feedback=true", "gradient").flag("feedback")
    assert compress.simulate("mycodecs.eighths", [x, 2 * x]).bytes_up[0] > 300
    row = cli.measure("mycodecs.eighths", size=1000, trials=2, allow_code=("mycodecs",))
    assert row["codec"] == "eighths" and 8 < row["bits"] < 9
    assert {row["codec"] for row in cli.table()} == {*names, "eighths"}
    file = own / "eighths.json"
    golden.write("eighths", file)
    golden.check("eighths", file)
    for place in range(4, len(blob)):  # as of every codec: a changed byte is a CodecError
        with pytest.raises(CodecError):
            compress.decode(blob[:place] + bytes([blob[place] ^ 0x55]) + blob[place + 1 :])
    compress.unregister("eighths")
    assert compress.names() == names and {spec: golden.made(spec) for spec in before} == before
    with pytest.raises(CodecError, match="no codec 'eighths'"):
        compress.make("eighths")
    with pytest.raises(CodecError, match="codec number 200"):
        compress.decode(blob)


def test_it_carries_a_hook_feedback_and_the_rounds_of_a_job(own: Path, nobody_late: None) -> None:
    """What --allow-code does at a node is ``compress.allow``: the rest of a run takes any codec."""
    compress.allow(["mycodecs"])
    parameter = torch.nn.Parameter(torch.zeros(300))
    state, x = ddp.State("mycodecs.eighths:steps=100"), golden.vector()
    bucket = SimpleNamespace(buffer=lambda: x, parameters=lambda: [parameter], index=lambda: 0, is_last=lambda: True)
    assert (state.submit(bucket).wait() - x).norm() < 0.05 * x.norm()
    assert Feedback("mycodecs.eighths").begin({"w": x}).blobs["w"]
    job = Job.model_validate(
        {
            "run": {"name": "own", "seed": 3, "steps": 3},
            "model": {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": 2, "learning_rate": 1e-3, "warmup_steps": 1},
            "updates": {"mode": "delta", "codec": "mycodecs.eighths:steps=100", "dense_rounds": 0},
            "checkpoint": {"every": 0},
        }
    )
    calls: list[int] = []
    kind = registry.KINDS["eighths"]
    write = kind.write
    kind.write = lambda self, x, key: (calls.append(len(x)), write(self, x, key))[1]
    facts = facts_of(samples=20, validation=4, context=8, vocabulary=29, steps=3)
    hub, plan = Hub(job, facts), Plan(pipelines=(("a",), ("b",)), stages=((0, 2),), microbatches=(1, 1))
    for name in plan.nodes:
        hub.start(name, Windows(facts))
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors and len(outcome.losses) == 3 and calls


def test_the_coordinator_runs_no_module_for_a_codec(own: Path) -> None:
    check_codec("mycodecs.eighths", "update")  # the nodes check it
    assert planned_bits("mycodecs.eighths:steps=16") == 32 and "mycodecs" not in sys.modules


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mycodecs.tenths", "registers no codec 'tenths'"),
        ("broken.eighths", "can't be imported: ZeroDivisionError"),
        ("farflung.compress.eden", "join with --allow-code farflung.compress"),
    ],
)
def test_what_a_module_does_not_give_is_said(own: Path, spec: str, words: str) -> None:
    (own / "broken.py").write_text("1 / 0")
    compress.allow(["mycodecs", "broken"])
    with pytest.raises(CodecError, match=words):
        compress.parse(spec)


def test_names_and_numbers_are_of_one_codec() -> None:
    plain = compress.make("sign").__class__
    for name, number, words in (
        ("int8", 200, "'int8' has that already"),
        ("mine", 3, "128 to 255"),
        ("my.codec", 200, "letters, digits"),
    ):
        with pytest.raises(CodecError, match=words):
            declaration = compress.declare(name, number, "", bits=lambda values, count: count)
            compress.register(type("Mine", (plain,), {"declaration": declaration}))
    with pytest.raises(CodecError, match="no codec to register"):
        compress.register(dict)
    with pytest.raises(CodecError, match="no codec 'int8' was registered"):
        compress.unregister("int8")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1.0, 2.0], "list: torch.tensor"),
        (np.ones(3, np.float32), "numpy ndarray: torch.from_numpy"),
        (torch.arange(3), r"torch.int64: x.float\(\)"),
        ("abc", "not a str"),
    ],
)
def test_what_is_no_tensor_is_refused_in_words(x: object, words: str) -> None:
    doors = [
        compress.make("int8").encode,
        lambda x: compress.simulate("int8", [x]),
        lambda x: compress.decode_into(b"", x),
    ]
    for door in doors if isinstance(x, (str, list)) else [*doors, lambda x: compress.measure("int8", tensor=x)]:
        with pytest.raises(CodecError, match=words):
            door(x)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match=r"add adds to|contiguous fp32"):
        compress.add(b"", x)  # type: ignore[arg-type]


def test_a_tensor_is_measured_where_it_is() -> None:
    x = torch.randn(4, 256)
    row = compress.measure("int8", tensor=x, workers=2, trials=2)
    assert row["vector"] == "tensor" and row["size"] == 1024 and 0 < row["nmse"] < 1e-3
    assert compress.nmse("int8", x.view(-1), trials=2)[2] == row["bits"]


def all_reduce(x: torch.Tensor, context: Context) -> Program:
    """docs/codecs.md's own all-reduce: the largest is agreed on, then everybody's 8-bit codes are gathered."""
    top = yield Reduce(x.abs().max().view(1), "max")
    scale = top.clamp(min=1e-30) / 127
    codes = (x / scale).round().to(torch.int8)
    answers = yield Gather(codes.numpy().tobytes(), context.weight)
    total = torch.zeros_like(x)
    for blob, weight in answers:
        total += torch.frombuffer(bytearray(blob), dtype=torch.int8) * scale * weight
    return total


def test_ones_own_all_reduce_is_ten_lines() -> None:
    x = [torch.randn(100) for _ in range(3)]
    programs = [all_reduce(one, Context(rank=rank, size=3)) for rank, one in enumerate(x)]
    results, up, _, phases = run_programs(programs)
    assert phases == 2 and up[0] < 220 and all(torch.equal(one, results[0]) for one in results)
    assert (results[0] - sum(x)).abs().max() < 3 * max(float(one.abs().max()) for one in x) / 127


def test_compress_imports_torch_and_numpy_alone() -> None:
    """So that `pip install --no-deps farflung` beside torch and numpy is enough for it (docs/codecs.md)."""
    optional = {"numba", "llvmlite", "triton", "isal", "safetensors", "cryptography"}  # guarded, or of one module
    for path in [ROOT / "__init__.py", *(ROOT / "compress").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                root = name.partition(".")[0]
                assert root in sys.stdlib_module_names or root in {"torch", "numpy"} | optional, (path, name)
