"""Mail with one message per file: Maildir (``cur``, ``new``), and the Enron archive as published.

Expected input::

    maildir/lay-k/inbox/1.          (Enron: enron_mail_20150507.tar.gz, unpacked)
    Maildir/cur/1719390000.M1.host:2,S

Every file below the folder is a message, in the order of the paths; ``tmp`` and hidden files are
left out. See `mail` for what becomes of a message, and for the options. The Enron set of Chua et
al. 2024::

    userdp prepare maildir --source maildir --receivers --drop-forwarded --drop-repeats --out store
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.mail import MailSource
from userdp.data.sources.paths import unreadable
from userdp.errors import UseError


def build(paths: list[str], options: SourceOptions) -> _Maildir:
    """The source for folders ``paths``."""
    if not paths:
        raise UseError("no input: name a folder of mail", hint="give a PATH")
    for name in paths:
        if not Path(name).is_dir():
            raise UseError(f"{name} is not a folder of mail", hint="one message per file, below it")
    return _Maildir(paths=tuple(Path(name) for name in paths), options=options)


def matches(path: Path) -> bool:
    """Whether it is a Maildir by its folders."""
    return path.is_dir() and (path / "cur").is_dir() and (path / "new").is_dir()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Maildir(MailSource):
    """Messages of folders."""

    kind = "maildir"
    size = None

    def facts(self) -> dict[str, Any]:
        """The number of folders, and the rules."""
        return {"folders": len(self.paths), **self.rules()}

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The records of all messages; see `PrivateSource.entries`."""
        for order, file in enumerate(chain.from_iterable(map(_files, self.paths))):
            try:
                content = file.read_bytes()
            except OSError as error:
                raise unreadable(file, self.paths, error) from error
            yield from self.parse(content, order)
            progress.at(order + 1)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "tmp" and not name.startswith("."))
        for name in sorted(names):
            file = Path(place) / name
            if not name.startswith(".") and file.is_file():
                yield file
