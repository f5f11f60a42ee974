"""README and the pages of ``docs/``, cut into their blocks, and what tests exchange in them.

A block of a page is run unless the line above it says why not::

    *Not run by the tests: it needs a second machine.*
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

RUN = ("bash", "console", "python")
SHOWN = ("text", "json", "toml", "diff")
"""Blocks that show something: output, formats, pictures in letters."""

GENERATED = ("reference/api", "reference/commands")
"""Made from the program when the site is built; the program's own tests are theirs."""

SMALLER = {
    "epsilon=4, population=20_000)": "epsilon=4, population=200, steps=3, **SMALL)",
    "epsilon=4, population=2000, lora_rank=8)": "epsilon=4, population=200, steps=3, **SMALL)",
    "--epsilon 4 --population 2000 --lora-rank 8": "--epsilon 4 --population 200 --steps 3",
    "--epsilon 4 --population 20000": "--epsilon 4 --population 200 --steps 3",
    "20_000": "200",
    "20000": "200",
    "256": "4",
    "1024": "16",
    "steps=500": "steps=3",
    "steps=200": "steps=3",
    "--steps 500": "--steps 3",
    "--steps 200": "--steps 3",
    "--steps 1000": "--steps 3",
    "--group-size 8": "--group-size 2",
    "group_size=8": "group_size=2",
    "1e-6": "1e-5",
    "0.001 0.003 0.01 --l2-clip-norm 0.1 0.3": "0.001 0.003",
    "--references 8": "--references 2",
    "--nproc-per-node 4": "--nproc-per-node 2",
    "budget=1024": "budget=16, most_noise=1000",
    "canaries=128": "canaries=8",
    "--silos 4 --rounds 4": "--silos 2 --rounds 2",
}
"""What a machine of two cores cannot do in minutes, and what tiny data cannot carry."""

SMALL = {"model": "new", "layers": 1, "width": 16, "heads": 2}
"""The model of the pages' Python."""

SMALL_MODEL = "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2"
ADDED = {
    "train": f"{SMALL_MODEL}",
    "tune": SMALL_MODEL.replace("--model ", "--set learning.model="),
    "audit": "--canaries 8",
    "plan": "--most-noise 1000",
    "selftest": "--units 2",
}
"""Options that every command of a name gets at its end, unless the page gives them itself."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|:{3,})(?P<info>[^`\n]*)$")
_REASON = re.compile(r"^\*Not run by the tests: (?P<why>[^*]+)\.\*$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block.

    Args:
        page: relative to the repository.
        line: of its first fence, from 1.
        language: what the fence names; a directive of the site keeps its braces.
        text: between the fences.
        reason: why it is not run; None where it is, or where there is nothing to run.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None

    @property
    def runs(self) -> bool:
        """Whether a test runs it."""
        return self.language in RUN and self.reason is None


def pages() -> list[str]:
    """README and all pages that people wrote, relative to the repository."""
    found = [path.relative_to(ROOT) for path in sorted(DOCS.rglob("*.md"))]
    written = [
        str(path) for path in found if not str(path.relative_to("docs")).startswith(GENERATED)
    ]
    return ["README.md", "CONTRIBUTING.md", *written]


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, those within other blocks left out."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        begin, marks = number, opened["marks"]
        number += 1
        while number < len(lines) and lines[number].strip() != marks:
            number += 1
        body = [line.removeprefix(opened["indent"]) for line in lines[begin + 1 : number]]
        above = next((line for line in reversed(lines[:begin]) if line.strip()), "")
        reason = _REASON.match(above.strip())
        yield Block(
            page=page,
            line=begin + 1,
            language=opened["info"].strip().split(" ")[0],
            text="\n".join(body) + "\n",
            reason=None if reason is None else reason["why"],
        )
        number += 1


def smaller(text: str) -> str:
    """A block with the numbers of `SMALLER`."""
    for large, small in SMALLER.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(large)}(?![\w.-])", small, text)
    return text
