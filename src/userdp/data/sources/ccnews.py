"""CC-News (``cc_news``): JSON Lines or Parquet with ``url`` and ``text`` (and others, unread).

Expected input, ``cc_news.jsonl``::

    {"url": "https://www.example.co.uk/a", "title": "...", "text": "..."}

The user is the registered domain of the URL (``example.co.uk``). The split is the one of Charles et
al. 2024, Appendix D, for CC-News: users of a single record are dropped; the first tenth of each
user's records, at most 32, is held out.
"""

from __future__ import annotations

from pathlib import Path

from userdp.data.sources.base import SourceOptions
from userdp.data.sources.table import FileTable
from userdp.data.sources.web import build_web


def build(paths: list[str], options: SourceOptions) -> FileTable:
    """The source for files, folders and patterns ``paths``."""
    return build_web("ccnews", paths, options)


def matches(path: Path) -> bool:
    """Never: its files look like any JSON Lines."""
    return False
