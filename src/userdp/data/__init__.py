"""From records to a user store, and from a store to rows of tokens.

The way of the data: a *source* (`sources/`) yields records and counts what it drops;
`grouping` brings each user's records together in bounded memory; `tokenize` turns them into
tokens, `cutting` into examples; `splits` holds users and records out by a per-user hash; `writer`
writes the store whose layout `format` describes; `store` reads it; `selection` caps a user's
examples; `statistics` describes a store to its operator.

The names below are for users of the library; they are imported when they are asked for. Other
modules of userdp import from the files themselves.

Guarantee (invariant 11): every decision about a private user's records depends on that user's
records, public data and a per-user hash only. Guarantee (invariant 10): every record read is
stored or counted as dropped, with its reason.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from userdp.data.grouping import GroupingEngine
    from userdp.data.ownership import Owners
    from userdp.data.prepare import append_records, prepare_store
    from userdp.data.records import Drop, Record, Tally
    from userdp.data.sources import Source, SourceOptions, open_source
    from userdp.data.splits import Split, SplitRule
    from userdp.data.statistics import describe
    from userdp.data.store import StoreSplit, TokenRows, UserStore
    from userdp.data.strategy import Strategy
    from userdp.data.tokenize import StoreTokenizer
    from userdp.data.verify import verify_store
    from userdp.data.writer import StoreWriter

_MODULES = {
    "grouping": ("GroupingEngine",),
    "ownership": ("Owners",),
    "prepare": ("append_records", "prepare_store"),
    "records": ("Drop", "Record", "Tally"),
    "sources": ("Source", "SourceOptions", "open_source"),
    "splits": ("Split", "SplitRule"),
    "statistics": ("describe",),
    "store": ("StoreSplit", "TokenRows", "UserStore"),
    "strategy": ("Strategy",),
    "tokenize": ("StoreTokenizer",),
    "verify": ("verify_store",),
    "writer": ("StoreWriter",),
}

__all__ = [
    "Drop", "GroupingEngine", "Owners", "Record", "Source", "SourceOptions", "Split", "SplitRule",
    "StoreSplit", "StoreTokenizer", "StoreWriter", "Strategy", "Tally", "TokenRows", "UserStore",
    "append_records", "describe", "open_source", "prepare_store", "verify_store",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, from the file that defines it."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"userdp.data.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
