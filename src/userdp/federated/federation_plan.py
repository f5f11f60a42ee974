"""The plan of a federation, and its claim once the silos' ledgers were held against the plan.

The plan holds the constants on which all silos and the server agree before any look at data: the
`Plan` of one round of one silo, which silos run in which round, how many of them may hold one
subject, and the model. docs/federated.md proves the price.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

from userdp.claims import Claim
from userdp.claims.ledger_lineage import chosen_among, meanwhile, run_lineage, store_of
from userdp.claims.lineage import Condition, ConditionKind, Lineage, about, of_parts
from userdp.core.errors import UseError
from userdp.core.files import read_json
from userdp.core.vocabulary import Guarantee, PrivacyUnit, require_count, require_positive
from userdp.federated.algorithms import Declared, Unprotected, algorithm_of
from userdp.ledger import RunRecord
from userdp.ledger.charged_parts import Bound, Part, Steps, Unclaimed
from userdp.plans import Budget, Plan
from userdp.plans.frozen_plan import Saved

PLAN_FILE, STORE, RUN = "federation.json", "store", "run"
"""Names of files and folders in a silo's folder; see docs/federated.md."""
SPREAD_FILE = "spread.json"
"""Says that the items of all silos were spread here, by the plan's bound on a subject's silos."""

_MOST_SILOS = 10_000


@dataclass(frozen=True, kw_only=True)  # no slots: the codec finds models as subclasses
class ModelSpec:
    """A description from which every silo and the server build the same model.

    `userdp.federated.silo.build_model` builds it.

    Args:
        tokenizer_sha256: of the tokenizer.json with which every silo's store is made.
        vocab_size: number of that tokenizer's tokens.
        seq_len: most tokens of an item, in every silo's store.
        seed: of the public initial weights.
    """

    kind: ClassVar[str]

    tokenizer_sha256: str
    vocab_size: int
    seq_len: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("vocab_size", self.vocab_size)
        require_count("seq_len", self.seq_len, at_least=2)
        require_count("seed", self.seed, at_least=0)


@dataclass(frozen=True, kw_only=True)
class LanguageModel(ModelSpec):
    """A causal language model of ``userdp train``.

    Args:
        model: "bundled", "new", or a folder of a Hugging Face model, the same in every silo.
        vocab_size: of the tokenizer.
        seq_len: most tokens of an example.
        seed: of the model's first weights.
        layers: of a new model.
        width: of a new model.
        heads: of a new model.
        lora_rank: train and send adapters of this rank in place of all weights.
    """

    kind: ClassVar[str] = "language-model"

    model: str = "bundled"
    layers: int = 4
    width: int = 192
    heads: int = 6
    lora_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class FederationPlan(Saved):
    """The steps of a federation, fixed before any private look and the same in every silo.

    Guarantee: silos that run only the steps of this plan satisfy `guarantee()`. Each silo enforces
    its own part: its rounds are in the plan (`schedule`), so that no server can ask for more.

    Args:
        algorithm: the name of the local algorithm (`userdp.federated.algorithms`).
        local: one round of one silo: T noisy steps. `Unprotected` for FedAvg.
        silos: n.
        silos_per_round: m.
        silos_per_subject: s, a public bound on the silos that hold one subject.
        rounds: R.
        learning_rate: η of the local steps.
        model: what is trained.
        schedule_seed: public; decides which m silos run in each round.

    Raises:
        UseError: a field is out of its range (NaN included), or fits no other.
    """

    schema: ClassVar[str] = "userdp.federation/2"
    what: ClassVar[str] = "federation plan"

    algorithm: str
    local: Unprotected | Plan
    silos: int
    silos_per_round: int
    silos_per_subject: int
    rounds: int
    learning_rate: float
    model: ModelSpec
    schedule_seed: int = 0

    def __post_init__(self) -> None:
        given = type(self.local.sampling) if isinstance(self.local, Plan) else None
        if given is not algorithm_of(self.algorithm).sampling:
            raise UseError(f"the local plan is not one of the algorithm {self.algorithm}")
        require_count("silos", self.silos, at_most=_MOST_SILOS)
        require_count("silos_per_round", self.silos_per_round, at_most=self.silos)
        require_count("silos_per_subject", self.silos_per_subject, at_most=self.silos)
        require_count("rounds", self.rounds, at_most=10**6)
        require_positive("learning_rate", self.learning_rate)
        require_count("schedule_seed", self.schedule_seed, at_least=0)

    @classmethod
    def calibrated(
        cls, declared: Declared, budget: Budget, *, algorithm: str, **federation: Any
    ) -> Self:
        """A plan with the least noise for its budget.

        Args:
            declared: of every silo.
            budget: of a subject; for LocalItemDP of one who holds one item.
            algorithm: by name.
            **federation: the other fields of the plan but ``local``.

        Raises:
            UseError: a field is out of its range, or no noise is enough.
        """
        chosen = algorithm_of(algorithm)
        local = chosen.local(declared, budget)
        draft = cls(algorithm=algorithm, local=local, **federation)
        if isinstance(local, Unprotected):
            return draft
        budgeted = chosen.budgeted(local, charged=draft.charged_steps, most=draft.most_local_steps)
        return replace(draft, local=replace(local, noise=budgeted.calibrated().noise))

    def schedule(self, round_number: int) -> tuple[int, ...]:
        """The silos that run in a round (from 1), ascending: chosen by a public hash, not by data.

        Every silo knows the schedule, so that a server cannot run more silos of a subject than the
        accounting counts.
        """
        require_count("round_number", round_number, at_most=self.rounds)

        def rank(silo: int) -> bytes:
            return hashlib.sha256(f"{self.schedule_seed}/{round_number}/{silo}".encode()).digest()

        return tuple(sorted(sorted(range(self.silos), key=rank)[: self.silos_per_round]))

    @cached_property
    def rounds_of_silos(self) -> tuple[int, ...]:
        """R_i: in how many rounds each silo runs."""
        if self.silos_per_round == self.silos:
            return (self.rounds,) * self.silos
        ran = Counter(chain.from_iterable(map(self.schedule, range(1, self.rounds + 1))))
        return tuple(ran[silo] for silo in range(self.silos))

    @property
    def charged_steps(self) -> int:
        """T Σ R_i over the s silos that run most: the steps that a subject is charged.

        At most T·R·min(m, s), since a round has m silos.
        """
        most = sorted(self.rounds_of_silos, reverse=True)[: self.silos_per_subject]
        return self.local.steps * sum(most)

    @property
    def most_local_steps(self) -> int:
        """T max R_i: the steps that a subject of one item is charged, who is in one silo."""
        return self.local.steps * max(self.rounds_of_silos)

    def of_silo(self, silo: int) -> Unprotected | Plan:
        """All steps of one silo, as its run's ledger and its store's ledger must have them."""
        return replace(self.local, steps=self.local.steps * self.rounds_of_silos[silo])

    def part(self) -> Part:
        """The part of a claim that pays for all of these steps; FedAvg's has no ε."""
        if isinstance(self.local, Plan):
            price = replace(self.local.guarantee(self.charged_steps), unit=PrivacyUnit.SUBJECT)
            if math.isfinite(price.epsilon):
                return Bound(id=self.digest, what=f"all rounds of {self.algorithm}", bound=price)
        return Unclaimed(id=self.digest, why=f"a federation by {self.algorithm}")

    def guarantee(self) -> Guarantee:
        """The claim per subject, removed from all silos; ε is infinite for FedAvg."""
        return replace(self.part().guarantee(), unit=PrivacyUnit.SUBJECT)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """All claims: per subject; LocalItemDP per subject of one item; UserLDP per silo."""
        if not isinstance(self.local, Plan):
            return (self.guarantee(),)
        chosen = algorithm_of(self.algorithm)
        return (self.guarantee(), *chosen.further_claims(self.local, most=self.most_local_steps))


