"""First stage of the bundled base model: its tokenizer, from the standard library's docstrings.

Run ``python scripts/make_tokenizer.py``. Public text only (pitfall 29): docstrings of Python's
own library and `pydoc_data.topics`, nothing else. `scripts/make_base_model.py` goes on from here.

Never on private text (pitfall 29): merges are chosen by counts over everybody, so one user's
words would change how all others are tokenized, and rare words of one person can become pieces
of the vocabulary that is released. Userdp therefore has no command
that trains a tokenizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from userdp.core.stages import Progress
from userdp.data.records import Tally
from userdp.data.sources import open_source
from userdp.data.store_tokenizer import BUNDLED_TOKENIZER

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(public_texts: Iterable[str], *, vocab_size: int = 4096) -> Tokenizer:
    """A byte-level BPE tokenizer in GPT-2's manner; id 0 is ``<|endoftext|>``.

    Guarantee: none whatever. The vocabulary is an exact function of the texts.

    Args:
        public_texts: text that anybody may see. Never private text.
        vocab_size: pieces, at least 257 (all bytes and the end of text).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(public_texts, trainer=trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED_TOKENIZER)
    parser.add_argument("--vocab-size", type=int, default=4096)
    options = parser.parse_args()
    source = open_source(["stdlib"], kind="docstrings")
    texts = sorted(record.text.decode() for record in source.records(Tally(), Progress()))
    tokenizer = train_tokenizer(texts, vocab_size=options.vocab_size)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.out.with_suffix(".partial")
    temporary.write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    temporary.replace(options.out)
    print(f"{options.out}: {tokenizer.get_vocab_size()} pieces from {len(texts)} docstrings")


if __name__ == "__main__":
    main()
