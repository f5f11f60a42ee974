"""Made-up words w0, w1, …, and a tokenizer that has one token for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WORDS = tuple(f"w{number}" for number in range(30))
"""What the records of small stores are made of."""


def write_tokenizer(path: Path, words: Sequence[str] = WORDS) -> Path:
    """Write a ``tokenizer.json`` of ``words``, an end of text (0) and an unknown word (1)."""
    # Loaded here: processes that are forked to be killed import this file before anything of ours.
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: n for n, word in enumerate(["<|endoftext|>", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return path
