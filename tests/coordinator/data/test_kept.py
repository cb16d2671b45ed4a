"""A start that is interrupted while it reads leaves what it read to the next one."""

import json
import os
import signal
import subprocess
import sys

import corpora
import numpy as np
import pytest

from farflung.coordinator.data import data, facts
from farflung.coordinator.data.corpus import kept, streams
from farflung.coordinator.data.corpus.index import Index
from farflung.coordinator.data.files import documents, places, sources
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.schema import Job

CONTEXT = 16
TEXTS = corpora.texts(120, 3, 2000)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(kept, "EVERY_S", 0.0)
    monkeypatch.setattr(streams, "_EVERY", 500)
    monkeypatch.setattr(streams, "_ONCE", 500)
    for module in (documents, places):
        monkeypatch.setattr(module, "LENGTH", 1000)


def job(kind, pattern, **keys):
    return Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": CONTEXT},
            "data": {kind: [pattern], "validation": 0.1, **keys},
        }
    )


class Killed(BaseException):
    """A start ends here."""


class Reader:
    """Counts the parts of documents that are read, and dies before one of them. The clock stands still, so that no
    note is put off because the one before took long."""

    def __init__(self, monkeypatch, folder):
        self.folder, self.said, self.read, self.dies = folder, [], [], None
        parts = streams.parts

        def counted(kind, name, file, *more):
            for part in parts(kind, name, file, *more):
                if len(self.read) == self.dies:
                    raise Killed
                self.read.append((name.rpartition("/")[2], part.place))
                yield part

        monkeypatch.setattr(streams, "parts", counted)
        monkeypatch.setattr(kept.time, "monotonic", lambda: 0.0)

    def start(self, asked, dies=None):
        """(tokens, parts that it read); None for a start that died."""
        self.read, self.dies, self.said = [], dies, []
        try:
            made, *_ = facts._files(asked, load_tokenizer("bytes"), CONTEXT, self.folder, self.said.append)
        except Killed:
            made = None
        return made, list(self.read)

    def notices(self):
        return " ".join(event["message"] for event in self.said if event["event"] != "progress")


@pytest.fixture
def reader(tmp_path, monkeypatch):
    return Reader(monkeypatch, tmp_path / "artifacts")


def rows(made):
    index = Index.load(made.path) if made.path.suffix else None
    raw = b"".join(map(index.read, range(len(index.pieces)))) if index else made.path.read_bytes()
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "webdataset"])
def test_the_next_start_goes_on(kind, reader, tmp_path):
    asked = job(kind, corpora.write(f"file://{tmp_path}/texts", kind, TEXTS, 4))
    whole = data.tokenise(asked, load_tokenizer("bytes"), CONTEXT, tmp_path / "whole")
    _, everything = Reader.start(reader, asked, 10**9)
    for left in reader.folder.iterdir():
        left.unlink()
    half = len(everything) // 2
    assert reader.start(asked, half)[0] is None
    made, again = reader.start(asked)
    assert made.digest == whole.digest and np.array_equal(rows(made), rows(whole))
    assert again == everything[-len(again) :], "it goes on where the first start was"
    assert len(everything) - half <= len(again) < 0.8 * len(everything)
    assert "an earlier start had read" in reader.notices()
    assert sorted(path.name for path in reader.folder.iterdir()) == sorted([made.digest, "made.json"])
    assert reader.start(asked) == (made, []), "and what is finished is not read again"
    assert "no file was changed since" in reader.notices() and "1 token per byte" in reader.notices()


def test_a_start_may_die_as_often_as_it_likes(reader, tmp_path):
    """Every start gets some parts further: none is read twice but those that were not noted yet."""
    pattern = corpora.write(f"file://{tmp_path}/texts", "jsonl", TEXTS, 4)
    held = corpora.write(f"file://{tmp_path}/held", "jsonl", TEXTS[:20], 2)
    asked = job("jsonl", pattern, validation=[held])
    copy = data.tokenise(asked, load_tokenizer("bytes"), CONTEXT, tmp_path / "whole")
    everything = len(reader.read)
    asked = job("jsonl", pattern, validation=[held], cache_gb=2e-5)
    for _ in range(5):
        assert reader.start(asked, 25)[0] is None
    made, read = reader.start(asked)
    parts = len(read)
    assert made.path.suffix == ".index" and np.array_equal(rows(made), rows(copy))
    assert everything < parts < 2 * everything - 60, "the second pass, of what is not kept, reads everything"


