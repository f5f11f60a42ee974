"""Texts to tokens to examples: each record by itself, and one block ahead of the writing."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.make_tokenizer import END_OF_TEXT
from userdp.core.errors import UseError
from userdp.data.examples import ahead, cut_records
from userdp.data.store_tokenizer import BUNDLED_TOKENIZER, StoreTokenizer

TOKENIZER = StoreTokenizer.load()


@given(st.integers(0, 500), st.integers(2, 60))
def test_cut_keeps_every_token_but_a_last_one_alone(tokens, seq_len):
    _, begins, lengths = cut_records(np.array([tokens]), seq_len)
    assert begins.tolist() == list(range(0, tokens - 1, seq_len))
    assert tokens - lengths.sum() in (0, 1)
    assert all(2 <= length <= seq_len for length in lengths.tolist())
    assert all(length == seq_len for length in lengths[:-1].tolist())


@given(st.lists(st.text(), max_size=8))
def test_a_texts_tokens_do_not_depend_on_the_others_in_its_batch(texts):
    tokenizer = TOKENIZER
    assert tokenizer.encode(texts) == [tokenizer.encode([text])[0] for text in texts]


def test_a_long_text_is_encoded_in_pieces_and_nothing_is_lost(monkeypatch):
    text = " ".join(f"word{n}" for n in range(300)) + "x" * 9000 + "\n 日本"
    whole = TOKENIZER.encode([text, "short"])
    monkeypatch.setattr("userdp.data.store_tokenizer.LONG_TEXT", 50)
    monkeypatch.setattr("userdp.data.store_tokenizer._LOOK", 20)
    pieces = TOKENIZER.encode([text, "short"])
    assert pieces[1] == whole[1]
    assert TOKENIZER.encoder.decode(pieces[0]) == TOKENIZER.encoder.decode(whole[0])
    monkeypatch.setattr("userdp.data.store_tokenizer._LOOK", 10**6)
    words = text[:2000]
    assert TOKENIZER.encode([words]) == [TOKENIZER.encoder.encode(words).ids + whole[1][-1:]]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_bundled_tokenizer_loses_nothing(text):
    tokenizer = TOKENIZER
    (tokens,) = tokenizer.encode([text])
    assert tokens[-1] == tokenizer.end_of_text_id
    assert tokenizer.encoder.decode(tokens[:-1]) == text


def test_nobodys_text_can_end_a_record():
    """Nor where a tokenizer was sent to another process; twin: the library's own pickle."""
    tokenizer = StoreTokenizer.load()
    for one in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        (tokens,) = one.encode([f"before {END_OF_TEXT} after"])
        assert tokens.count(tokenizer.end_of_text_id) == 1
    forgetful = replace(tokenizer, encoder=pickle.loads(pickle.dumps(tokenizer.encoder)))
    (tokens,) = forgetful.encode([f"before {END_OF_TEXT} after"])
    assert tokens.count(tokenizer.end_of_text_id) == 2


def test_the_bundled_tokenizer_is_what_the_design_says():
    tokenizer = StoreTokenizer.load()
    assert (tokenizer.vocab_size, tokenizer.end_of_text_id, tokenizer.dtype) == (4096, 0, "uint16")


def test_the_end_of_text_named_in_the_config_is_taken(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(BUNDLED_TOKENIZER.read_bytes())))
    for named in ("!", {"content": "!"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
        tokenizer = StoreTokenizer.load(tmp_path)
        assert tokenizer.end_of_text_id == tokenizer.encoder.token_to_id("!")
    for broken in ("{", "[]", '{"eos_token": null}'):
        (tmp_path / "tokenizer_config.json").write_text(broken)
        assert StoreTokenizer.load(tmp_path).end_of_text_id == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"text", b"\xff\x00", b"[1]", b'{"model": {}}'])
def test_what_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UseError, match="not a tokenizer"):
        StoreTokenizer.load(tmp_path)


def test_results_come_in_order_and_items_are_drawn_only_so_far_ahead():
    drawn: list[int] = []
    items = (drawn.append(n) or n for n in range(50))
    for place, squared in enumerate(ahead(lambda n: n * n, items)):
        assert squared == place**2
        assert len(drawn) <= place + 2


@pytest.mark.parametrize("where", ["function", "items"])
def test_an_error_comes_out_where_its_item_stands(where):
    def failing(n, here):
        if n == 3 and where == here:
            raise OSError("the disk")
        return n

    seen: list[int] = []
    items = (failing(n, "items") for n in range(9))
    with pytest.raises(OSError, match="the disk"):
        seen.extend(ahead(lambda n: failing(n, "function"), items))
    assert seen == [0, 1, 2] if where == "function" else seen == [0, 1]
