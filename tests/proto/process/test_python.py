"""Processes of farflung's own do not run what lies in the folder that they are started in."""

import subprocess

import pytest

from farflung.proto.process import python


@pytest.mark.parametrize("safe_path", [True, False])
def test_the_current_folder_is_no_place_for_modules(tmp_path, safe_path):
    for name in ("json.py", "runpy.py", "torch.py", "numpy.py"):
        (tmp_path / name).write_text("open('ran', 'w')\nraise SystemExit('owned')\n")
    text = "import sys, json, runpy; print(json.dumps([sys.argv[1:], '' in sys.path]))"
    done = subprocess.run(python.code(text, "a", safe_path=safe_path), cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == '[["a"], false]\n', done.stderr
    command = python.module("farflung", "--version", safe_path=safe_path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("farflung ") and not done.returncode, done.stderr
    command = python.module("farflung.node.models.profiling.cost", safe_path=safe_path)
    done = subprocess.run(command, cwd=tmp_path, input="{}", capture_output=True, text=True)
    assert "owned" not in done.stderr and not (tmp_path / "ran").exists()
