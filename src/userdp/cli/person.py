"""The person whom ``--user`` names, on the command line or on standard input."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from userdp.errors import UseError

STDIN = "-"
PersonOption: TypeAlias = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""The type of ``--user``; without it the library takes "-" for an option."""


def person(user: str) -> str:
    """The id that ``--user`` stands for; "-" stands for the first line of standard input.

    What is typed on a command line stands in the list of processes, where everybody on the machine
    may read it, and in the shell's history. Standard input does not.
    """
    if user != STDIN:
        return user
    line = sys.stdin.readline()
    if not line.strip():
        raise UseError(
            "--user - reads an id from standard input, and nothing came there",
            hint="type the id and a new line, or pass a file of it: userdp ... --user - < FILE",
        )
    return line.removesuffix("\n").removesuffix("\r")
