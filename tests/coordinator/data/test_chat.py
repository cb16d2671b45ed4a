"""Conversations become marked rows: what trains, what shares a row, what is left out, and what is refused where."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from farflung.coordinator.data.chat.chat import tokenise_chat
from farflung.coordinator.data.chat.packing import packed
from farflung.coordinator.data.chat.template import Asked, Template, Templates
from farflung.job.data.marks import FIRST, TRAINED, places_of, tokens_of
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.schema import Job
from farflung.proto.errors import JobError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}"
)
FORGETS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Shows a turn otherwise when others follow, as Qwen3's does."""
TALK = [
    {"role": "user", "content": "the sea"},
    {"role": "assistant", "content": "is blue"},
    {"role": "user", "content": "the sun"},
    {"role": "assistant", "content": "is warm"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer folder as save_pretrained writes it, whose offsets leave out spaces, as Llama 3's do."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.post_processor = processors.ByteLevel(trim_offsets=True)
    rust.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    rust.train_from_iterator(["the sea is blue\n\nthe sun is warm\nassistant\nuser"] * 9, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    made = PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|endoftext|>")
    made.chat_template = CHATML
    made.save_pretrained(path)
    return path


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(folder, tmp_path, *rows, context=80, tokenizer=None, **keys):
    """(documents as lists of (text, trains), what was told) of the training samples."""
    told = []
    name = write(tmp_path / "chats.jsonl", *rows)
    keys = {"tokenizer": str(tokenizer or folder), "validation": 0.0, **keys}
    job = Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": context},
            "data": {"chat": [name], **keys},
        }
    )
    tokens = load_tokenizer(job.data.tokenizer)
    made = tokenise_chat(job, tokens, context, tmp_path / "tokens", told.append)
    whole = np.frombuffer(made.path.read_bytes(), "<u4").reshape(-1, context + 1)
    documents = [
        [*zip(tokens_of(document).tolist(), (document & TRAINED) > 0, strict=True)]
        for row in whole
        for document in np.split(row, np.flatnonzero(row & FIRST)[1:])
        if (document & TRAINED).any()
    ]
    return documents, [one["message"] for one in told if one["event"] == "notice"], made


def learnt(folder, documents):
    """What of each document is learnt, and the whole of it."""
    rust = load_tokenizer(str(folder))._rust
    shown = []
    for document in documents:
        runs, before = [], False
        for token, trains in document:
            if trains:
                runs = [*runs[:-1], [*runs[-1], token]] if before else [*runs, [token]]
            before = trains
        shown.append([rust.decode(run, skip_special_tokens=False) for run in runs])
    return shown


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "generation"])
def test_the_assistants_turns_are_learnt_to_their_end(template, folder, tmp_path):
    with Templates(Template(template, {}, "test")) as templates:
        (made,) = templates.render([Asked(TALK)])
    assert [made.text[a:b].strip() for a, b in made.spans] == ["is blue<|im_end|>", "is warm<|im_end|>"]
    documents, told, _ = read(folder, tmp_path, {"messages": TALK})
    assert learnt(folder, documents) == [["is blue<|im_end|>", "is warm<|im_end|>"]]
    assert "1 conversations are 1 samples" in told[0]


def test_the_tokens_are_those_of_transformers(folder, tmp_path):
    from transformers import AutoTokenizer

    documents, _, _ = read(folder, tmp_path, {"messages": TALK})
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(TALK, return_dict=True)["input_ids"]
    ours = [token for token, _ in documents[0]]
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(
    ("turns", "wanted"),
    [
        ("last", [["<think></think>is warm<|im_end|>"]]),
        ("each", [["<think></think>is blue<|im_end|>"], ["<think></think>is warm<|im_end|>"]]),
    ],
)
def test_a_template_that_shows_earlier_turns_otherwise(turns, wanted, folder, tmp_path):
    other = tmp_path / "forgets"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "chat_template.jinja").write_text(FORGETS)
    with pytest.raises(JobError, match=r"chats.jsonl:1: .*message 2 otherwise when others follow") as refused:
        read(folder, tmp_path, {"messages": TALK}, tokenizer=other)
    assert 'turns = "each"' in refused.value.hint
    documents, _, _ = read(folder, tmp_path, {"messages": TALK}, tokenizer=other, turns=turns)
    assert learnt(folder, documents) == wanted


