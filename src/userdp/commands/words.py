"""What several commands print alike: a claim in words, and for whose eyes an answer is."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from userdp.claims import Claim
from userdp.claims.headline import printed_in_words, so_far_in_words
from userdp.errors import UseError
from userdp.reporting.parts import parts_of_claim
from userdp.reporting.table import Table


def claim_in_words(claimed: Claim) -> Iterator[Table | str]:
    """The claim; what its attempted steps cost; what is printed beside the model; its parts."""
    told = (claimed.headline, so_far_in_words(claimed), printed_in_words(claimed))
    yield from (f"{words}." for words in (f"Claim: {told[0]}", *told[1:]) if words is not None)
    if (table := parts_of_claim(claimed)) is not None:
        yield table


def for_whom(*, operator_only: bool, why: str) -> str:
    """For whose eyes an answer is, in one sentence; ``why`` follows a colon."""
    return f"{'Operator-only' if operator_only else 'May be handed on'}: {why}."


def person(user: str) -> str:
    """The id that ``user`` stands for; "-" stands for the first line of standard input.

    What is typed on a command line stands in the list of processes, where everybody on the machine
    may read it, and in the shell's history. Standard input does not.
    """
    if user != "-":
        return user
    line = sys.stdin.readline()
    if not line.strip():
        raise UseError(
            "--user - reads an id from standard input, and nothing came there",
            hint="type the id and a new line, or pass a file of it: userdp ... --user - < FILE",
        )
    return line.removesuffix("\n").removesuffix("\r")