@pytest.mark.parametrize(
    ("change", "said", "kept_files"),
    [
        (lambda files: files[1].write_text(files[1].read_text().replace("to", "by")), "1.jsonl was changed since", 1),
        (lambda files: files[0].unlink(), "0.jsonl is not among the files", 0),
        (lambda files: os.utime(files[3], (1, 1)), "0 of 4 files", None),
    ],
)
def test_what_was_changed_is_read_again_and_said(reader, tmp_path, change, said, kept_files):
    asked = job("jsonl", corpora.write(f"file://{tmp_path}/texts", "jsonl", TEXTS, 4))
    per_file = [name for name, _ in reader.start(asked, 10**9)[1]].count("0.jsonl")
    for left in reader.folder.iterdir():
        left.unlink()
    reader.start(asked, 2 * per_file + 3 if kept_files is not None else per_file - 3)
    change(sorted((tmp_path / "texts").iterdir()))
    made, again = reader.start(asked)
    whole = data.tokenise(asked, load_tokenizer("bytes"), CONTEXT, tmp_path / "whole")
    assert np.array_equal(rows(made), rows(whole)) and said in reader.notices()
    if kept_files:
        names = {name for name, _ in again}
        assert "1.jsonl" in names and sum(name == "0.jsonl" for name, _ in again) < per_file / 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda tokens, about: tokens.write_bytes(b"x" + tokens.read_bytes()[1:]), "are damaged"),
        (lambda tokens, about: tokens.unlink(), "are damaged"),
        (lambda tokens, about: about.write_text(about.read_text().replace('"bytes"', '"words"')), "data.tokenizer"),
        (lambda tokens, about: about.write_text(about.read_text()[:-20]), ""),
        (lambda tokens, about: tokens.write_bytes(tokens.read_bytes() + b"of no note"), "had read"),
    ],
)
def test_nothing_is_trusted(reader, tmp_path, damage, said):
    asked = job("jsonl", corpora.write(f"file://{tmp_path}/texts", "jsonl", TEXTS, 4))
    reader.start(asked, 30)
    damage(*(reader.folder / f".reading-training.{end}" for end in ("tokens", "json")))
    made, _ = reader.start(asked)
    whole = data.tokenise(asked, load_tokenizer("bytes"), CONTEXT, tmp_path / "whole")
    assert np.array_equal(rows(made), rows(whole)) and said in reader.notices()


def test_a_place_that_tells_no_time_is_read_again(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_STAMPS", set())
    asked = job("jsonl", corpora.write(f"file://{tmp_path}/texts", "jsonl", TEXTS, 4))
    reader.start(asked, 30)
    _, again = reader.start(asked)
    assert again[0][0] == "0.jsonl" and "its place tells no time" in reader.notices()


def test_finished_tokens_are_of_their_files(reader, tmp_path):
    asked = job("text", corpora.write(f"file://{tmp_path}/texts", "text", TEXTS, 2))
    first, _ = reader.start(asked)
    os.utime(tmp_path / "texts" / "1.txt", (1, 1))
    second, read = reader.start(asked)
    assert second == first and read and "1.txt is not surely as an earlier start read it" in reader.notices()
    first.path.write_bytes(b"damaged")
    third, read = reader.start(asked)
    assert third == first and read and "gone or damaged" in reader.notices()
    _, read = reader.start(job("text", asked.data.text[0], validation=0.2))
    assert read and "another data.validation than at an earlier start" in reader.notices()


def test_a_process_that_is_killed(tmp_path):
    """With -9, in the middle: the next process reads the rest, and the tokens are those of one that was not killed."""
    pattern = corpora.write(f"file://{tmp_path}/texts", "jsonl", TEXTS, 4)
    script = f"""
import os, signal, sys
from farflung.coordinator.data import data
from farflung.coordinator.data.corpus import kept, streams
from farflung.job.schema import Job
from farflung.job.data.tokenizer_folder import load_tokenizer
kept.EVERY_S, streams._ONCE, count, parts = 0.0, 500, 0, streams.parts
kept.time.monotonic = lambda: 0.0
def counted(*words):
    global count
    for part in parts(*words):
        count += 1
        if count == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield part
streams.parts = counted
asked = Job.model_validate_json({job("jsonl", pattern).model_dump_json()!r})
made = data.tokenise(asked, load_tokenizer("bytes"), {CONTEXT}, __import__("pathlib").Path({str(tmp_path / "a")!r}))
print(count, made.digest)
"""

    def process(dies):
        done = subprocess.run([sys.executable, "-c", script, str(dies)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.split()

    assert process(40) == (-signal.SIGKILL, [])
    status, (parts, digest) = process(0)
    whole = data.tokenise(job("jsonl", pattern), load_tokenizer("bytes"), CONTEXT, tmp_path / "whole")
    assert status == 0 and digest == whole.digest
    assert int(parts) < sum(bool(text) for text in TEXTS) - 20


def test_points_stay_few(monkeypatch):
    from farflung.coordinator.data.corpus import reading

    monkeypatch.setattr(reading, "MOST", 8)
    found = streams.unread()
    for number in range(1000):
        for character in range(3):
            found.reached(reading.Point(number, (0, 0, character), 3 * number + character, ()))
    assert len(found.points) <= 18 and found.at.number == 999
    found.back_to(500)
    assert (found.at.number, found.at.place) <= (500, (0, 0, 0)) and found.at.number > 300
    assert json.loads(json.dumps(vars(found)))["points"][-1][2] == found.at.tokens
