"""mbox archives, as most mail programs and mailing lists write them.

Expected input: a file whose messages each begin with a line ``From ``::

    From ana@example.org Mon May 14 16:39:00 2001
    From: Ana <ana@example.org>
    To: ben@example.org
    Subject: lunch

    Shall we?

Files ending in ``.mbox`` or ``.mbx`` in a folder, or any file named. See `mail` for what becomes of
a message, and for the options.
"""

from __future__ import annotations

import mailbox
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import FileSource, SourceOptions
from userdp.data.sources.mail import MailSource
from userdp.data.sources.paths import beginning, expand, words
from userdp.errors import UseError

SUFFIXES = (".mbox", ".mbx")


def build(paths: list[str], options: SourceOptions) -> _Mbox:
    """The source for files, folders and patterns ``paths``."""
    files = expand(paths, suffixes=SUFFIXES, what="mbox files")
    return _Mbox(paths=files, options=options)


def matches(path: Path) -> bool:
    """Whether a file begins as an mbox does, or a folder holds files named so."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    return beginning(path).startswith(b"From ")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mbox(MailSource, FileSource):
    """Messages of mbox files."""

    kind = "mbox"

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes, and the rules."""
        return {**FileSource.facts(self), **self.rules()}

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The records of all messages; see `PrivateSource.entries`."""
        order = count()
        for path, _ in self.each_file(progress):
            try:
                with closing(mailbox.mbox(path, create=False)) as box:
                    if path.stat().st_size and not len(box):
                        raise UseError(f"{path} is no mbox: no line begins a message with `From `")
                    for key in box.iterkeys():
                        yield from self.parse(box.get_bytes(key), next(order))
            except (OSError, mailbox.Error) as error:
                raise UseError(f"{path} cannot be read: {words(error)}") from error