HOSTILE = {
    "computes for more than": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{% set a = messages[0].content * 10**10 %}{{ a }}",
    "makes more than": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "something forbidden: access to attribute '__class__'": "{{ messages.__class__.__mro__ }}",
    "refuses it: not today": "{{ raise_exception('not today') }}",
    "is none: TemplateSyntaxError": "{% for",
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_hostile_templates_are_refused_in_a_sentence(sentence):
    with Templates(Template(HOSTILE[sentence], {}, "test"), seconds=0.5) as templates:
        try:
            (made,) = templates.render([Asked(TALK)])
            said = made.error
        except JobError as error:
            said = error.message
    assert sentence in said and "\n" not in said


def test_forms_and_odd_rows(folder, tmp_path):
    rows = [
        {"conversations": [{"from": "human", "value": "the sea"}, {"from": "gpt", "value": "is blue"}], "system": "s"},
        {"prompt": "the sea ", "completion": "is blue"},
        {"prompt": TALK[:1], "completion": TALK[1:2]},
        {"prompt": TALK[:2], "completion": TALK[2:]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": " sea"}]},
                      {"role": "assistant", "content": "is \ud800 blue", "name": None}]},
        {"messages": []},
        {"messages": TALK[:1]},
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"messages": [TALK[0], {"role": "assistant", "content": "\nis blue"}]},
    ]  # fmt: skip
    documents, told, _ = read(folder, tmp_path, *rows, context=80)
    rust = load_tokenizer(str(folder))._rust
    ends = "<|endoftext|>"
    answer = "is blue<|im_end|>"
    wanted = [[answer], ["is blue" + ends], [answer], ["is warm<|im_end|>"], ["is \ufffd blue<|im_end|>"]]
    wanted += [[rust.decode([7, 8], skip_special_tokens=False)], ["\nis blue<|im_end|>"]]
    assert sorted(learnt(folder, documents)) == sorted(wanted)
    assert any("2 conversations have no turn of the assistant" in one and "chats.jsonl:6" in one for one in told)
    assert any("1 conversations: <|endoftext|>" in one for one in told)


REFUSED = {
    "the role 'asistant'": {"messages": [{"role": "asistant", "content": "x"}]},
    "is from 'robot'": {"conversations": [{"from": "robot", "value": "x"}]},
    "part of the type 'image'": {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
    "not a list of messages": {"messages": "hello"},
    "has instruction, output": {"instruction": "a", "output": "b"},
    "neither its input_ids nor -100": {"input_ids": [1, 2], "labels": [1, 3]},
    "has the token 9999": {"input_ids": [1, 9999]},
    "message 1 is str": {"messages": ["hello"]},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_rows_that_are_refused_with_file_and_line(sentence, folder, tmp_path):
    with pytest.raises(JobError, match=r"chats\.jsonl:2") as refused:
        read(folder, tmp_path, {"messages": TALK}, REFUSED[sentence])
    assert sentence in refused.value.message


def test_tool_calls_reach_the_template_as_objects(folder, tmp_path):
    shows = "{{ tools[0].name }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
    shows += "{{ c.function.arguments.x }}<|im_end|>{% endfor %}{% endfor %}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "blue"}'}}
    says = {"role": "assistant", "content": None, "tool_calls": [call]}
    row = {"messages": [TALK[0], says], "tools": '[{"name": "f"}]'}
    other = tmp_path / "tools"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "chat_template.jinja").write_text(shows)
    documents, _, _ = read(folder, tmp_path, row, tokenizer=other)
    assert learnt(folder, documents) == [["assistant:blue<|im_end|>"]]


def test_without_a_template_a_sentence_says_what_to_do(tmp_path):
    with pytest.raises(JobError, match="messages need a chat template") as refused:
        read(None, tmp_path, {"messages": TALK}, tokenizer="bytes")
    assert "chat_template.jinja" in refused.value.hint
    documents, _, _ = read(None, tmp_path, {"prompt": "ab", "completion": "cd"}, tokenizer="bytes")
    assert documents == [[(97, False), (98, False), (99, True), (100, True)]]


def test_long_conversations_are_cut_and_counted(folder, tmp_path):
    long = {"messages": [TALK[0], {"role": "assistant", "content": "is blue " * 50}]}
    late = {"messages": [{"role": "user", "content": "the sea " * 50}, TALK[1]]}
    documents, told, _ = read(folder, tmp_path, long, late, {"messages": TALK[:2]}, context=40)
    assert len(documents) == 2 and max(map(len, documents)) == 41
    assert any("1 conversations are longer than model.context = 40" in one for one in told)
    assert any("1 conversations have nothing to learn before the sample's end" in one for one in told)


def test_rows_are_packed_or_padded_and_held_out_whole(folder, tmp_path):
    rows = [{"prompt": f"the {number} ", "completion": "sun" * (1 + number % 3)} for number in range(40)]
    seen = {}
    for pack in (True, False):
        _, _, made = read(folder, tmp_path, *rows, pack=pack, validation=0.1, context=40)
        whole = np.frombuffer(made.path.read_bytes(), "<u4").reshape(-1, 41)
        counts = np.frombuffer(made.path.with_name(made.path.name + ".counts").read_bytes(), "<u4")
        assert counts.tolist() == np.count_nonzero(whole & TRAINED, axis=1).tolist()
        assert made.packed == pack and len(whole) == made.samples + made.validation_samples
        assert made.trained == counts[: made.samples].sum()
        seen[pack] = whole, made
    assert len(seen[True][0]) < len(seen[False][0]) == 40 and seen[False][1].validation_samples == 4
    assert (places_of(seen[True][0]).max(axis=1) < 40).all()
    both = [np.sort(whole[(whole & TRAINED) > 0]) for whole, _ in seen.values()]
    assert np.array_equal(*both)


def test_packing_loses_nothing():
    lengths = [int(one) for one in np.random.default_rng(0).integers(2, 40, 3000)]
    rows = packed(lengths, 41, True)
    assert sorted(number for row in rows for number in row) == list(range(3000))
    assert all(sum(lengths[number] for number in row) <= 41 for row in rows)
    assert sum(lengths) / (41 * len(rows)) > 0.9
