"""A source of your own: the logs of an IRC channel, one file a day, ``[12:30] <ana> good morning``.

A source yields a record for each usable entry and says why the others are dropped: every entry is
counted. Rows of any other origin need no source: `userdp.prepare` takes an iterable of dicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from userdp.data import Drop, Record
from userdp.data.progress import Progress
from userdp.data.sources import KINDS, Kind, SourceOptions
from userdp.data.sources.base import FileSource, expand

SAID = re.compile(r"\[\d\d:\d\d\] <(?P<who>[^>]*)> ?(?P<what>.*)")


def build(paths: list[str], options: SourceOptions) -> IrcLogs:
    """The source for files, folders and patterns ``paths``."""
    return IrcLogs(paths=expand(paths, suffixes=(".irc",), what="IRC logs"))


def matches(path: Path) -> bool:
    """Whether ``path`` looks like this kind, so that nobody has to name it."""
    return path.suffix == ".irc"


@dataclass(frozen=True, kw_only=True, slots=True)
class IrcLogs(FileSource):
    """What each nickname said, a record a line."""

    paths: tuple[Path, ...]
    kind = "irc"

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """Each line's record, or why there is none."""
        order = count()  # orders the records of one user, over all files
        for path, _ in self.each_file(progress):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                said = SAID.fullmatch(line)
                if said is None:
                    yield Drop.UNREADABLE  # joins, parts and changes of the topic
                elif not said["who"]:
                    yield Drop.NO_USER
                elif not said["what"].strip():
                    yield Drop.EMPTY_TEXT
                else:
                    yield Record(said["who"].encode(), said["what"].encode(), next(order))


KINDS["irc"] = Kind(module=__name__, told_by="matches", user_is="the nickname")
