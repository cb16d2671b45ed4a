"""A tokenizer or a model folder with Python files of its own: they are never run, and nobody is asked whether to."""

import json
import os
import subprocess

import pytest

from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.proto.errors import JobError
from farflung.proto.process import python

EVIL = "open({path!r}, 'w')\nclass Evil: pass\n"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "tokenizer"
    made.mkdir()
    (made / "evil.py").write_text(EVIL.format(path=str(tmp_path / "ran")))
    (made / "vocab.json").write_text("{}")
    (made / "merges.txt").write_text("")
    config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "model_type": "evil"}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    (made / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "evil.Evil"}}))
    return made


def test_a_tokenizer_that_brings_code(folder, tmp_path):
    with pytest.raises(JobError, match="cannot load the tokenizer"):
        load_tokenizer(str(folder))
    assert not (tmp_path / "ran").exists()


def test_nobody_is_asked(folder, tmp_path):
    """Even where somebody at a terminal would answer yes."""
    reading, writing = os.pipe()
    os.write(writing, b"y\n" * 10)
    os.close(writing)
    call = "import sys; from farflung.job.data.tokenizer_folder import load_tokenizer; load_tokenizer(sys.argv[1])"
    done = subprocess.run(python.code(call, str(folder)), stdin=reading, capture_output=True, text=True)
    os.close(reading)
    assert done.returncode and "cannot load the tokenizer" in done.stderr and "[y/N]" not in done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()
