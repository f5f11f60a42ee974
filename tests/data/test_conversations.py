"""Stores with a loss mask: which tokens the loss counts, from conversation to gathered row."""

from __future__ import annotations

import time

import pytest
from tokenizers import Tokenizer, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.data.corpora import ListSource, corpus, interleaved, prepared, problems_of, write_jsonl
from tests.data.sources.fixtures import read, write_parquet
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import TARGET, Drop, ExampleDrop, Record, Tally
from userdp.data.sources import SourceOptions, open_source
from userdp.data.store_contents import members_of
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore

TOKENIZER = StoreTokenizer.load()


def said(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


CHAT = [
    {"user": "ana", "messages": [said("user", "Why?"), said("assistant", "Because.")]},
    {"user": "ben", "prompt": "And <|im_end|>?", "completion": "So."},
    {"user": "ana", "messages": [said("user", "Hello?")]},
    {"user": "ana", "messages": [{"role": "user"}]},
    {"user": "ana", "messages": []},
    {"user": "ana", "prompt": "x", "completion": 3},
]
WHY = "User: Why?\n\nAssistant: Because.\n\n"
SO = "User: And <|im_end|>?\n\nAssistant: So.\n\n"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
    "{% endfor %}"
)
MARKED = (
    "{% for m in messages %}{%- if m.role == 'assistant' -%}{%- generation -%}{{ m.content }}"
    "{%- endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
SHAREGPT = {"user": "ben", "conversations": [
    {"from": "system", "value": "Be kind."}, {"from": "human", "value": "When?"},
    {"from": "gpt", "value": "At noon."}]}  # fmt: skip
FOUR = [said(role, f"{role} {n}") for n, role in enumerate(("user", "assistant") * 2)]
PARTS = [{"type": "text", "text": "a list"}, {"type": "text", "text": " here"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
TALKS: dict[str, tuple[list, dict, list[tuple[str, list[str]]], dict[Drop, int]]] = {
    "messages": (CHAT[:1], {}, [(WHY, ["Because.", "\n\n"])], {}),
    "prompts": (CHAT[1:2], {}, [(SO, ["So.", "\n\n"])], {}),
    "ShareGPT's": ([SHAREGPT], {}, [("System: Be kind.\n\nUser: When?\n\nAssistant: At noon.\n\n",
                                     ["At noon.", "\n\n"])], {}),
    "what is none is counted": (
        CHAT, {}, [(WHY, ["Because.", "\n\n"]), (SO, ["So.", "\n\n"])],
        dict.fromkeys((Drop.NO_ANSWER, Drop.NO_CONTENT, Drop.NOT_TEXT, Drop.EMPTY_TEXT), 1)),
    "a template": (
        CHAT[:1], {"chat_template": CHATML, "special_tokens": (("eos_token", "<|im_end|>"),)},
        [("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause.<|im_end|>\n",
          ["Because.", "<|im_end|>"])], {}),
    "a template hears the roles that it knows": (
        [SHAREGPT], {"chat_template": "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
                                      "{% endfor %}"},
        [("<system>Be kind.<user>When?<assistant>At noon.", ["At noon."])], {}),
    "a template may mark the assistant's turns": (
        [SHAREGPT], {"chat_template": MARKED}, [("Be kind.When?At noon.", ["At noon."])], {}),
    "a template may move the system's message": (
        [SHAREGPT], {"chat_template": "{% for m in messages[1:] + messages[:1] %}{{ m.content }};"
                                      "{% endfor %}"},
        [("When?;At noon.;Be kind.;", ["At noon."])], {}),
    "a template may refuse": (
        CHAT[:1], {"chat_template": "{{ raise_exception('roles must alternate') }}"}, [],
        {Drop.BAD_TEMPLATE: 1}),
    "parts of a message are its text": (
        [{"user": "ana", "messages": [said("assistant", PARTS)]}], {},
        [("Assistant: a list here\n\n", ["a list here", "\n\n"])], {}),
    "a tool call has a reason of its own": (
        [{"user": "ben", "messages": [CALL]}], {}, [], {Drop.NO_CONTENT: 1}),
    "of a prompt in messages no turn is a target": (
        [{"user": "ana", "prompt": FOUR[:3], "completion": FOUR[3:]}], {},
        [("User: user 0\n\nAssistant: assistant 1\n\nUser: user 2\n\nAssistant: assistant 3\n\n",
          ["assistant 3", "\n\n"])], {}),
}  # fmt: skip
"""Rows, options, the text and the targets of each record, and the drops."""


def targets(record) -> list[str]:
    """The pieces of a record that the loss counts."""
    text, begin, found = record.text.decode(), 0, []
    for end, kind in record.pieces:
        if kind & TARGET:
            found.append(text[begin:end])
        begin = end
    return found


@pytest.mark.parametrize("name", TALKS)
def test_a_conversation_is_written_and_the_assistants_last_words_are_the_targets(tmp_path, name):
    """No option is needed: the names of the fields tell."""
    rows, options, expected, drops = TALKS[name]
    files = [write_jsonl(tmp_path / "a.jsonl", rows)]
    if len(rows) == 1:
        files.append(write_parquet(tmp_path / "a.parquet", rows))
    for file in files:
        records, tally = read(file, **options)
        assert [(record.text.decode(), targets(record)) for record in records] == expected
        assert tally.drops == {str(reason): count for reason, count in drops.items()}


def test_a_template_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(UseError, match="template cannot be read"):
        read(write_jsonl(tmp_path / "a.jsonl", CHAT[:1]), chat_template="{% if %}")


def store_of(path, source, seq_len=64) -> UserStore:
    prepare_store(source, path, tokenizer=TOKENIZER, seq_len=seq_len, held_out_users=0,
                  held_out_examples=0)  # fmt: skip
    return UserStore.open(path)


def all_rows(store):
    split = store.split("train")
    return split.gather(*members_of(split.counts))


def words(tokens) -> str:
    return TOKENIZER.encoder.decode(list(map(int, tokens)), skip_special_tokens=False)


def test_a_conversation_has_the_tokens_that_transformers_makes_of_it(tmp_path):
    """SentencePiece writes a blank before each text: of pieces there would be one before each."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
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
    (record,) = open_source([str(file)], options=options).records(Tally(), Progress())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids, targets = StoreTokenizer.load(tmp_path).encode_pieces(record.text.decode(), record.pieces)
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
    options = SourceOptions(chat_template=CHATML.replace("<|im_end|>", "<|endoftext|>"))
    store = store_of(
        tmp_path / "s", open_source([str(file)], kind="conversations", options=options)
    )
    row = all_rows(store)
    assert (row.tokens == end).sum() == 3  # two turns, and the record's own end
    assert words(row.tokens[row.targets]) == "<|endoftext|>!<|endoftext|>"
    assert row.targets[row.tokens == end].tolist() == [False, True, False]


def test_examples_without_a_target_are_counted_and_left_out(tmp_path):
    text = "question" * 40 + "\n\nanswer"
    answered = Record(b"u", text.encode(), pieces=((len(text) - 6, 0), (len(text), TARGET)))
    source = ListSource((answered, Record(b"u", b"plain", pieces=((5, 0),))), loss_mask=True)
    store = store_of(tmp_path / "store", source, seq_len=8)
    rows = all_rows(store)
    assert len(rows) == 1
    assert "answer" in words(rows.tokens[rows.targets])
    assert store.meta.example_drops[str(ExampleDrop.NO_TARGET)] > 4
    assert store.meta.drops == {str(Drop.NO_ANSWER): 1}


def test_a_store_without_a_mask_has_no_targets_and_the_two_do_not_mix(tmp_path):
    store = prepared(corpus(3), tmp_path / "plain")
    assert all_rows(store).targets is None
    chats = open_source([str(write_jsonl(tmp_path / "a.jsonl", CHAT))], kind="conversations")
    with pytest.raises(UseError, match="conversation"):
        append_records(chats, store.path)
    masked = store_of(tmp_path / "masked", chats)
    with pytest.raises(UseError, match="conversation"):
        append_records(ListSource(interleaved(corpus(2))), masked.path)
    append_records(chats, masked.path)
    assert not problems_of(masked.path)
    assert all_rows(UserStore.open(masked.path)).targets.sum() == 2 * all_rows(masked).targets.sum()
