"""Stores with a loss mask: which tokens the loss counts, from conversation to gathered row."""

from __future__ import annotations

import time

import pytest
from tokenizers import Tokenizer, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.data.corpora import ListSource, corpus, interleaved, prepared, problems_of, write_jsonl
from tests.data.sources.fixtures import pairs, read, write_parquet
from userdp.core.errors import UseError
from userdp.core.stages import NoProgress
from userdp.data.arrow_files import members_of
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import TARGET, Drop, ExampleDrop, Record, Tally
from userdp.data.sources import SourceOptions, open_source
from userdp.data.sources.conversations import render
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore

TOKENIZER = StoreTokenizer.load()


CHAT = [
    {"user": "ana", "messages": [{"role": "user", "content": "Why?"},
                                 {"role": "assistant", "content": "Because."}]},
    {"user": "ben", "prompt": "And <|im_end|>?", "completion": "So."},
    {"user": "ana", "messages": [{"role": "user", "content": "Hello?"}]},
    {"user": "ana", "messages": [{"role": "user"}]},
    {"user": "ana", "messages": []},
    {"user": "ana", "prompt": "x", "completion": 3},
]  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
    "{% endfor %}"
)


def targets(record) -> list[str]:
    """The pieces of a record that the loss counts."""
    text, begin, found = record.text.decode(), 0, []
    for end, kind in record.pieces:
        if kind & TARGET:
            found.append(text[begin:end])
        begin = end
    return found


SHAREGPT = [
    {"user": "ben", "conversations": [{"from": "system", "value": "Be kind."},
                                      {"from": "human", "value": "When?"},
                                      {"from": "gpt", "value": "At noon."}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "suffix"), [(write_jsonl, ".jsonl"), (write_parquet, ".parquet")]
)
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (CHAT[:1], "User: Why?\n\nAssistant: Because.\n\n"),
        (SHAREGPT, "System: Be kind.\n\nUser: When?\n\nAssistant: At noon.\n\n"),
        (CHAT[1:2], "User: And <|im_end|>?\n\nAssistant: So.\n\n"),
    ],
    ids=["messages", "sharegpt", "prompts"],
)
def test_conversations_need_no_option(tmp_path, write, suffix, rows, text):
    records, tally = read(write(tmp_path / f"a{suffix}", rows))
    assert [record.text.decode() for record in records] == [text]
    assert targets(records[0])[-1] == "\n\n"
    assert tally.drops == {}


