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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Record, Tally
from userdp.data.sources.base import FileSource, SourceOptions, require_no_max_users
from userdp.data.sources.mail import MailRules
from userdp.data.sources.paths import expand, words
from userdp.errors import UseError

SUFFIXES = (".mbox", ".mbx")


def build(paths: list[str], options: SourceOptions) -> Mbox:
    """The source for files, folders and patterns ``paths``."""
    require_no_max_users(options)
    files = expand(paths, suffixes=SUFFIXES, what="mbox files")
    return Mbox(paths=files, rules=MailRules.of(options))


def matches(path: Path) -> bool:
    """Whether a file begins as an mbox does, or a folder holds files named so."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    try:
        with path.open("rb") as file:
            return file.read(5) == b"From "
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Mbox(FileSource):
    """Messages of mbox files."""

    paths: tuple[Path, ...]
    rules: MailRules

    kind = "mbox"
    several_owners = True

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes, and the rules."""
        return {**FileSource.facts(self), **self.rules.facts()}

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all messages; see `Source.records`."""
        order = 0
        for path, _ in self.each_file(progress):
            try:
                box = mailbox.mbox(path, create=False)
                try:
                    if path.stat().st_size and not len(box):
                        raise UseError(f"{path} is no mbox: no line begins a message with `From `")
                    for key in box.iterkeys():
                        yield from self.rules.records(box.get_bytes(key), order, tally)
                        order += 1
                finally:
                    box.close()
            except (OSError, mailbox.Error) as error:
                raise UseError(f"{path} cannot be read: {words(error)}") from error
