"""From records to a user store, and from a store to rows of tokens.

The way of the data: a *source* (`sources/`) yields records and counts what it drops;
`grouping` brings each user's records together in bounded memory; `tokenize` turns them into
tokens, `examples` into examples; `splits` holds users and records out by a per-user hash; `writer`
writes the store whose layout `meta` describes, one generation of `contents` after another;
`user_store` reads it; `selection` caps a user's examples.

The names below are for users of the library; they are imported when they are asked for. Other
modules of userdp import from the files themselves.

Guarantee (invariant 11): every decision about a private user's records depends on that user's
records, public data and a per-user hash only. Guarantee (invariant 10): every record read is
stored or counted as dropped, with its reason.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "grouping": ("GroupingEngine",),
    "ownership": ("Owners",),
    "pipeline": ("append_records", "prepare_store"),
    "records": ("Drop", "Record", "Tally"),
    "sources": ("Source", "SourceOptions", "open_source"),
    "splits": ("Split", "SplitRule"),
    "user_store": ("StoreSplit", "TokenRows", "UserStore"),
    "strategy": ("Strategy",),
    "tokenize": ("StoreTokenizer",),
    "integrity": ("verify_store",),
    "writer": ("StoreWriter",),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
