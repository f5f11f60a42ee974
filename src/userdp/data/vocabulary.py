"""Train a tokenizer, on public text only.

Never on private text (pitfall 29): merges are chosen by counts over everybody, so one user's
words would change how all others are tokenized, and rare words of one person can become pieces
of the vocabulary that is released. Userdp therefore has no command that trains a tokenizer on
a store or on private sources; this helper is for the text of the bundled base model.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

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
