"""Folders of the library datasets (save_to_disk): arrow files as text, conversations and texts with classes."""

import io

import pyarrow
import pytest
from pyarrow import ipc

from farflung.coordinator.data.chat.rows import conversations
from farflung.coordinator.data.files.documents import parts
from farflung.coordinator.data.files.places import START
from farflung.coordinator.data.files.tables import rows_of
from farflung.proto.errors import JobError

ROWS = [{"text": f"line {number}", "label": number % 2} for number in range(7)]


def arrow(rows, stream=True, batch=3):
    """Bytes as datasets writes them (a stream), or as pyarrow's files are."""
    table, into = pyarrow.Table.from_pylist(rows), io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(into, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return into.getvalue()


@pytest.mark.parametrize("stream", [True, False])
def test_rows_and_texts_of_a_folder_that_datasets_saved(stream):
    data = arrow(ROWS, stream)
    assert [row for _, row in rows_of("a.arrow", io.BytesIO(data), "labelled", "")] == ROWS
    found = list(parts("parquet", "a.arrow", io.BytesIO(data), "text"))
    assert [part.text for part in found] == [row["text"] for row in ROWS]
    for at, part in enumerate(found):  # from any place on
        rest = parts("parquet", "a.arrow", io.BytesIO(data), "text", part.place)
        assert [one.text for one in rest] == [row["text"] for row in ROWS[at:]]


def test_conversations(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(arrow(rows))
    (found,) = conversations(str(tmp_path / "data-00000-of-00001.arrow"))
    assert [one["role"] for one in found.messages] == ["user", "assistant"]


def test_what_is_wrong_is_said_with_the_file():
    with pytest.raises(JobError, match=r"a.arrow: no column 'body'; it has: text, label"):
        list(parts("parquet", "a.arrow", io.BytesIO(arrow(ROWS)), "body", START))
    with pytest.raises(JobError, match="row 1 of batch 0: column 'label' holds int, not text"):
        list(parts("parquet", "a.arrow", io.BytesIO(arrow(ROWS)), "label"))
    with pytest.raises(JobError, match=r"a.arrow: not a whole file of arrow"):
        list(rows_of("a.arrow", io.BytesIO(arrow(ROWS)[:-200]), "labelled", ""))
