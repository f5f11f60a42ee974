"""Texts to tokens, and tokens to examples.

Texts of several users share a call of the tokenizer (for speed) and nothing else: each is encoded
by itself, without padding or truncation, and an example is cut from one record only.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from userdp.core.codec import parse
from userdp.core.errors import UseError, in_short
from userdp.data.records import MARKUP, TARGET
from userdp.data.store_meta import token_dtype

BUNDLED_TOKENIZER = Path(__file__).parent.parent / "assets" / "base-model" / "tokenizer.json"

LONG_TEXT = 2**20
_LOOK = 2**12
_SPACE = re.compile(r"\s")

_END_OF_TEXT = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endofsentence|>", "[EOS]",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreTokenizer:
    """A tokenizer and the facts of it that a store keeps.

    Args:
        encoder: padding and truncation are off; special tokens that stand in a text are read as
            plain text, so that nobody's text can end a record or open a role.
        markup_encoder: the same, but special tokens are such: for a chat template's own text.
        content: the bytes of tokenizer.json.
        vocab_size: greatest id plus one.
        end_of_text_id: None if the tokenizer names no such token.
    """

    encoder: Tokenizer
    markup_encoder: Tokenizer
    content: bytes
    vocab_size: int
    end_of_text_id: int | None = None

    @classmethod
    def load(cls, path: Path | None = None) -> StoreTokenizer:
        """Read ``tokenizer.json``, or a folder that holds one; None: the bundled one.

        The end-of-text token is ``eos_token`` of a ``tokenizer_config.json`` beside it, else the
        first of the usual names that is a special token.

        Raises:
            UseError: nothing there, or not a tokenizer.
        """
        file = BUNDLED_TOKENIZER if path is None else path
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise UseError(
                f"no tokenizer at {file}",
                hint="give a tokenizer.json of the `tokenizers` library, or a folder with one",
            )
        content = file.read_bytes()
        try:
            parse(content)
            tokenizer = _of_content(content)
        except Exception as error:  # the library raises bare `Exception`s, of no class of its own
            raise UseError(
                f"{file} is not a tokenizer.json: {in_short(error)}",
                hint="save a trained one with `tokenizer.save(path)` of the `tokenizers` library",
            ) from error
        config = file.with_name("tokenizer_config.json")
        return tokenizer.with_end(_end_of_text(tokenizer.markup_encoder, config))

    def __reduce__(self) -> tuple[Any, ...]:
        """Its pickle is the file: the library's own forgets ``encode_special_tokens``."""
        return _of_content, (self.content, self.end_of_text_id)

    @property
    def sha256(self) -> str:
        """Of tokenizer.json's bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def dtype(self) -> str:
        """The store's type of a token."""
        return token_dtype(self.vocab_size)

    def with_end(self, end_of_text_id: int | None) -> StoreTokenizer:
        """The same tokenizer with another end-of-text token."""
        return replace(self, end_of_text_id=end_of_text_id)

    def encode_pieces(
        self, text: str, pieces: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        """The tokens of a conversation, and for each whether the loss counts it.

        They are those of the whole text, as `transformers` makes them. Only where a person's text
        spells a special token is each piece encoded by itself, so that the token is plain there.

        Args:
            text: of the conversation.
            pieces: `Record.pieces`.
        """
        ends, kinds = (np.array(column) for column in zip(*pieces, strict=True))
        with _encoding_errors():
            whole = self.markup_encoder.encode(text, add_special_tokens=False)
        # Each property of an encoding is a copy of all of it.
        whole_ids, offsets, names = whole.ids, whole.offsets, whole.tokens
        first, last = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        begin = np.searchsorted(ends, np.minimum(first, len(text) - 1), side="right")
        end = np.searchsorted(ends, np.maximum(last - 1, first).clip(max=len(text) - 1), "right")
        special = {
            i for i, one in self.markup_encoder.get_added_tokens_decoder().items() if one.special
        }
        plain = ~(kinds[begin] & kinds[end] & MARKUP).astype(bool)
        suspects = plain & np.isin(whole_ids, list(special))
        if not any(
            _spelt(text[slice(*offsets[number])], names[number])
            for number in np.flatnonzero(suspects).tolist()
        ):
            return whole_ids, ((kinds[begin] | kinds[end]) & TARGET).tolist()
        ids: list[int] = []
        marks: list[int] = []
        at = 0
        for stop, kind in pieces:
            encoder = self.markup_encoder if kind & MARKUP else self.encoder
            with _encoding_errors():
                new = encoder.encode(text[at:stop], add_special_tokens=False).ids
            ids += new
            marks += [kind & TARGET] * len(new)
            at = stop
        return ids, marks

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's tokens, the end-of-text token last where the tokenizer has one."""
        tokens, sizes = self.encode_flat(texts)
        return [part.tolist() for part in np.split(tokens, np.cumsum(sizes))[:-1]]

    def encode_flat(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """What `encode` gives, flat: tokens as ``dtype``, and int64 (texts,) how many of each."""
        ids = self._ids(texts)
        if self.end_of_text_id is not None:
            for one in ids:
                one.append(self.end_of_text_id)
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), self.dtype, int(sizes.sum())), sizes

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's own tokens.

        A text of more than `LONG_TEXT` characters is encoded in pieces, cut before white space:
        the library keeps some hundred bytes of each token until a text is done.
        """
        if max(map(len, texts), default=0) > LONG_TEXT:
            parts = [[self._batch([piece])[0] for piece in _short(text)] for text in texts]
            return [list(chain.from_iterable(part)) for part in parts]
        return self._batch(texts)

    def _batch(self, texts: Sequence[str]) -> list[list[int]]:
        with _encoding_errors():
            encodings = self.encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def _of_content(content: bytes, end_of_text_id: int | None = None) -> StoreTokenizer:
    """The tokenizer of a tokenizer.json with these bytes; all errors are the library's."""
    encoder = Tokenizer.from_str(content.decode())
    size = max(encoder.get_vocab(with_added_tokens=True).values()) + 1
    encoder.no_padding()
    encoder.no_truncation()
    markup_encoder = Tokenizer.from_str(encoder.to_str())
    encoder.encode_special_tokens = True
    return StoreTokenizer(
        encoder=encoder,
        markup_encoder=markup_encoder,
        content=content,
        vocab_size=size,
        end_of_text_id=end_of_text_id,
    )


