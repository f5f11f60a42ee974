"""A trainer's data set becomes a user store, and finds its ledger again.

ε adds up in the ledger of a *store*, over all runs. So the script names the store (``store=``), and
there is no default in the output folder: a second script with another output folder would begin
with an empty ledger, and nobody would add the two prices. The rules:

- nothing lies at ``store``: the data set is prepared there, all of it for training;
- a store lies there: the data set is prepared again beside it and compared. The same content keeps
  the store and its ledger; other content is refused, since the ledger speaks of other text;
- no data set is given: the store is taken as it is (a part of it may be held out).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from userdp.core import files
from userdp.core.errors import UseError
from userdp.data.sources import Source, SourceOptions, memory, tokens
from userdp.data.store_meta import is_store
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.training.private_run import opened

LONGEST = 1024
"""`seq_len` where nobody gave one, or what the model can read; TRL's ``max_length`` as well. No
number is taken from the data: its longest row is some user's."""


def store_of(
    dataset: Any,
    store: UserStore | str | os.PathLike[str],
    *,
    processing_class: Any,
    user_column: str,
    text_column: str,
    seq_len: int,
) -> UserStore:
    """The user store of a data set; see this file's head for the rules.

    Guarantee (invariants 10 and 11): each row is stored or counted as dropped, depending only on
    that row, the tokenizer and ``seq_len``. A row of more than ``seq_len`` tokens becomes several
    examples.

    Args:
        dataset: a `datasets.Dataset`, or whatever `userdp.prepare` takes for a table: with
            ``input_ids`` (and perhaps ``labels``, ``attention_mask``), or with text; read through
            its transform, if it has one; None for the store as it is.
        store: where the store is or shall be, or one that is open.
        processing_class: the tokenizer that made ``input_ids``, or that is to read the text.
        user_column: the column that names a row's user.
        text_column: the column of the text, where there is no ``input_ids``.
        seq_len: most tokens of an example.

    Raises:
        UseError: there is nothing to train on, the columns do not fit, or another data set's store
            lies there.
    """
    if dataset is None:
        return opened(store)
    place = store.path if isinstance(store, UserStore) else Path(store)
    place.parent.mkdir(parents=True, exist_ok=True)
    columns = {name for names in memory.first_fields(dataset) for name in names}
    with files.working_folder(place.parent, place.name) as beside:
        words = beside / "tokenizer.json"
        files.write_file(words, _tokenizer_file(processing_class), mode=files.OPERATOR_FILE)
        tokenizer = StoreTokenizer.load(words)
        source: Source
        if tokens.IDS in columns:
            tokenizer = tokens.ReadyTokens.of(tokenizer)
            labels, vocab_size = tokens.LABELS in columns, tokenizer.vocab_size
            source = tokens.build(dataset, user=user_column, labels=labels, vocab_size=vocab_size)
        else:
            source = memory.table_source(dataset, SourceOptions(user=user_column, text=text_column))
        # Grouping needs a database, and training as a whole must not.
        from userdp.data.pipeline import prepare_store

        meta = prepare_store(
            source,
            beside / "store" if is_store(place) else place,
            tokenizer=tokenizer,
            seq_len=seq_len,
            held_out_users=0.0,
            held_out_examples=0.0,
        )
    people = opened(place)
    if people.meta.content_sha256 != meta.content_sha256:
        raise UseError(
            f"the store at {place} holds another data set, or other examples of this one (by its "
            "users, rows, tokenizer, seq_len), and its ledger speaks of those",
            hint="name another folder for other people. For more text of the same people use "
            "userdp.prepare(..., append=True), and leave train_dataset out",
        )
    return people


def _tokenizer_file(processing_class: Any) -> bytes:
    """tokenizer.json of a tokenizer of `transformers`."""
    backend = getattr(processing_class, "backend_tokenizer", None)
    if backend is None:
        raise UseError(
            f"processing_class={processing_class!r} has no tokenizer.json; a user store keeps it",
            hint="give a fast tokenizer: AutoTokenizer.from_pretrained(..., use_fast=True)",
        )
    return str(backend.to_str()).encode()
