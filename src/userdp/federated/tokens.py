"""Text as tokens of a causal language model, for LoRA across silos."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from userdp.errors import UseError
from userdp.federated.data import SubjectItems
from userdp.vocabulary import require_count


def token_items(texts: Iterable[tuple[str, str]], *, base: str, seq_len: int) -> SubjectItems:
    """Items of at most ``seq_len`` tokens: a subject's texts joined in order, and cut.

    Args:
        texts: (user, text).
        base: the folder of the model, with its ``tokenizer.json``, or ``bundled``.
        seq_len: most tokens of an item, at least 2.

    Raises:
        UseError: there is no tokenizer, or no text.
    """
    require_count("seq_len", seq_len, at_least=2)
    tokenizer = _tokenizer(base)
    joined: dict[str, list[int]] = {}
    for user, text in texts:
        joined.setdefault(user, []).extend(tokenizer.encode(text + "\n").ids)
    pieces, owners = [], []
    for owner, numbers in enumerate(joined.values()):
        for begin in range(0, len(numbers) - 1, seq_len):
            pieces.append(numbers[begin : begin + seq_len])
            owners.append(owner)
    if not pieces:
        raise UseError("there is no text to train on")
    rows = np.zeros((len(pieces), seq_len), dtype=np.int64)
    for row, piece in zip(rows, pieces, strict=True):
        row[: len(piece)] = piece
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return SubjectItems.of(rows, lengths, np.array(owners, dtype=np.int64))


def vocabulary_size(base: str) -> int:
    """How many tokens the base model's tokenizer knows: public, unlike the largest that occurs."""
    return int(_tokenizer(base).get_vocab_size())


def _tokenizer(base: str) -> Tokenizer:
    from userdp.training.models import resolve

    path = Path(resolve(base)) / "tokenizer.json"
    if not path.is_file():
        raise UseError(f"{base} has no tokenizer.json", hint="name a model's folder with --base")
    return Tokenizer.from_file(str(path))
