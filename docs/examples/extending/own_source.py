"""A source of your own: the logs of an IRC channel, one file a day, ``[12:30] <ana> good morning``.

A source yields a record for each usable entry and says why the others are dropped: every entry is
counted. Rows of any other origin need no source: `userdp.prepare` takes an iterable of dicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from userdp.data.records import Drop, Record
from userdp.data.sources import KINDS, At, Kind, SourceOptions

SAID = re.compile(r"\[\d\d:\d\d\] <(?P<who>[^>]*)> ?(?P<what>.*)")


def read(path: Path, options: SourceOptions, at: At) -> Iterator[Record | Drop]:
    """What each nickname said: each line's record, or why there is none."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        said = SAID.fullmatch(line)
        if said is None:
            yield Drop.UNREADABLE  # joins, parts and changes of the topic
        elif not said["who"]:
            yield Drop.NO_USER
        elif not said["what"].strip():
            yield Drop.EMPTY_TEXT
        else:
            yield Record(said["who"].encode(), said["what"].encode())


KINDS["irc"] = Kind(read=read, suffixes=(".irc",), user_is="the nickname")
