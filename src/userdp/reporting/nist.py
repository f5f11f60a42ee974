"""The topics of NIST SP 800-226, each with where a report answers it, or that it does not.

The publication asks whoever evaluates a guarantee to look at a pyramid of factors, each of which
stands on those below, and warns of hazards. Blocks and hazards are in words of this project.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path


class Answer(StrEnum):
    """Who answers a topic, in the words of the page."""

    REPORT = "this report"
    ASSUMPTION = "a named assumption"
    OUTSIDE = "outside this tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """A hazard, and its answer.

    Args:
        level: of the pyramid, from the top: the guarantee, what can undermine it, what it stands
            on.
        block: of the level.
        hazard: what may go wrong.
        answer: who answers it.
        words: the answer.
        sections: anchors of a page that holds it.
        assumptions: keys of assumptions that it rests on.
    """

    level: str
    block: str
    hazard: str
    answer: Answer
    words: str
    sections: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def links(
        self, sections: Mapping[str, str], assumptions: Container[str]
    ) -> list[tuple[str, str]]:
        """(anchor, words) of what a page has of this topic's answer.

        Args:
            sections: of the page, their titles by anchor.
            assumptions: keys of those that the page names.
        """
        links = [(name, sections[name]) for name in self.sections if name in sections]
        return links + [
            (f"assumption-{key}", f"assumption “{key.replace('-', ' ')}”")
            for key in self.assumptions
            if key in assumptions
        ]


@cache
def topics() -> tuple[Topic, ...]:
    """All of them, from the top of the pyramid down."""
    path = Path(__file__).parent / "templates" / "nist.toml"
    return tuple(
        Topic(
            **{
                **entry,
                "answer": Answer[entry["answer"].upper()],
                "sections": tuple(entry.get("sections", ())),
                "assumptions": tuple(entry.get("assumptions", ())),
            }
        )
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["topic"]
    )
