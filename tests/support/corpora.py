"""Small corpora of every kind, the same every time: long and short documents, blank ones, every ending of a line."""

import io
import json
import random
import tarfile

import fsspec

WORDS = ["to", "be", "or", "not", "naïve", "\N{SLIGHTLY SMILING FACE}", "tokens", "stream"]


def texts(count=60, seed=0, longest=60_000):
    """Documents of up to so many characters; some are empty."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        length = 0 if number % 11 == 5 else int(longest ** dice.random())
        ends = (" ", " ", " ", "\n", "\r\n", "\r")
        text = "".join(dice.choice(WORDS) + dice.choice(ends) for _ in range(length // 5))
        made.append(text + ("\n" if number % 3 else ""))
    return made


def write(place, kind, documents, files=3):
    """Documents spread over files of a kind below a place of fsspec; the pattern that finds them."""
    system, folder = fsspec.url_to_fs(place)
    system.makedirs(folder, exist_ok=True)
    per_file = -(-len(documents) // files)
    for number in range(files):
        part = documents[number * per_file : (number + 1) * per_file]
        with fsspec.open(f"{place}/{number}{ENDS[kind]}", "wb", compression="infer") as file:
            WRITERS[kind](file, part)
    return f"{place}/*{ENDS[kind]}"


def _text(file, part):
    file.write("".join(part).encode())


def _jsonl(file, part):
    file.write("\n\n".join(json.dumps({"n": 1, "text": text}) for text in part).encode())


def _parquet(file, part):
    import pyarrow
    from pyarrow import parquet

    whole = io.BytesIO()
    parquet.write_table(pyarrow.table({"n": list(range(len(part))), "text": part}), whole, row_group_size=7)
    file.write(whole.getvalue())


def _webdataset(file, part):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as shard:
        for number, text in enumerate(part):
            kind, content = ("txt", text) if number % 2 else ("json", json.dumps({"text": text}))
            name = f"{number}" * (90 if number % 5 else 1)  # a long name has a member of its own before it
            for suffix, raw in ((kind, content.encode()), ("jpg", b"\xff\xd8")):
                member = tarfile.TarInfo(f"{name[:200]}.{suffix}")
                member.size = len(raw)
                shard.addfile(member, io.BytesIO(raw))
    file.write(whole.getvalue())


ENDS = {
    "text": ".txt",
    "jsonl": ".jsonl",
    "parquet": ".parquet",
    "webdataset": ".tar",
    "jsonl.gz": ".jsonl.gz",
    "webdataset.gz": ".tar.gz",
}
WRITERS = {
    "text": _text,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "webdataset": _webdataset,
    "jsonl.gz": _jsonl,
    "webdataset.gz": _webdataset,
}