def _spelt(text: str, token: str) -> bool:
    """Whether the text is a token's name; the token for unknown text stands for other text too."""
    return text.strip().casefold() == token.casefold()


@contextlib.contextmanager
def _encoding_errors() -> Iterator[None]:
    """`UseError` where a text cannot be encoded; its message quotes no text."""
    try:
        yield
    except Exception as error:  # a bare one, whose message may quote the text
        raise UseError(
            "the tokenizer cannot encode some of the text: it has no token for what is unknown",
            hint="give a tokenizer.json that encodes any text, as those of trained models do",
        ) from error


def _short(text: str) -> Iterator[str]:
    """``text`` in pieces of about `LONG_TEXT` characters, cut before white space where there is."""
    begin = 0
    while len(text) - begin > LONG_TEXT:
        end = begin + LONG_TEXT
        space = _SPACE.search(text, end, min(len(text), end + _LOOK))
        end = space.start() if space else end
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _end_of_text(encoder: Tokenizer, config: Path) -> int | None:
    named: object = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        named = parse(config.read_bytes())["eos_token"]
    if isinstance(named, dict):
        named = named.get("content")
    special = {t.content for t in encoder.get_added_tokens_decoder().values() if t.special}
    names = [named] if isinstance(named, str) else []
    for name in names + [usual for usual in _END_OF_TEXT if usual in special]:
        index = encoder.token_to_id(name)
        if index is not None:
            return int(index)
    return None
