"""`Design`: a study fixed in a file before any of its runs; its cells, rates and repetitions."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.studies.settings import Declared, Setting
from userdp.codec import decode, encode
from userdp.errors import UseError

TEXTS = "texts.toml"
"""What is declared of the texts, beside the designs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A setting that is run several times, at one learning rate.

    Args:
        setting: what is run.
        repetitions: measured runs.
    """

    setting: Setting
    repetitions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """A study, as its file fixes it.

    Learning rates are chosen by one rule for all methods: cells that agree in the fields
    ``tuned_by`` share a rate, which is the best of ``rates`` by one run of each on the middle cell
    of them. Measured runs are fresh ones.

    Args:
        name: of the file.
        question: that the study answers.
        figures: the figures and tables that read it.
        rates: learning rates that are tried.
        tuned_by: fields of `Setting`.
        cells: in the order of the file.
        digest: SHA-256 of the file; every row carries it.
    """

    name: str
    question: str
    figures: tuple[str, ...]
    rates: tuple[float, ...]
    tuned_by: tuple[str, ...]
    cells: tuple[Cell, ...]
    digest: str

    def group(self, setting: Setting) -> str:
        """Names the cells that share a learning rate with ``setting``."""
        values = encode(setting)
        return json.dumps({name: values[name] for name in self.tuned_by}, sort_keys=True)

    def groups(self) -> dict[str, list[Cell]]:
        """The cells by the group that shares a learning rate."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(self.group(cell.setting), []).append(cell)
        return groups

    @property
    def runs(self) -> int:
        """All runs, those that choose rates included."""
        tuning = len(self.rates) * len(self.groups()) if len(self.rates) > 1 else 0
        return tuning + sum(cell.repetitions for cell in self.cells)


def read_design(path: Path) -> Design:
    """The design of a file.

    Each table of ``cells`` gives fields of `Setting`; a list stands for each of its values, and
    several lists for all combinations. ``common`` holds fields of all cells.

    Raises:
        UseError: something is missing, unknown or of the wrong kind, or a cell stands there twice.
    """
    content = path.read_bytes()
    values = tomllib.loads(content.decode("utf-8"))
    unknown = set(values) - {
        "question", "figures", "repetitions", "rates", "tuned_by", "common", "cells"
    }  # fmt: skip
    if unknown:
        raise UseError(f"{path.name} has unknown entries: {', '.join(sorted(unknown))}")
    cells = [
        cell
        for table in values["cells"]
        for cell in _cells(
            {**values.get("common", {}), **table}, values["repetitions"], f"{path.name}: a cell"
        )
    ]
    repeated = len(cells) - len({cell.setting for cell in cells})
    if repeated:
        raise UseError(f"{path.name} has {repeated} cells twice; each would be run twice as often")
    fields = {field.name for field in dataclasses.fields(Setting)}
    if wrong := set(values["tuned_by"]) - fields:
        raise UseError(f"{path.name} tunes by {', '.join(sorted(wrong))}, which no setting has")
    return Design(
        name=path.stem,
        question=values["question"],
        figures=tuple(values["figures"]),
        rates=tuple(float(rate) for rate in values["rates"]),
        tuned_by=tuple(values["tuned_by"]),
        cells=tuple(cells),
        digest=hashlib.sha256(content).hexdigest(),
    )


def _cells(table: Mapping[str, Any], repetitions: int, what: str) -> list[Cell]:
    own = dict(table)
    times = own.pop("repetitions", repetitions)
    names = list(own)
    choices = [value if isinstance(value, list) else [value] for value in own.values()]
    settings = [
        decode(Setting, _values(dict(zip(names, chosen, strict=True))), what=what)
        for chosen in itertools.product(*choices)
    ]
    return [Cell(setting=setting, repetitions=times) for setting in settings]


def _values(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of one setting, defaults included; "inf" as ε stands for no privacy."""
    defaults = {
        field.name: encode(field.default)
        for field in dataclasses.fields(Setting)
        if field.default is not dataclasses.MISSING
    }
    values = {**defaults, **chosen}
    return {**values, "epsilon": None} if values["epsilon"] == "inf" else values


def read_declared(folder: Path) -> dict[str, Declared]:
    """What `TEXTS` declares of each text."""
    values = tomllib.loads((folder / TEXTS).read_text(encoding="utf-8"))
    return {
        name: decode(Declared, table, what=f"{TEXTS}: {name}") for name, table in values.items()
    }
