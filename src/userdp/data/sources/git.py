"""A git repository: the user is a commit's author, the text its message, oldest first.

Expected input: the path of a repository, with or without a work tree::

    userdp prepare ~/src/linux --source git --out store

Authors are told apart by their address, after the repository's own ``.mailmap``. Merges are dropped
and counted, and so is what a repository before it holds, as of forks and work trees. Nothing of the
repository is run; ``git`` must be installed. Variables of git's own (``GIT_DIR`` and the like,
which hooks and CI steps set) have no effect.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.rows_to_records import first_held_out, is_from, record_of
from userdp.data.sources.source import At, Entry, Source, SourceOptions

_FORMAT = "%H%n%aE%n%aI%n%P%n%B"
_READ = 2**16


def open_history(paths: list[str], options: SourceOptions) -> Source:
    """The source for repositories ``paths``: the messages of all commits of ``HEAD`` by author.

    Commits of the day ``held_out_from`` and later are held out.
    """
    for name in paths:
        if not is_repository(Path(name)):
            raise UseError(f"{name} is not a git repository: it has neither .git nor HEAD")
    day, first = first_held_out(options), dict[bytes, Path]()

    def read(path: Path, at: At) -> Iterator[Entry]:
        for entry in _log(path):
            name, author, date, parents, message = (*entry.split(b"\n", 4), b"", b"", b"")[:5]
            held_out = day is not None and is_from(date, day)
            if first.setdefault(name, path) != path:
                yield Drop.ALREADY_READ
            elif b" " in parents:
                yield Drop.MERGE
            else:
                yield record_of(author, message.rstrip(b"\n"), held_out)

    places = tuple(dict.fromkeys(map(Path, paths)))
    return Source(kind="git", places=places, read=read, facts={"repositories": len(places)})


def is_repository(path: Path) -> bool:
    """Whether it is a work tree or a bare repository."""
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


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
    with tempfile.TemporaryFile() as log:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, env=own,
                check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise UseError("reading a git history needs the program `git`") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise UseError(
                f"git cannot read the history of {path}: {said[-1] if said else done.returncode}",
                hint="`git -C PATH log` must work with no variable GIT_… set",
            )
        log.seek(0)
        rest = b""
        while block := log.read(_READ):
            *entries, rest = (rest + block).split(b"\0")
            yield from entries
        if rest:
            yield rest
