"""What commands share about their arguments: sections of settings, refusals, places of files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError, likely
from userdp.core.files import in_the_way

_MADE_ANEW = {".html", ".md", ".png", ".pdf", ".svg", ".csv", ".txt", ".tsv"}
"""Pages, pictures and tables, which can be made again from what lies beside them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """What ``--set NAME.field=value`` gives to a command: the fields of a dataclass.

    Args:
        of: the dataclass.
        without: fields that the command gets otherwise.
        whole: makes one argument of the section's name from its fields; by default each field is an
            argument.
    """

    of: type
    without: tuple[str, ...] = ()
    whole: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingFields:
    """How each step draws its units, where a plan does not say it.

    Args:
        kind: users or examples (each joins each step independently), fixed-graph (examples with
            several owners), fixed-cohort or fixed-batch (so many in every step), truncated-users or
            truncated-examples (independently, cut to a cap); or, without an epsilon,
            unsafe-shuffle-users or unsafe-shuffle-examples (batches of shuffled passes).
        sampling_probability: q, of each user, or p, of each example, at each step.
        group_size: most examples of a user in a step (users) or in all training (examples).
        batch_size: of fixed-cohort and fixed-batch: users or examples in every step.
        least_population: of these: a public lower bound on the users or examples of the store
            without any one user.
        cap: of truncated-users and truncated-examples: most users or examples of a step; a larger
            draw is cut to so many by chance.
        most_population: of these: a public upper bound on the users or examples of the store with
            any one user more.
    """

    kind: str | None = None
    sampling_probability: float | None = None
    group_size: int | None = None
    batch_size: int | None = None
    least_population: int | None = None
    cap: int | None = None
    most_population: int | None = None


def refuse(cases: Mapping[str, Any]) -> None:
    """`UseError` of the first sentence whose condition holds: what is wrong, and the way out."""
    for sentence, wrong in cases.items():
        if wrong:
            raise UseError(sentence)


def divided(given: Mapping[str, Any], *groups: type) -> list[dict[str, Any]]:
    """The given fields of each of some dataclasses; None says nothing.

    Raises:
        UseError: names one that is a field of none of them.
    """
    fields = [[one.name for one in dataclasses.fields(group)] for group in groups]
    parts: list[dict[str, Any]] = [{} for _ in groups]
    for name, value in given.items():
        at = next((part for part, names in zip(parts, fields, strict=True) if name in names), None)
        if at is None:
            near = likely(name, [one for names in fields for one in names])
            raise UseError(f"there is no argument {name}", hint=near.strip() or None)
        if value is not None:
            at[name] = value
    return parts


def folder_of(run: str | os.PathLike[str]) -> Path:
    """The folder of a run; `UseError` where there is none."""
    path = Path(run)
    if not path.is_dir():
        raise UseError(
            f"there is no run at {path}", hint="name the folder that a run was trained in"
        )
    return path


def require_new(path: Path, *, overwrite: bool, name: str) -> None:
    """`UseError` unless a file can be put at ``path`` and nothing is lost by that.

    The one rule for every file that a command writes, asked before any work is done or charged.

    Args:
        path: of the file.
        overwrite: what lies there may be replaced.
        name: a good name for the file, told where ``path`` is a folder.
    """
    if path.is_dir():
        raise UseError(
            f"{path} is a folder, and a file is to be written there",
            hint=f"name a file in it: {path / name}",
        )
    if not path.parent.is_dir():
        raise UseError(f"there is no folder {path.parent} to put {path.name} in")
    if not os.access(path.parent, os.W_OK):
        raise UseError(f"{path.parent} cannot be written to", hint="choose another place")
    if not overwrite and (path.exists() or path.is_symlink()):
        raise in_the_way(path)
    above = list(path.resolve().parents)[:4]
    kept = path.exists() and any((one / "ledger.jsonl").exists() for one in above)
    if kept and path.suffix.lower() not in _MADE_ANEW:
        raise UseError(
            f"{path} is part of a user store or of a run: writing there would destroy what tells "
            "what its people paid, and for which weights",
            hint="choose another place",
        )
