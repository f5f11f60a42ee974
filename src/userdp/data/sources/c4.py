"""C4 (``allenai/c4``): JSON Lines or Parquet with ``url``, ``timestamp`` and ``text``.

Expected input, ``c4-train.00000-of-01024.json.gz``::

    {"url": "https://www.example.co.uk/a", "timestamp": "2019-04-25T12:57:54Z", "text": "..."}

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
    return build_web("c4", paths, options)


def matches(path: Path) -> bool:
    """By C4's own file names."""
    names = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.startswith("c4-") and ".json" in file.name for file in names)
