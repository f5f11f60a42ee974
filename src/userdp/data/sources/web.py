"""Web text: the user is the registered domain of a record's URL (extra ``web``).

Which part of a host name is registered is told by the public-suffix list that `tldextract`
carries; no network is used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from userdp.data.records import Drop
from userdp.data.sources import jsonl
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.parquet import build_table
from userdp.data.sources.rows import plain_parser
from userdp.data.sources.table import FileTable
from userdp.extras import library


def build_web(kind: str, paths: list[str], options: SourceOptions) -> FileTable:
    """JSON Lines (C4's own layout) or Parquet with a URL per record."""
    named = replace(options, user=options.url)
    # C4 names its files *.json.gz though they are JSON Lines.
    table = build_table(paths, named, suffixes=(*jsonl.SUFFIXES, ".json", ".json.gz"))
    parser = replace(plain_parser(named), user_of=BaseDomain())
    return replace(table, kind=kind, parser=parser)


class BaseDomain:
    """URL to registered domain.

    >>> of = BaseDomain()
    >>> of("https://news.bbc.co.uk:443/world?x=1"), of("http://192.168.0.1/")
    (b'bbc.co.uk', <Drop.NO_DOMAIN: 'URL without a registered domain'>)
    """

    def __init__(self) -> None:
        tldextract = library("tldextract", extra="web", what="telling the domain of a URL")
        self._extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        self._known = lru_cache(maxsize=2**16)(self._of)

    def __call__(self, url: str) -> bytes | Drop:
        """The domain, or why there is none."""
        return self._known(url)

    def __reduce__(self) -> tuple[type[BaseDomain], tuple[()]]:
        """Pickled as nothing: another process has a cache of its own."""
        return BaseDomain, ()

    def _of(self, url: str) -> bytes | Drop:
        try:
            parts = self._extract(url)
            domain: bytes = f"{parts.domain}.{parts.suffix}".encode()
        except (UnicodeError, ValueError):
            return Drop.NO_DOMAIN
        return domain if parts.domain and parts.suffix else Drop.NO_DOMAIN