def test_conversations_mark_the_assistants_words_and_the_end_of_its_turn(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", CHAT)
    records, tally = read(file, kind="conversations")
    assert [r.text.decode() for r in records] == [
        "User: Why?\n\nAssistant: Because.\n\n", "User: And <|im_end|>?\n\nAssistant: So.\n\n"
    ]  # fmt: skip
    assert [targets(record) for record in records] == [["Because.", "\n\n"], ["So.", "\n\n"]]
    assert tally.drops == {
        str(Drop.NO_ANSWER): 1, str(Drop.NO_CONTENT): 1, str(Drop.NOT_TEXT): 1,
        str(Drop.EMPTY_TEXT): 1,
    }  # fmt: skip
    records, _ = read(
        file,
        kind="conversations",
        chat_template=CHATML,
        special_tokens=(("eos_token", "<|im_end|>"),),
    )
    assert [targets(record) for record in records] == [
        ["Because.", "<|im_end|>"],
        ["So.", "<|im_end|>"],
    ]


def test_parts_of_a_message_are_its_text_and_a_tool_call_has_a_reason_of_its_own(tmp_path):
    parts = [{"type": "text", "text": "a list"}, {"type": "text", "text": " here"}]
    rows = [
        {"user": "ana", "messages": [{"role": "assistant", "content": parts}]},
        {"user": "ben", "messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
    ]
    records, tally = read(write_jsonl(tmp_path / "a.jsonl", rows))
    assert pairs(records) == [("ana", "Assistant: a list here\n\n")]
    assert tally.drops == {str(Drop.NO_CONTENT): 1}


def test_of_a_prompt_and_a_completion_in_messages_the_loss_counts_the_completion(tmp_path):
    """As TRL has them; an earlier turn of the assistant in the prompt is no target."""
    talk = [{"role": role, "content": f"{role} {n}"}
            for n, role in enumerate(("user", "assistant", "user", "assistant"))]  # fmt: skip
    row = {"user": "ana", "prompt": talk[:3], "completion": talk[3:]}
    records, _ = read(write_jsonl(tmp_path / "a.jsonl", [row]))
    whole = "User: user 0\n\nAssistant: assistant 1\n\nUser: user 2\n\nAssistant: assistant 3\n\n"
    assert pairs(records) == [("ana", whole)]
    assert targets(records[0]) == ["assistant 3", "\n\n"]


def test_a_template_hears_the_roles_that_it_knows(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", SHAREGPT)
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    records, _ = read(file, chat_template=template)
    assert records[0].text == b"<system>Be kind.<user>When?<assistant>At noon."


def test_a_template_may_mark_the_assistants_turns_and_move_the_systems_message():
    marked = SourceOptions(
        chat_template="{% for m in messages %}{%- if m.role == 'assistant' -%}"
        "{%- generation -%}{{ m.content }}{%- endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    talk = [("system", "S"), ("user", "U"), ("assistant", "A")]
    assert render(talk, 0, marked)[0] == "SUA"
    moved = "{% for m in messages[1:] + messages[:1] %}{{ m.content }};{% endfor %}"
    assert render(talk, 0, SourceOptions(chat_template=moved))[0] == "U;A;S;"


def test_a_template_that_refuses_or_cannot_be_read_is_a_counted_drop_or_an_error(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", CHAT[:1])
    refusing = "{{ raise_exception('roles must alternate') }}"
    assert read(file, kind="conversations", chat_template=refusing)[1].drops == {
        str(Drop.BAD_TEMPLATE): 1
    }
    with pytest.raises(UseError, match="template cannot be read"):
        read(file, kind="conversations", chat_template="{% if %}")


def store_of(path, source, seq_len=64) -> UserStore:
    prepare_store(source, path, tokenizer=TOKENIZER, seq_len=seq_len, held_out_users=0,
                  held_out_examples=0)  # fmt: skip
    return UserStore.open(path)


def all_rows(store):
    split = store.split("train")
    return split.gather(*members_of(split.counts))


def words(tokens) -> str:
    return TOKENIZER.encoder.decode(list(map(int, tokens)), skip_special_tokens=False)


def test_the_loss_counts_the_assistants_tokens_only(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", CHAT)
    store = store_of(tmp_path / "store", open_source([str(file)], kind="conversations"))
    assert store.meta.loss_mask
    rows = all_rows(store)
    assert words(rows.tokens[rows.targets]) == " Because.\n\n<|endoftext|> So.\n\n<|endoftext|>"
    assert "User: Why?" in words(rows.tokens[~rows.targets])
    assert not problems_of(store.path)


def test_a_conversation_has_the_tokens_that_transformers_makes_of_it(tmp_path):
    """SentencePiece writes a blank before each text: of pieces there would be one before each."""
    letters = models.BPE(unk_token="<unk>")
    tokenizer = Tokenizer(letters)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.train_from_iterator(
        ["good morning to all", "[INST] what is it [/INST] said nothing"] * 20,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"]),
    )
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
        "[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }}{{ eos_token }}"
        "{% endif %}{% endfor %}"
    )
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named, chat_template=template)
    talk = [{"role": "user", "content": "good morning"},
            {"role": "assistant", "content": "said nothing"}]  # fmt: skip
    options = SourceOptions(chat_template=template, special_tokens=tuple(named.items()))
    file = write_jsonl(tmp_path / "a.jsonl", [{"user": "u", "messages": talk}])
    (record,) = open_source([str(file)], options=options).records(Tally(), NoProgress())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    own = StoreTokenizer.load(tmp_path)
    ids, targets = own.encode_pieces(record.text.decode(), record.pieces)
    assert ids == fast.apply_chat_template(talk, tokenize=True, return_dict=False)
    counted = [token for token, target in zip(ids, targets, strict=True) if target]
    assert "".join(map(tokenizer.id_to_token, counted)) == "[/INST]▁said▁nothing</s>"


def test_one_long_run_of_a_letter_takes_no_longer_than_its_length():
    """An encoding's properties are copies: one for each token took minutes of 80,000 letters."""
    begin = time.process_time()
    ids, marks = TOKENIZER.encode_pieces("a" * 80_000, [(40_000, 0), (80_000, TARGET)])
    assert time.process_time() - begin < 15
    assert len(ids) == len(marks) == 80_000
    assert sum(marks) == 40_000


def test_special_tokens_of_the_template_are_such_and_those_people_wrote_are_plain(tmp_path):
    end = TOKENIZER.end_of_text_id
    rows = [{"user": "u", "prompt": "say <|endoftext|>", "completion": "<|endoftext|>!"}]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    template = CHATML.replace("<|im_end|>", "<|endoftext|>")
    options = SourceOptions(chat_template=template)
    store = store_of(
        tmp_path / "s", open_source([str(file)], kind="conversations", options=options)
    )
    row = all_rows(store)
    assert (row.tokens == end).sum() == 3  # two turns, and the record's own end
    assert words(row.tokens[row.targets]) == "<|endoftext|>!<|endoftext|>"
    assert row.targets[row.tokens == end].tolist() == [False, True, False]


def test_examples_without_a_target_are_counted_and_left_out(tmp_path):
    text = "question" * 40 + "\n\nanswer"
    pieces = ((len(text) - 6, 0), (len(text), TARGET))
    answered = Record(b"u", text.encode(), pieces=pieces)
    other = Record(b"u", b"plain", pieces=((5, 0),))
    source = ListSource((answered, other), loss_mask=True)
    store = store_of(tmp_path / "store", source, seq_len=8)
    rows = all_rows(store)
    assert len(rows) == 1
    assert "answer" in words(rows.tokens[rows.targets])
    assert store.meta.example_drops[str(ExampleDrop.NO_TARGET)] > 4
    assert store.meta.drops == {str(Drop.NO_ANSWER): 1}


def test_a_store_without_a_mask_has_no_targets_and_the_two_do_not_mix(tmp_path):
    store = prepared(corpus(3), tmp_path / "plain")
    assert all_rows(store).targets is None
    file = write_jsonl(tmp_path / "a.jsonl", CHAT)
    chats = open_source([str(file)], kind="conversations")
    with pytest.raises(UseError, match="conversation"):
        append_records(chats, store.path)
    masked = store_of(tmp_path / "masked", chats)
    with pytest.raises(UseError, match="conversation"):
        append_records(ListSource(interleaved(corpus(2))), masked.path)
    append_records(chats, masked.path)
    assert not problems_of(masked.path)
    assert all_rows(UserStore.open(masked.path)).targets.sum() == 2 * all_rows(masked).targets.sum()
