"""`FederationPlan`: what every silo and the server agree on before anyone looks at data."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from userdp.errors import UseError
from userdp.federated.accounting import (
    FLAWS,
    AccountingName,
    Algorithm,
    Reduction,
    epsilon_of,
    flaws_of,
    item_mechanism,
    paper_noise,
    reduced_rounds,
    silo_mechanism,
    subject_mechanism,
    subject_probability,
    tight_noise,
)
from userdp.files import read_json
from userdp.sampling import poisson
from userdp.vocabulary import (
    NONE,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    require_count,
    require_delta,
    require_positive,
    require_probability,
)

SCHEMA = "userdp.federation/1"
MOST_SILOS = 10_000


class ModelKind(StrEnum):
    """``CNN``: LEAF's network for images. ``LSTM``: stacked, for characters. ``CAUSAL_LM``: a
    Hugging Face model with LoRA adapters, which alone are trained and sent."""

    CNN = "cnn"
    LSTM = "lstm"
    CAUSAL_LM = "causal-lm"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The model, so that every silo builds the same one.

    Args:
        kind: which.
        width: channels of the first convolution, hidden units of the LSTM, or the rank of LoRA.
        inputs: the side of a square image, or the number of token numbers.
        outputs: classes; for text the number of token numbers.
        seed: of the public initial weights.
        base: for ``causal-lm``, the model's folder or name; it must be the same in every silo.
    """

    kind: ModelKind
    width: int
    inputs: int
    outputs: int
    seed: int = 0
    base: str | None = None

    def __post_init__(self) -> None:
        for name in ("width", "inputs", "outputs"):
            require_count(name, getattr(self, name), at_most=10**7)
        require_count("seed", self.seed, at_least=0)
        if (self.base is not None) != (self.kind is ModelKind.CAUSAL_LM):
            raise UseError("a base model belongs to the kind causal-lm, and to no other")


@dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """What a federation will do, fixed before any private look and the same in every silo.

    Guarantee: under ``tight``, silos that run the steps of this plan, and no others, satisfy
    `guarantee()`. Each silo enforces its own part: the rounds in which it runs are in the plan
    (`schedule`), so no server can ask for more.

    Args:
        algorithm: the local algorithm.
        accounting: who set the noise; ``paper`` claims nothing.
        silos: n.
        silos_per_round: m.
        silos_per_subject: s, a public bound on the silos that hold one subject; all by default.
        rounds: R, rounds that run (under ``paper`` after the reduction).
        local_steps: T, noisy steps of a silo in a round.
        sampling_probability: p of each item at each step; under ``paper`` B/|D_i|.
        items_per_silo: the declared number of items in a silo, of which pN is the denominator.
        subjects_per_silo: the declared number of subjects in a silo.
        group_size: k, most items of a subject in a silo; under ``paper`` the largest number there.
        l2_clip_norm: C.
        noise_multiplier: σ; 0 for FedAvg. Under ``paper`` LocalGroupDP that of Z = 1: see
            `paper_noise_of_group`.
        learning_rate: η of the local steps.
        target_delta: δ.
        target_epsilon: the budget σ was calibrated for, if it was.
        planned_rounds: under ``paper``, the rounds the noise was calibrated for.
        reduction: under ``paper``, how they became ``rounds``.
        schedule_seed: public; decides which m silos run in each round.
        model: what is trained.

    Raises:
        UseError: a field is out of its range (NaN included).
    """

    algorithm: Algorithm
    silos: int
    silos_per_round: int
    silos_per_subject: int
    rounds: int
    local_steps: int
    sampling_probability: float
    items_per_silo: int
    subjects_per_silo: int
    group_size: int
    l2_clip_norm: float
    noise_multiplier: float
    learning_rate: float
    target_delta: float
    model: ModelSpec
    accounting: AccountingName = AccountingName.TIGHT
    target_epsilon: float | None = None
    planned_rounds: int | None = None
    reduction: Reduction = Reduction.NONE
    schedule_seed: int = 0

    def __post_init__(self) -> None:
        require_count("silos", self.silos, at_most=MOST_SILOS)
        require_count("silos_per_round", self.silos_per_round, at_most=self.silos)
        require_count("silos_per_subject", self.silos_per_subject, at_most=self.silos)
        require_count("rounds", self.rounds, at_most=10**6)
        require_count("local_steps", self.local_steps, at_most=10**6)
        require_probability("sampling_probability", self.sampling_probability)
        require_count("items_per_silo", self.items_per_silo)
        require_count("subjects_per_silo", self.subjects_per_silo)
        require_count("group_size", self.group_size, at_most=10**6)
        require_positive("l2_clip_norm", self.l2_clip_norm)
        require_positive("learning_rate", self.learning_rate)
        require_delta(self.target_delta)
        require_count("schedule_seed", self.schedule_seed, at_least=0)
        if self.algorithm.private:
            require_positive("noise_multiplier", self.noise_multiplier)
        elif self.noise_multiplier != 0:
            raise UseError("fedavg adds no noise, so its noise_multiplier is 0")
        if self.target_epsilon is not None:
            require_positive("target_epsilon", self.target_epsilon)
        if self.planned_rounds is not None:
            require_count("planned_rounds", self.planned_rounds, at_least=self.rounds)
        paper = self.accounting is AccountingName.PAPER and self.algorithm.private
        if (self.planned_rounds is not None) != paper:
            raise UseError("planned_rounds belong to the accounting paper, and to no other")
        if paper and self.target_epsilon is None:
            raise UseError("the accounting paper sets its noise from a target_epsilon")

    @classmethod
    def calibrated(
        cls,
        *,
        target_epsilon: float,
        reduction: Reduction = Reduction.LINEAR,
        **constants: Any,
    ) -> Self:
        """A plan whose noise comes from its accounting and budget.

        Args:
            target_epsilon: > 0; an item's for LocalItemDP, a subject's for the others.
            reduction: of the rounds, under ``paper``, for the algorithms that protect subjects.
            **constants: the other fields but ``noise_multiplier``; ``rounds`` before reduction.

        Raises:
            UseError: a field is out of its range, or no noise is enough.
        """
        algorithm = Algorithm(constants["algorithm"])
        paper = AccountingName(constants.get("accounting", AccountingName.TIGHT)) is (
            AccountingName.PAPER
        )
        if not algorithm.private:
            return cls(**constants, noise_multiplier=0.0)
        if not paper:
            draft = cls(**constants, noise_multiplier=1.0, target_epsilon=target_epsilon)
            noise = tight_noise(
                algorithm,
                sampling_probability=draft.sampling_probability,
                group_size=draft.group_size,
                steps=(
                    draft.most_local_steps
                    if algorithm is Algorithm.LOCAL_ITEM
                    else draft.charged_steps
                ),
                target_epsilon=target_epsilon,
                target_delta=draft.target_delta,
            )
            return replace(draft, noise_multiplier=noise)
        if not algorithm.for_subjects:
            reduction = Reduction.NONE
        planned = constants.pop("rounds")
        return cls(
            **constants,
            rounds=reduced_rounds(planned, constants["silos_per_round"], reduction),
            planned_rounds=planned,
            reduction=reduction,
            target_epsilon=target_epsilon,
            noise_multiplier=paper_noise(
                algorithm,
                batch_fraction=constants["sampling_probability"],
                group_size=1 if algorithm is Algorithm.LOCAL_GROUP else constants["group_size"],
                steps=constants["local_steps"] * planned,
                target_epsilon=target_epsilon,
                target_delta=constants["target_delta"],
            ),
        )

    @property
    def paper(self) -> bool:
        """Whether this plan follows the paper to the letter, and so claims nothing."""
        return self.accounting is AccountingName.PAPER

    def paper_noise_of_group(self, largest: int) -> float:
        """σ_Z of LocalGroupDP under ``paper``, for a mini-batch whose largest group is Z."""
        assert self.planned_rounds is not None
        assert self.target_epsilon is not None
        return paper_noise(
            Algorithm.LOCAL_GROUP,
            batch_fraction=self.sampling_probability,
            group_size=max(1, largest),
            steps=self.local_steps * self.planned_rounds,
            target_epsilon=self.target_epsilon,
            target_delta=self.target_delta,
        )

    @property
    def batch_size(self) -> float:
        """B = pN of the declared number of items."""
        return self.sampling_probability * self.items_per_silo

    @property
    def denominator(self) -> float:
        """What a noisy sum is divided by: a public constant.

        B for items; for HiGradAvgDP the number of subjects a step would draw if each of the
        declared subjects held k items; 1 for UserLDP, whose one unit is a mean already.
        """
        if self.algorithm is Algorithm.HIGRADAVG:
            q = subject_probability(self.sampling_probability, self.group_size)
            return q * self.subjects_per_silo
        return 1.0 if self.algorithm is Algorithm.USER_LDP else self.batch_size

    def schedule(self, round_number: int) -> tuple[int, ...]:
        """The silos that run in a round (from 1), ascending: chosen by a public hash, not by data.

        Every silo knows it, so that a server cannot have more silos of a subject run than the
        accounting counts.
        """
        require_count("round_number", round_number, at_most=self.rounds)
        if self.silos_per_round == self.silos:
            return tuple(range(self.silos))

        def rank(silo: int) -> bytes:
            return hashlib.sha256(f"{self.schedule_seed}/{round_number}/{silo}".encode()).digest()

        return tuple(sorted(sorted(range(self.silos), key=rank)[: self.silos_per_round]))

    @cached_property
    def rounds_of_silos(self) -> tuple[int, ...]:
        """R_i: in how many rounds each silo runs."""
        if self.silos_per_round == self.silos:
            return (self.rounds,) * self.silos
        counts = [0] * self.silos
        for number in range(1, self.rounds + 1):
            for silo in self.schedule(number):
                counts[silo] += 1
        return tuple(counts)

    @property
    def charged_steps(self) -> int:
        """T Σ R_i over the s silos that run most: what a subject is charged.

        At most T·R·min(m, s), since a round has m silos.
        """
        most = sorted(self.rounds_of_silos, reverse=True)[: self.silos_per_subject]
        return self.local_steps * sum(most)

    @property
    def most_local_steps(self) -> int:
        """T max R_i: what an item is charged, which lies in one silo."""
        return self.local_steps * max(self.rounds_of_silos)

    @property
    def flaws(self) -> dict[str, str]:
        """Why ``paper`` claims nothing, by letter; empty under ``tight``."""
        if not self.paper:
            return {}
        return {letter: FLAWS[letter] for letter in flaws_of(self.algorithm, self.reduction)}

    def guarantee(self, *, subject_steps: int | None = None) -> Guarantee:
        """The claim per subject, removed from all silos.

        Args:
            subject_steps: local steps of the silos that may hold a subject; the plan's by default.

        Returns:
            The claim; ε is infinite for FedAvg and under ``paper``.
        """
        steps = self.charged_steps if subject_steps is None else subject_steps
        epsilon, accountant = math.inf, "none"
        if steps == 0:
            epsilon = 0.0
        elif self.algorithm.private and not self.paper:
            epsilon, accountant = epsilon_of(
                subject_mechanism(
                    self.algorithm,
                    sampling_probability=self.sampling_probability,
                    group_size=self.group_size,
                    noise_multiplier=self.noise_multiplier,
                    steps=steps,
                ),
                self.target_delta,
            )
        return self._claim(epsilon, accountant, PrivacyUnit.SUBJECT, Adjacency.ADD_OR_REMOVE)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """All claims: per subject; per item for LocalItemDP; per silo for UserLDP."""
        found = [self.guarantee()]
        if self.algorithm.private and not self.paper:
            if self.algorithm is Algorithm.LOCAL_ITEM:
                mechanism = item_mechanism(
                    sampling_probability=self.sampling_probability,
                    noise_multiplier=self.noise_multiplier,
                    steps=self.most_local_steps,
                )
                epsilon, who = epsilon_of(mechanism, self.target_delta)
                found.append(
                    self._claim(epsilon, who, PrivacyUnit.EXAMPLE, Adjacency.ADD_OR_REMOVE)
                )
            elif self.algorithm is Algorithm.USER_LDP:
                whole = silo_mechanism(
                    noise_multiplier=self.noise_multiplier, steps=self.most_local_steps
                )
                epsilon, who = epsilon_of(whole, self.target_delta)
                found.append(self._claim(epsilon, who, PrivacyUnit.SILO, Adjacency.REPLACE))
        return tuple(found)

    def _claim(
        self, epsilon: float, accountant: str, unit: PrivacyUnit, adjacency: Adjacency
    ) -> Guarantee:
        return Guarantee(
            epsilon=epsilon,
            delta=self.target_delta,
            unit=unit,
            adjacency=adjacency,
            sampling=poisson(PrivacyUnit.EXAMPLE).kind if self.algorithm.private else NONE,
            accountant=accountant,
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        values = asdict(self)
        plain = {k: str(v) if isinstance(v, StrEnum) else v for k, v in values.items()}
        plain["model"] = {
            k: str(v) if isinstance(v, StrEnum) else v for k, v in values["model"].items()
        }
        return {"schema": SCHEMA, **plain}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; `UseError` for anything else."""
        if values.get("schema") != SCHEMA:
            raise UseError(
                f"this is not a federation plan of schema {SCHEMA}, it says "
                f"{values.get('schema')!r}",
                hint="make it again with `userdp federate`",
            )
        given = {key: value for key, value in values.items() if key != "schema"}
        known = {field.name for field in fields(cls)}
        if set(given) != known:
            raise UseError(
                f"the federation plan's fields are off: unknown {sorted(set(given) - known)}, "
                f"missing {sorted(known - set(given))}"
            )
        try:
            model = dict(given["model"])
            model["kind"] = ModelKind(model["kind"])
            given["model"] = ModelSpec(**model)
            given["algorithm"] = Algorithm(given["algorithm"])
            given["accounting"] = AccountingName(given["accounting"])
            given["reduction"] = Reduction(given["reduction"])
            return cls(**given)
        except UseError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise UseError(f"the federation plan says something unknown: {error}") from None

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal plans only."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan; `UseError` if the file is not one."""
        return cls.from_dict(read_json(path, what="a federation plan"))