def federation_claim(plan: FederationPlan, runs: Iterable[Path], *, spread: bool = True) -> Claim:
    """The claim per subject, removed from all silos; its ``steps`` are those a subject is charged.

    Guarantee: ε of the whole plan, whether or not all of it ran: when to stop may have been
    decided by looking at the weights, and a silo may have failed in the rounds in which it had
    most to hide. A missing ledger is therefore charged in full, like all others. The claim also
    holds all that any silo's run inherited, since a subject may be in each of them. What a silo
    whose ledger is missing inherited is unknown, so that it becomes a condition. ε is infinite for
    FedAvg, and where a silo's seeds were known.

    Args:
        plan: the federation's.
        runs: the folders of silos' runs; only their ledgers are read.
        spread: whether the items were spread over the silos here, which keeps the plan's bound on
            the silos of a subject. Nobody can check the bound in a deployment: a condition there.

    Raises:
        UseError: no runs; or a ledger was edited, is of another plan, or is there twice.
    """
    ran: dict[int, RunRecord] = {}
    for run in filter(None, map(RunRecord.find, runs)):
        silo = int(run.begin.facts.get("silo", -1))
        expected = plan.of_silo(silo) if run.begin.facts.get("federation") == plan.digest else None
        if expected is None or run.plan != (expected if isinstance(expected, Plan) else None):
            raise UseError(f"{run.folder.ledger} is of another federation, or another silo of it")
        if silo in ran:
            raise UseError(f"{run.folder.ledger} is a second ledger of silo {silo}")
        ran[silo] = run
    if not ran:
        raise UseError("a claim needs at least one silo's ledger")
    conditions = []
    missing = [str(n) for n, rounds in enumerate(plan.rounds_of_silos) if rounds and n not in ran]
    if missing:
        conditions.append(Condition(kind=ConditionKind.SILO_LEDGERS, told=", ".join(missing)))
    if not spread and plan.silos_per_subject < plan.silos:
        conditions += about(ConditionKind.SILOS, [str(plan.silos_per_subject)])
    lineage = sum(map(_besides, ran.values()), of_parts([plan.part()], *conditions))
    return Claim(
        guarantee=lineage.guarantee(),
        lineage=lineage,
        subject="federation",
        steps=plan.charged_steps,
        complete=not missing and all(run.finish for run in ran.values()),
    )


def claim_of(folder: Path) -> Claim:
    """The claim of the federation in a folder, from the ledgers of its silos that lie there."""
    runs = sorted(path.parent for path in folder.glob(f"silo-*/{RUN}/ledger.jsonl"))
    plan = FederationPlan.load(folder / PLAN_FILE)
    mark, deployed = folder / SPREAD_FILE, (folder / "app").exists()
    here = mark.exists() and read_json(mark, what="a spread").get("plan") == plan.digest
    return federation_claim(plan, runs, spread=here and not deployed)


def _besides(run: RunRecord) -> Lineage:
    """A silo's lineage without its own steps, which the federation's plan prices once.

    Where a budget of the silo's store pays for these steps, all of it stays beside the federation's
    price, since it may hold other runs.
    """
    history = store_of(run)
    lineage = run_lineage(run, chosen_among(run, history)) + meanwhile(run, history)
    priced = run.plan and Steps(id=run.run_id, plan=run.plan)
    return of_parts((part for part in lineage.parts if part != priced), *lineage.conditions)
