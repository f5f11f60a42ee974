"""A git repository: the user is a commit's author, the text its message, oldest first.

Expected input: the path of a repository, with or without a work tree::

    userdp prepare ~/src/linux --source git --out store

Authors are told apart by their address, after the repository's own ``.mailmap``. Merges are dropped
and counted. Nothing of the repository is run; ``git`` must be installed. Variables of git's own
(``GIT_DIR`` and the like, which hooks and CI steps set) have no effect.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import Source, SourceOptions
from userdp.data.sources.rows import is_from, parse_day, record_of
from userdp.errors import UseError

_FORMAT = "%aE%n%aI%n%P%n%B"
_READ = 2**16
_REPORT_EVERY = 256


def build(paths: list[str], options: SourceOptions) -> _GitHistory:
    """The source for repositories ``paths``."""
    if not paths:
        raise UseError("no input: name a git repository", hint="give a PATH")
    for name in paths:
        if not matches(Path(name)):
            raise UseError(f"{name} is not a git repository: it has neither .git nor HEAD")
    return _GitHistory(
        paths=tuple(Path(name) for name in paths), held_out_from=options.held_out_from
    )


def matches(path: Path) -> bool:
    """Whether it is a work tree or a bare repository."""
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


@dataclass(frozen=True, kw_only=True, slots=True)
class _GitHistory(Source):
    """Commit messages by author.

    Args:
        paths: repositories.
        held_out_from: commits of this day (ISO date) and later are held out.
    """

    paths: tuple[Path, ...]
    held_out_from: str | None = None

    kind = "git"

    def facts(self) -> dict[str, Any]:
        """The number of repositories."""
        return {"repositories": len(self.paths)}

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The messages of all commits of ``HEAD``; see `Source.entries`."""
        day = parse_day(self.held_out_from)
        for order, entry in enumerate(chain.from_iterable(map(_log, self.paths))):
            author, date, parents, message = (*entry.split(b"\n", 3), b"", b"", b"")[:4]
            held_out = False if day is None else is_from(date, day)
            merge = b" " in parents
            yield Drop.MERGE if merge else record_of(author, message.rstrip(b"\n"), order, held_out)
            if order % _REPORT_EVERY == 0:
                progress.at(order)


def _log(path: Path) -> Iterator[bytes]:
    # A repository has settings of its own, which may name programs to run: to fetch what is
    # missing, for one. Nothing of that is needed to read messages.
    command = ["git", "-C", str(path), "-c", "core.fsmonitor=false", "-c",
               "log.showSignature=false", "-c", "protocol.allow=never",
               "log", "-z", "--reverse", "--use-mailmap", "--encoding=UTF-8",
               f"--format={_FORMAT}"]  # fmt: skip
    # A hook or a CI step sets variables that win over the path, GIT_DIR above all. Git must not go
    # up to another repository either, where this one is broken.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
            "GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=own,
            )
        except FileNotFoundError as error:
            raise UseError("reading a git history needs the program `git`") from error
        assert process.stdout is not None
        try:
            yield from _split(process.stdout)
        finally:
            process.stdout.close()
            status = process.wait()
        if status != 0:
            errors.seek(0)
            said = errors.read(500).decode(errors="replace").strip().splitlines()
            raise UseError(
                f"git cannot read the history of {path}: {said[-1] if said else status}",
                hint="`git -C PATH log` must work with no variable GIT_… set",
            )


def _split(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_READ):
        *entries, rest = (rest + block).split(b"\0")
        yield from entries
    if rest:
        yield rest
