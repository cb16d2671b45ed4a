"""A name that is there twice in a row or a table: which of its values is meant nobody knows, so it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.coordinator.data.files.records import jsonl, parquet, unique
from farflung.coordinator.data.files.tables import rows_of
from farflung.proto.errors import JobError


def read(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(rows_of(str(path), file, "labelled", "give texts"))


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.csv", "text,label,text\na,1,b\n", r"a\.csv:1: the column 'text' is there twice"),
        ("a.tsv", "text\ttext\na\tb\n", r"a\.tsv:1: the column 'text' is there twice"),
        ("a.jsonl", '{"text": "a"}\n{"text": "a", "text": "b"}\n', r"a\.jsonl:2: the key 'text' is there twice"),
        ("a.json", '[{"text": "a", "label": 1, "label": 2}]', r"a\.json: the key 'label' is there twice"),
        ("b.jsonl", '{"messages": [{"role": "user", "role": "system"}]}\n', r"b\.jsonl:1: the key 'role'"),
    ],
)
def test_a_name_twice_is_refused(tmp_path: Path, name: str, content: str, where: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(JobError, match=where):
        read(tmp_path / name)


def test_columns_without_a_name_may_be_several(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",text,\n0,a,x\n")
    assert read(tmp_path / "a.csv")[0][1]["text"] == "a"


def test_a_field_twice_in_a_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + '\n{"text": "a", "text": "b"}\n')
    with (tmp_path / "a.jsonl").open("rb") as file, pytest.raises(JobError, match=":2: the key 'text' is there twice"):
        list(jsonl("a.jsonl", file, "text", (0, 0, 0)))


def test_a_column_twice_in_parquet_and_arrow(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    files.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(JobError, match="the column 'text' is there twice"):
            read(tmp_path / name)
        with (tmp_path / name).open("rb") as file, pytest.raises(JobError, match="column 'text' is there twice"):
            list(parquet(name, file, "text", (0, 0, 0)))


def test_a_row_of_very_many_keys_and_one_that_is_too_deep(tmp_path: Path) -> None:
    """Names are looked up, and not compared each with each: 100,000 of them would take minutes."""
    names = [f"column{number}" for number in range(100_000)]
    (tmp_path / "a.csv").write_text(",".join(names) + ",column7\n")
    with pytest.raises(JobError, match="the column 'column7' is there twice"):
        read(tmp_path / "a.csv")
    unique(names, "a.csv")
    (tmp_path / "a.jsonl").write_text("[" * 200_000)
    with (tmp_path / "a.jsonl").open("rb") as file, pytest.raises(JobError, match="lists in lists, too deep"):
        list(jsonl("a.jsonl", file, "text", (0, 0, 0)))
