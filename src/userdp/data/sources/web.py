"""Web text, C4 and CC-News: the user is the registered domain of a record's URL (extra ``web``).

Expected input, JSON Lines or Parquet, as ``c4-train.00000-of-01024.json.gz`` of ``allenai/c4``, or
``cc_news.jsonl``::

    {"url": "https://www.example.co.uk/a", "timestamp": "2019-04-25T12:57:54Z", "text": "..."}

The user is ``example.co.uk``. The split is the one of Charles et al. 2024, Appendix D, for CC-News:
users of a single record are dropped; the first tenth of each user's records, at most 32, is held
out. The public-suffix list that `tldextract` carries tells which part of a host name is
registered; no network is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from userdp.core.environment import library
from userdp.data.records import Drop
from userdp.data.sources.parsing import Table, plain_parser
from userdp.data.sources.source import SourceOptions
from userdp.data.sources.tables import open_tables


def open_web(paths: list[str], options: SourceOptions, *, kind: str) -> Table:
    """The source for files, folders and patterns ``paths`` of kind "c4" or "ccnews"."""
    named = replace(options, user=options.url)
    # C4 names its files *.json.gz though they are JSON Lines.
    table = open_tables(paths, named, more=(".json", ".json.gz"))
    return replace(table, kind=kind, parser=plain_parser(named, domain_of))


def is_c4(path: Path) -> bool:
    """By C4's own file names."""
    names = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.startswith("c4-") and ".json" in file.name for file in names)


@lru_cache(maxsize=2**16)
def domain_of(url: str) -> bytes | Drop:
    """The registered domain of a URL, or why there is none.

    >>> domain_of("https://news.bbc.co.uk:443/world?x=1"), domain_of("http://192.168.0.1/")
    (b'bbc.co.uk', <Drop.NO_DOMAIN: 'URL without a registered domain'>)
    """
    try:
        parts = _extractor()(url)
        if not (parts.domain and parts.suffix):
            return Drop.NO_DOMAIN
        # Hosts ignore case, and are written in letters or in punycode: one spelling of each.
        return f"{parts.domain}.{parts.suffix}".lower().encode("idna").decode("idna").encode()
    except (UnicodeError, ValueError):
        return Drop.NO_DOMAIN


@lru_cache
def _extractor() -> Callable[[str], Any]:
    tldextract = library("tldextract", extra="web", what="telling the domain of a URL")
    extract: Callable[[str], Any] = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    return extract
