"""Runs the blocks of a page in their order: commands in this process, other lines by bash."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import ADDED, DOCS, ROOT, SMALL, Block, smaller
from userdp.cli.app import run as userdp

_SHELL = set("|><&;$`*(")
_SECONDS = 300


class PageRunner:
    """One page's folder and the names that its Python blocks share.

    Args:
        folder: is the working directory; scripts named ``userdp``, ``python`` and ``torchrun`` come
            first on the path of what bash runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__page__", "SMALL": SMALL}
        self._bin = folder / ".bin"
        self._bin.mkdir()
        for name, module in {
            "userdp": "-m userdp",
            "python": "",
            "torchrun": "-m torch.distributed.run",
        }.items():
            script = self._bin / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            script.chmod(0o755)

    def run(self, block: Block) -> None:
        """Run one block; an error in it names page and line."""
        text = smaller(block.text)
        try:
            if block.language == "python":
                self._python(text, f"{block.page}:{block.line}")
            else:
                self._console(text)
        except Exception as error:
            error.add_note(f"{block.page}, line {block.line}")
            raise

    def _python(self, text: str, where: str) -> None:
        """Python of the page; a block whose first line is ``# name.py`` is written as that file."""
        first = text.partition("\n")[0]
        if first.startswith("# ") and first.endswith(".py") and " " not in first[2:]:
            (self._folder / first[2:]).write_text(text)
            return
        exec(compile(text, where, "exec"), self._names)

    def _console(self, text: str) -> None:
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            code = line.partition(" #")[0]
            if words[0] == "userdp" and not _SHELL & set(code):
                self._userdp(words[1:])
            else:
                self._bash(code)

    def _userdp(self, words: list[str]) -> None:
        added = with_added(words)
        said, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            status = userdp(added)
        told = f"{said.getvalue()[-1500:]}\n{errors.getvalue()[-1500:]}"
        assert status == 0, f"`userdp {shlex.join(added)}` gave {status}:\n{told}"

    def _bash(self, line: str) -> None:
        environment = {
            **os.environ,
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "DOCS": str(DOCS),
        }
        words = shlex.split(line, comments=True)
        if "-m" in words and "userdp" in words:
            at = words.index("userdp", words.index("-m"))
            line = shlex.join([*words[: at + 1], *with_added(words[at + 1 :])])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (
            f"`{line}` gave {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        )


def with_added(words: list[str]) -> list[str]:
    """A command with the options of `ADDED` that it does not give itself."""
    extra, added = shlex.split(ADDED.get(words[0], "")), list(words)
    for option, value in zip(extra[::2], extra[1::2], strict=True):
        shape = option == "--set" and "--model" in words  # of a new model
        if not shape and "--resume" not in words and (option == "--set" or option not in words):
            added += [option, value]
    return added
