"""`Design`: a study fixed in a file before any of its runs; its cells, rates and repetitions."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from papers.plans import plan_of_size
from userdp.accounting import Accountant
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import PrivacyUnit
from userdp.data.selection_strategies import Strategy
from userdp.noise.clip_forms import ClipForm
from userdp.plans import Plan
from userdp.sampling import (
    FixedSizeExamples,
    FixedSizeUsers,
    PoissonExamples,
    PoissonUsers,
    Sampling,
)
from userdp.training.config import Averaging, Schedule, TrainConfig

DESIGNS = Path(__file__).parent / "designs"
NOISELESS = 1e-3
"""Noise multiplier of a run "without privacy": the same algorithm, and no ε is told."""


class Method(StrEnum):
    """The algorithms that are compared."""

    ULS = "uls"
    ELS = "els"
    GROUP_PRIVACY = "group-privacy"
    GROUP_PRIVACY_VADHAN = "group-privacy-vadhan"
    FIXED_USERS = "fixed-users"
    FIXED_EXAMPLES = "fixed-examples"


_LAWS: Mapping[Method, tuple[type[Sampling], Accountant]] = {
    Method.ULS: (PoissonUsers, Accountant.CONTOUR),
    Method.ELS: (PoissonExamples, Accountant.CONTOUR),
    Method.GROUP_PRIVACY: (PoissonExamples, Accountant.GROUP_PRIVACY),
    Method.GROUP_PRIVACY_VADHAN: (PoissonExamples, Accountant.GROUP_PRIVACY_VADHAN),
    Method.FIXED_USERS: (FixedSizeUsers, Accountant.CONTOUR),
    Method.FIXED_EXAMPLES: (FixedSizeExamples, Accountant.CONTOUR),
}
"""How a step of each draws, and what prices it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What ``designs/texts.toml`` declares of a text: constants of its plans.

    Args:
        users: the population of users.
        examples: the population of examples after a cap of G, by G.
        least_users: of samplings of a fixed size, a lower bound on the users.
        least_examples: the same of the examples after a cap of G, by G.
    """

    users: int
    examples: Mapping[str, int]
    least_users: int
    least_examples: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """All that tells one trained model of a study from another, but its learning rate.

    Args:
        text: the name of a text.
        base: the name of a base model.
        method: the algorithm.
        epsilon: the budget; None trains with `NOISELESS` noise.
        group_size: G, or k.
        gradients: B, gradients of examples that a step expects at most; M = B / G users under ULS.
        steps: T.
        delta: of the budget.
        clip_norm: of a unit. Under normalized clipping and Adam it moves nothing.
        clip_form: how a unit is clipped.
        selection: which of a user's examples are taken.
        optimizer: "adamw", or "adam-bc" (`papers.adam_bc`).
        averaging: of the weights.
        lora_rank: adapters in place of all weights.
        population_factor: so many times more users stand in the accounting than there are (Charles
            et al. 2024, Figure 8). What is trained then costs more than ``epsilon``; the row tells
            both.
        personalized: measure what held-out users gain from local training, too.
    """

    text: str
    method: Method
    epsilon: float | None
    group_size: int
    gradients: float
    steps: int
    base: str = "docstrings"
    delta: float = 1e-5
    clip_norm: float = 1.0
    clip_form: ClipForm = ClipForm.NORMALIZED
    selection: Strategy = Strategy.RANDOM
    optimizer: str = "adamw"
    averaging: Averaging = Averaging.NONE
    lora_rank: int | None = None
    population_factor: int = 1
    personalized: bool = False

    def plan(self, declared: Declared) -> Plan:
        """The private plan; its noise is the least for the budget.

        Raises:
            KeyError: nothing is declared of this G.
        """
        sampling, accountant = _LAWS[self.method]
        if sampling.unit is PrivacyUnit.USER:
            size = self.gradients / self.group_size
            population, least = declared.users, declared.least_users
        else:
            size = self.gradients
            population = declared.examples[str(self.group_size)]
            least = declared.least_examples[str(self.group_size)]
        fixed = self.method in (Method.FIXED_USERS, Method.FIXED_EXAMPLES)
        bounds: dict[str, Any] = {"least_population": least} if fixed else {}

        def sized(factor: int, epsilon: float | None, noise: float | None) -> Plan:
            return plan_of_size(
                sampling,
                size,
                population=population * factor,
                group_size=self.group_size,
                steps=self.steps,
                l2_clip_norm=self.clip_norm,
                clip_form=self.clip_form,
                target_delta=self.delta,
                target_epsilon=epsilon,
                noise_multiplier=noise,
                accountant=accountant,
                **bounds,
            )

        if self.epsilon is None:
            return sized(1, None, NOISELESS)
        priced = sized(self.population_factor, self.epsilon, None)
        if self.population_factor == 1:
            return priced
        return sized(1, None, priced.noise.multiplier)

    def config(self, model: str, learning_rate: float) -> TrainConfig:
        """Everything that privacy does not depend on."""
        return TrainConfig(
            model=model,
            learning_rate=learning_rate,
            warmup_steps=5,
            schedule=Schedule.LINEAR,
            averaging=self.averaging,
            averaging_decay=0.9,
            lora_rank=self.lora_rank,
            train_all=True,
            selection=self.selection,
            micro_batch=16,
            checkpoint_every=self.steps,
            checkpoint_seconds=1e6,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """A study, as its file fixes it.

    Learning rates are chosen by one rule for all methods: cells that agree in the fields
    ``tuned_by`` share a rate, which is the best of ``rates`` by one run of each on the middle cell
    of them. Measured runs are fresh ones.

    Args:
        name: of the file.
        question: that the study answers.
        rates: learning rates that are tried.
        tuned_by: fields of `Setting`.
        cells: how often each setting is measured, in the order of the file.
        digest: SHA-256 of the file; every row carries it.
    """

    name: str
    question: str
    rates: tuple[float, ...]
    tuned_by: tuple[str, ...]
    cells: Mapping[Setting, int]
    digest: str

    def groups(self) -> list[list[Setting]]:
        """The settings that share a learning rate."""
        groups: dict[str, list[Setting]] = {}
        for setting in self.cells:
            shared = json.dumps([encode(getattr(setting, name)) for name in self.tuned_by])
            groups.setdefault(shared, []).append(setting)
        return list(groups.values())

    @property
    def runs(self) -> int:
        """All runs, those that choose rates included."""
        tuning = len(self.rates) * len(self.groups()) if len(self.rates) > 1 else 0
        return tuning + sum(self.cells.values())


def read_design(path: Path) -> Design:
    """The design of a file.

    Each table of ``cells`` gives fields of `Setting`; a list stands for each of its values, and
    several lists for all combinations. ``common`` holds fields of all cells.

    Raises:
        UseError: a field is missing, unknown or of the wrong kind, or a cell stands there twice.
    """
    content = path.read_bytes()
    values = tomllib.loads(content.decode("utf-8"))
    cells: dict[Setting, int] = {}
    for table in values["cells"]:
        own = {"repetitions": values["repetitions"], **values.get("common", {}), **table}
        times = own.pop("repetitions")
        for chosen in products(own):
            setting = decode(Setting, _DEFAULTS | chosen, what=f"{path.name}: a cell")
            if setting in cells:
                raise UseError(f"{path.name} has a cell twice, which would be run twice as often")
            cells[setting] = times
    return Design(
        name=path.stem,
        question=values["question"],
        rates=tuple(float(rate) for rate in values["rates"]),
        tuned_by=tuple(values["tuned_by"]),
        cells=cells,
        digest=hashlib.sha256(content).hexdigest(),
    )


def products(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of the values of lists; ``"inf"`` stands for None.

    >>> products({"epsilon": [1.0, "inf"], "text": "commits"})
    [{'epsilon': 1.0, 'text': 'commits'}, {'epsilon': None, 'text': 'commits'}]
    """
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    return [
        {name: None if value == "inf" else value for name, value in zip(table, chosen, strict=True)}
        for chosen in itertools.product(*choices)
    ]


_DEFAULTS = {f.name: encode(f.default) for f in fields(Setting) if f.default is not MISSING}


def read_declared() -> dict[str, Declared]:
    """What is declared of each text."""
    values = tomllib.loads((DESIGNS / "texts.toml").read_text(encoding="utf-8"))
    return {
        name: decode(Declared, table, what=f"texts.toml: {name}") for name, table in values.items()
    }
