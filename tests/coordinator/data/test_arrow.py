"""Folders of the library datasets (save_to_disk): arrow files as text, conversations and texts with classes."""

import io
import json

import pyarrow
import pytest
from pyarrow import ipc

from farflung.coordinator.data.chat.rows import conversations
from farflung.coordinator.data.files.documents import parts
from farflung.coordinator.data.files.places import START
from farflung.coordinator.data.files.sources import text_files
from farflung.coordinator.data.files.tables import rows_of
from farflung.coordinator.data.recognise import source_of
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


SHARDS = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def saved(folder, shards=SHARDS, **state):
    """A folder as save_to_disk writes it. Its shards are listed in another order than that of their names."""
    folder.mkdir(parents=True)
    for number, name in enumerate(SHARDS):
        (folder / name).write_bytes(arrow([{"text": f"of shard {number}"}]))
    (folder / "cache-1f.arrow").write_bytes(b"of a map() that nobody asked for")
    (folder / "dataset_info.json").write_text("{}")
    files = [{"filename": name} for name in shards]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "1f", **state}))
    return str(folder)


def test_a_saved_folder_is_read_in_its_own_order(tmp_path):
    folder = saved(tmp_path / "saved", SHARDS[::-1])
    names = [source.name for source in text_files("parquet", [folder])]
    assert names == [f"{folder}/{name}" for name in SHARDS[::-1]]
    assert [source.name for source in text_files("chat", [folder + "/"])] == names
    assert source_of(folder) == ("parquet", None)
    assert [source.name for source in text_files("parquet", [f"{folder}/data*.arrow"])] == sorted(names)
    assert len(text_files("parquet", [f"file://{folder}"])) == 2


def test_the_splits_of_a_saved_folder(tmp_path):
    folder, splits = str(tmp_path / "saved"), ["train", "test"]
    for split in splits:
        saved(tmp_path / "saved" / split)
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    assert len(text_files("labelled", [f"{folder}/test"])) == 2
    with pytest.raises(JobError, match="has the splits train, test, and which is meant it does not say") as caught:
        text_files("parquet", [folder])
    assert caught.value.hint == f"name one of them: {folder}/train"
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": [f"part{n}" for n in range(2000)]}))
    with pytest.raises(JobError, match="part8, part9 and 1990 more, and which is meant it does not say"):
        text_files("parquet", [folder])
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    assert text_files("parquet", [folder]) == text_files("parquet", [f"{folder}/train"])


@pytest.mark.parametrize(
    ("kind", "shards", "state", "said"),
    [
        ("parquet", [*SHARDS, "data-00002-of-00003.arrow"], {}, "names data-00002-of-00003.arrow, which is not there"),
        ("parquet", ["../../secret.arrow"], {}, "state.json names no files of the dataset"),
        ("parquet", [*SHARDS, SHARDS[0]], {}, "state.json names a file twice"),
        ("parquet", [], {}, "state.json names no files of the dataset"),
        ("chat", SHARDS, {"_indices_data_files": [{"filename": "i.arrow"}]}, "is a selection of rows of other files"),
        ("text", SHARDS, {}, "is a folder of the library datasets"),
    ],
)
def test_what_is_wrong_with_a_saved_folder_is_said_in_a_sentence(tmp_path, kind, shards, state, said):
    folder = saved(tmp_path / "saved", shards, **state)
    with pytest.raises(JobError, match=said) as caught:
        text_files(kind, [folder])
    assert caught.value.hint
    for text in ("{", "[" * 200_000):
        (tmp_path / "saved" / "state.json").write_text(text)
        with pytest.raises(JobError, match=r"state\.json can't be read"):
            text_files(kind, [folder])
