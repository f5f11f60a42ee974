"""A command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from userdp.cli.app import run

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def userdp(capsys) -> Told:
    """Runs the words of a line; what was printed is in one line of words each."""

    def told(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run([*map(str, words)])
        return status, *(" ".join(text.split()) for text in capsys.readouterr())

    return told
