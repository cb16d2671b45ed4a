"""A run whose own code has changed since it began: state that does not fit is refused, all else is said."""

import asyncio
import importlib
import sys
import types
import zipfile

import pytest

from farflung.coordinator.serve.starting.resumed import prepare_or_restore
from farflung.job.data.facts import Facts
from farflung.job.data.own_code import THERE, check_own_code
from farflung.job.data.sampling import ORDER
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.own_code import own_code, source_digest
from farflung.node.models.profiling.cost import profile
from farflung.proto.errors import JobError

CODE = """
import torch
from torch import nn
import own_rates

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), total

def total(outputs, targets):
    return ((outputs - targets) ** 2).sum()

def data():
    x = torch.arange(32.0).reshape(8, 4) / 32
    return (x, x[:, :2]), (x[:2], x[:2, :2])

def optimizer(groups):
    return torch.optim.SGD(groups, momentum=own_rates.MOMENTUM)
"""
SGD = "SGD(groups, momentum=own_rates.MOMENTUM)"
RATES = "MOMENTUM = 0.9\n"


class Folder:
    """A folder with a person's modules, from which they are loaded anew each time."""

    def __init__(self, path):
        self.path = path
        self.write(CODE, RATES)
        model, data = {"build": "own_mine:model"}, {"build": "own_mine:data"}
        train = {"optimizer": "own_mine:optimizer", "batch": 4}
        self.job = Job.model_validate(
            {"run": {"steps": 4}, "model": model, "data": data, "train": train, "updates": {"mode": "delta"}}
        )

    def write(self, code=CODE, rates=RATES):
        (self.path / "own_mine.py").write_text(code)
        (self.path / "own_rates.py").write_text(rates)
        for name in ("own_mine", "own_rates"):
            sys.modules.pop(name, None)
        sys.dont_write_bytecode = True

    def facts(self):
        made = profile(self.job, None)
        return Facts(
            samples=made.samples, validation_samples=made.validation_samples, context=0, vocabulary=0, steps=4,
            token_dtype="uint8", tokens_digest="", profile=made, artifacts={}, order=ORDER,
        )  # fmt: skip

    def resumed(self, before):
        """(the facts of a start after ``before``, its warnings); the profile is that of the modules as they are now."""
        said = profile(self.job, None).model_dump_json()
        command = (sys.executable, "-S", "-c", f"import sys; sys.stdin.read(); print({said!r})")
        heard = []
        work = prepare_or_restore(self.job, before.model_dump_json(), self.path, command, False, heard.append)
        return asyncio.run(work).facts, [one["message"] for one in heard]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Folder(tmp_path)
    for name in ("own_mine", "own_rates"):
        sys.modules.pop(name, None)


def test_the_same_code_is_resumed_without_a_word(folder):
    facts = folder.facts()
    folder.write()
    again, heard = folder.resumed(facts)
    assert not heard and again == facts


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (CODE.replace(SGD, "AdamW(groups)"), "keeps exp_avg, exp_avg_sq here, and when the run began momentum_buffer"),
        (CODE.replace("own_rates.MOMENTUM", "0"), "keeps nothing here, and when the run began momentum_buffer"),
        (CODE.replace("Linear(4, 8), nn.Linear(8, 2)", "Linear(4, 6), nn.Linear(6, 2)"), "other names or shapes here"),
        (CODE.replace("(x, x[:, :2])", "(x[:7], x[:7, :2])"), "gives 7 training and 2 validation samples, and 8 and 2"),
    ],
)
def test_state_that_does_not_fit_the_code_is_refused(folder, code, what):
    facts = folder.facts()
    folder.write(code)
    with pytest.raises(JobError, match=what) as caught:
        folder.resumed(facts)
    assert "that the run began with" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "rates"),
    [(CODE.replace("** 2", "** 4"), RATES), (CODE, RATES.replace("9", "8"))],
)
def test_other_code_with_the_same_state_is_said_once(folder, code, rates):
    facts = folder.facts()
    folder.write(code, rates)
    now, heard = folder.resumed(facts)
    assert len(heard) == 1 and "the code of own_mine, or of a module beside it, is another" in heard[0]
    assert folder.resumed(now) == (now, [])


def test_other_samples_are_said(folder):
    facts = folder.facts()
    folder.write(CODE.replace("/ 32", "/ 16"))
    assert "data.build: the function gives other samples here than when" in folder.resumed(facts)[1][1]


def test_a_node_compares_with_the_coordinator(folder):
    there = folder.facts().profile.own
    here = own_code(folder.job, model_of(folder.job, None), allow_code=["own_mine"])
    assert list(check_own_code(there, here, THERE)) == []
    folder.write(CODE.replace(SGD, "AdamW(groups)"))
    here = own_code(folder.job, model_of(folder.job, None), allow_code=["own_mine"])
    with pytest.raises(JobError, match="keeps exp_avg, exp_avg_sq here, and at the coordinator momentum_buffer"):
        list(check_own_code(there, here, THERE))


def test_a_run_of_an_older_version_has_nothing_to_compare(folder):
    facts = folder.facts()
    old = facts.model_copy(update={"profile": facts.profile.model_copy(update={"own": None})})
    folder.write(CODE + "\n\n")
    assert folder.resumed(old)[1] == []


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """A function: the digest of a module of tmp_path, loaded anew."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(name="own_main"):
        for loaded in [one for one in sys.modules if one.startswith("own_")]:
            del sys.modules[loaded]
        importlib.invalidate_caches()
        importlib.import_module(name)
        return source_digest(name)

    yield made
    for loaded in [one for one in sys.modules if one.startswith("own_")]:
        del sys.modules[loaded]


def test_a_number_that_a_module_imports_counts_and_the_ends_of_lines_do_not(tmp_path, digest):
    (tmp_path / "own_main.py").write_bytes(b"try:\n    from own_set import WIDTH\nexcept ImportError:\n    WIDTH = 1\n")
    (tmp_path / "own_set.py").write_bytes(b"WIDTH = 2\n")
    before = digest()
    (tmp_path / "own_set.py").write_bytes(b"WIDTH = 2\r\n")
    assert digest() == before
    (tmp_path / "own_set.py").write_bytes(b"WIDTH = 16\n")
    assert digest() != before


def test_modules_of_a_package_without_an_init_count(tmp_path, digest):
    (tmp_path / "own_pack").mkdir()
    (tmp_path / "own_pack" / "main.py").write_text("from .other import f\n")
    (tmp_path / "own_pack" / "other.py").write_text("def f(): return 1\n")
    before = digest("own_pack.main")
    (tmp_path / "own_pack" / "other.py").write_text("def f(): return 11\n")
    assert digest("own_pack.main") != before


def test_odd_modules_have_a_digest(tmp_path, digest, monkeypatch):
    """Objects that raise when they are asked, source in a zip file, source that is gone or was never in a file."""
    odd = "class Odd:\n    def __getattribute__(self, name):\n        raise RuntimeError(name)\nodd = Odd()\n"
    (tmp_path / "own_main.py").write_text(odd)
    assert digest()
    (tmp_path / "own_main.py").unlink()
    assert source_digest("own_main")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("own_zipped.py", "x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    assert digest("own_zipped")
    monkeypatch.setitem(sys.modules, "own_made", types.ModuleType("own_made"))
    sys.modules["own_made"].__file__ = "<string>\0"
    assert source_digest("own_made")
