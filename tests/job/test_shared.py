"""The job that nodes get says no secret of its owner's."""

import re
from pathlib import Path

import pytest
import tomllib
from hypothesis import example, given
from hypothesis import strategies as st

import farflung.examples
from farflung.job.checks.whole import job_mistakes
from farflung.job.schema import Job
from farflung.job.shared import for_nodes, told, without_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://KEY:SE/CRET@bucket/a/*.txt", "s3://bucket/a/*.txt"),
        ("https://user:hunter2@example.org/x?sig=abc#t", "https://example.org/x"),
        ("https://example.org/x.txt?X-Amz-Signature=hunter2", "https://example.org/x.txt"),
        ("simplecache::s3://k:hunter2@b/x", "simplecache::s3://b/x"),
        ("zip://a.txt::https://u:hunter2@h/x.zip?t=1", "zip://a.txt::https://h/x.zip"),
        ("/home/a/data?/*.txt", "/home/a/data?/*.txt"),
        ("bytes", "bytes"),
        ("s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_addresses_without_secrets(address, shown):
    assert without_secrets(address) == shown


RESTS = st.text("ab1/:@?&=", max_size=12).filter(lambda rest: not re.search("::[ab1]+://", rest))
"""Of passwords. One that has the beginning of an address in it is read as a chain of two."""


@example("::a::", "https")
@example("::a@b::a?::", "s3")
@given(RESTS, st.sampled_from(["https", "s3", "abfs+x"]))
def test_nothing_before_the_at_or_after_the_question_mark_stays(rest, kind):
    for address in (f"{kind}://SECRET{rest}@host/x", f"{kind}://host/x?SECRET{rest}", f"a::{kind}://SECRET{rest}@h/x"):
        assert "SECRET" not in without_secrets(address)
        assert "SECRET" not in told(f"cannot read {address}: gone")


def test_every_table_of_the_job():
    secret = "https://user:hunter2@example.org/x?sig=hunter2"
    job = Job.model_validate(
        {
            "run": {"name": "a", "steps": 1},
            "model": {"pretrained": secret},
            "data": {"jsonl": [secret, "plain.txt"], "validation": [secret], "tokenizer": secret},
            "checkpoint": {"to": secret, "options": {"secret": "hunter2"}},
        }
    )
    shown = for_nodes(job)
    assert "hunter2" not in shown.model_dump_json() + repr(shown)
    assert shown.data.jsonl == ["https://example.org/x", "plain.txt"]
    assert for_nodes(shown) == shown


EXAMPLES = Path(farflung.examples.__file__).parent


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_is_right_as_nodes_get_it(path: Path) -> None:
    """Every key of a job that came over the wire counts as set."""
    job = Job.model_validate_json(for_nodes(Job.model_validate(tomllib.loads(path.read_text()))).model_dump_json())
    assert list(job_mistakes(job, files=False)) == []
