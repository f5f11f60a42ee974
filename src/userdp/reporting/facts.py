"""The public facts of runs: of their ledgers and claims, and in the words of a page.

Nothing here opens an operator's file. Templates are given `Facts` and nothing else of a run, so
that a new fact of a page is a property here and a place in a template.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from userdp.accounting import Accountant
from userdp.claims import Claim, claim
from userdp.claims.claim_sentences import SPENT_SO_FAR
from userdp.claims.claims import second_opinion
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee, epsilon_up, round_up
from userdp.ledger import RunRecord, StoreLedger
from userdp.ledger.lines import Attempt, ReleaseLoss
from userdp.noise.gaussian import NoiseSampler
from userdp.plans import Plan
from userdp.plans.provenance import in_words
from userdp.plans.small_delta import rule_of, size_of
from userdp.reporting.meaning import FALSE_ALARMS, Meaning, factor_up, meaning_of_claim, percent_up
from userdp.reporting.rendering import delta_text, number_text, short, visible, words
from userdp.reporting.table import Table, table_of
from userdp.sampling import SAMPLINGS

_LONGEST = 200
_DIFFERENCE = "{user_loss:+.4f} ± {standard_error:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """The operator's own words beside the numbers; userdp checks none of them, and a page says so.

    Args:
        organisation: that releases the model.
        contact: whom to ask: a name, an address.
        data_description: what the data is; no count of it, which no epsilon covers.
        report_date: of the report; the command's is today by default.
    """

    organisation: str | None = None
    contact: str | None = None
    data_description: str | None = None
    report_date: date | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """The model that a run began from, by its weights and its shape: a name proves nothing.

    Whoever puts other weights into a folder ``models/gpt2`` has not made them OpenAI's. A page
    therefore says where a name comes from, and shows the digest by which anybody can tell the
    weights. Empty fields are not recorded.

    Args:
        origin: "bundled", "new", "folder", "hub" or "memory".
        name: on the hub, or of the folder; what a model in memory says of itself.
        weights: the digest of its weights, see `userdp.claims.weights`.
        kind: of the architecture, as `transformers` calls it.
        layers, width, heads, vocabulary: of the model, whatever options said.
        parameters: how many.
    """

    origin: str = "unknown"
    name: str = ""
    weights: str = ""
    kind: str = ""
    layers: int = 0
    width: int = 0
    heads: int = 0
    vocabulary: int = 0
    parameters: int = 0

    @property
    def called(self) -> str:
        """Its name, and what that name is worth."""
        nameless = self.origin == "memory" and not self.name
        told: str = words()["base"]["nameless" if nameless else self.origin]
        return told.format(name=self.name)

    @property
    def architecture(self) -> str:
        """Its shape in words; empty if nothing of it is known."""
        shape = {
            "{} layers": self.layers,
            "width {}": self.width,
            "{} heads": self.heads,
            "{} tokens in its vocabulary": self.vocabulary,
            "{} parameters": self.parameters,
        }
        told = [word.format(f"{count:,}") for word, count in shape.items() if count]
        return ", ".join([self.kind, *told] if self.kind else told)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What may be told of one run.

    Args:
        path: the run's folder; for reading, never shown.
        name: what the page calls it; distinct among the runs of one page.
        run_id: random, of the ledger: by it the store's ledger knows the run.
        claim: recomputed from the ledger when this was read.
        finished: the ledger notes the run's end.
        noise_samplers: what drew the noise of the attempted steps, by the ledger's lines; None if a
            line does not say, so that nothing is claimed.
        store: the random name of the user store; empty if the ledger has none.
        version: of userdp when the run began.
        settings: public constants of the training, by name, as text; only those in
            ``report_sentences.toml``.
        released: losses that were released under DP, at a price of their own.
        owners: the assumption that was made where a record may have several owners; else empty.
        user_is: which field, or what else, named the user of a record; empty if not recorded.
        base: the model that training began from.
        ledger_digest: SHA-256 of the ledger's bytes: tells whether a ledger is the one meant here.
    """

    path: Path
    name: str
    run_id: str
    claim: Claim
    finished: bool
    noise_samplers: tuple[NoiseSampler, ...] | None
    store: str
    version: str
    settings: Mapping[str, str]
    ledger_digest: str
    released: tuple[ReleaseLoss, ...] = ()
    base: BaseModel = field(default_factory=BaseModel)
    owners: str = ""
    user_is: str = ""

    @property
    def plan(self) -> Plan | None:
        """None for a run without privacy."""
        return self.claim.plan

    @property
    def guarantee(self) -> Guarantee:
        """The claim; ε is infinite where nothing is claimed."""
        return self.claim.guarantee

    @property
    def private(self) -> bool:
        """Whether anything is claimed."""
        return math.isfinite(self.guarantee.epsilon)

    @property
    def epsilon(self) -> str:
        return round_up(self.guarantee.epsilon) if self.private else "not claimed"

    @property
    def delta(self) -> str:
        return delta_text(self.guarantee.delta)

    @property
    def why_nothing(self) -> str:
        """Why no ε is claimed."""
        return self.claim.why_nothing

    @property
    def conditions(self) -> list[str]:
        """Clauses that follow "provided that"."""
        return list(self.claim.conditions_in_words)

    @property
    def notes(self) -> list[str]:
        """Sentences beside the claim: what was spent, and what is printed beside the model."""
        spent = () if self.claim.lineage.fixed else (SPENT_SO_FAR,)
        return [f"{short(note)}." for note in (*spent, *self.claim.notes)]

    @property
    def adjacency(self) -> Mapping[str, str]:
        """In words: how two neighbouring data sets differ (``change``); what is true in one of two
        worlds that differ in one unit (``world``); what an attacker would find out (``guess``)."""
        told = words()["adjacency"][self.guarantee.adjacency]
        return {name: one.format(unit=self.guarantee.unit) for name, one in told.items()}

    @cached_property
    def meaning(self) -> Meaning | None:
        """The claim's bounds on an attacker; None where nothing is claimed."""
        return meaning_of_claim(self.claim)

    @property
    def factor(self) -> str:
        return "" if self.meaning is None else short(factor_up(self.meaning.factor))

    @property
    def best_guess(self) -> str:
        return "" if self.meaning is None else percent_up(self.meaning.best_guess)

    @property
    def detection(self) -> str:
        return "" if self.meaning is None else percent_up(self.meaning.detection)

    @property
    def false_alarms(self) -> str:
        return f"{FALSE_ALARMS:.0%}"

    @cached_property
    def second(self) -> Guarantee | None:
        """The claim by the library dp-accounting; None where it is not there or knows no price."""
        return second_opinion(self.claim, by=Accountant.DP_ACCOUNTING)

    @property
    def accountants(self) -> str:
        """Who computed ε, and what a second accountant says where there is one."""
        told, name = words()["accountant"], self.guarantee.accountant
        how = told["several"] if len(self.claim.parts) > 1 else told.get(name, told["other"])
        second = self.second
        beside = "" if second is None else told["second"].format(epsilon=round_up(second.epsilon))
        return f"The accountant {name} {how}{beside}."

    @property
    def sampler(self) -> str:
        """How a step draws its data; words of a plan that shuffles say that it claims nothing."""
        if self.plan is None:
            return "no private sampler"
        told = self.plan.sampling.words
        values = ", ".join(
            f"{symbol} = {number_text(getattr(self.plan.sampling, name))}"
            for name, symbol in told.symbols.items()
        )
        return f"{told.title} ({self.plan.algorithm}, {values})" if values else told.title

    @property
    def algorithm(self) -> str:
        """The training, with its source."""
        return "no privacy" if self.plan is None else words()["algorithm"][self.plan.algorithm]

    @property
    def steps(self) -> str:
        """The steps charged, of those planned."""
        if self.plan is None:
            return ""
        done, planned = f"{self.claim.steps:,}", f"{self.plan.steps:,}"
        return planned if done == planned else f"{done} of {planned}"

    @property
    def state(self) -> str:
        told = "finished" if self.finished else "plain" if self.plan is None else "open"
        return str(words()["state"][told])

    @property
    def basis(self) -> str:
        """What the plan's constants were chosen from; of a tuning's winner, how it was too."""
        said = self.settings.get("plan_basis")
        return said or ("" if self.plan is None else in_words(self.plan.origins))

    @property
    def delta_beside_population(self) -> str:
        """How δ compares with 1/n and n^-1.1; empty where nothing is claimed.

        n is the plan's population: of users (ULS), or of examples (ELS), which every user has at
        least one of, so that users are no more than n.
        """
        if self.plan is None or not self.private:
            return ""
        n = self.plan.population
        told: str = words()["delta"][size_of(self.guarantee.delta, n)]
        counted = "users" if self.plan.sampling.by_user else "examples"
        return told.format(
            delta=delta_text(self.guarantee.delta, 6),
            n=f"{n:,} {counted}",
            inverse=number_text(1 / n, 3),
            rule=delta_text(rule_of(n), 6),
        )

    @property
    def fewer(self) -> bool:
        """Whether users who hold fewer examples than the cap are protected better."""
        return self.claim.mechanism is not None and bool(self.plan and self.plan.sampling.items > 1)

    @property
    def parts(self) -> Table | None:
        """The claim's parts and their prices; None of a single part, which is all of it."""
        return parts_of_claim(self.claim)

    @property
    def losses(self) -> Table | None:
        """What was released under DP of how well the model predicts."""
        rows = [
            {
                "Measured on": one.split,
                "Loss per user, nats per token": f"{one.told['model']['user_loss']:.4f}",
                "Standard error of its noise": f"± {one.told['model']['standard_error']:.4f}",
                "Less the loss before, user by user": (
                    _DIFFERENCE.format(**one.told["difference"])
                    if "difference" in one.told
                    else None
                ),
                "Losses count at most as": f"{one.told['loss_bound']:.4g}",
                "ε of the release": epsilon_up(one.epsilon),
            }
            for one in self.released
        ]
        return table_of(rows, sparse=True, caption="Losses released under DP") if rows else None

    @property
    def constants(self) -> Table:
        """The plan's constants, each named as in the papers, then settings of no bearing on ε."""
        told = words()["constant"]
        rows = [(name, _shown(value), told.get(name, "")) for name, value in self._of_plan()]
        if self.plan is not None:
            rows += [
                (name.replace("_", " "), _shown(getattr(self.plan.sampling, name)), meaning)
                for name, meaning in self.plan.sampling.words.options.items()
            ]
        rows += [
            (name.replace("_", " "), value, words()["setting"].get(name, ""))
            for name, value in self.settings.items()
            if name != "plan_basis"
        ]
        return Table(
            caption="Constants of the plan and of the training",
            columns=("Constant", "Value", "What it is"),
            rows=[row for row in rows if row[1]],
        )

    def _of_plan(self) -> list[tuple[str, Any]]:
        plan = self.plan
        if plan is None:
            return []
        # Of examples ("population.examples") or of users: either decides a plan of examples. What
        # was looked up in the data, under DP or not, is not called declared.
        looked_up = {k: v for k, v in plan.origins.items() if k.startswith("population")}
        population = f"population, from {in_words(looked_up)}" if looked_up else ""
        return [
            ("algorithm", plan.algorithm),
            ("steps T", plan.steps),
            (population or "declared population", plan.population),
            ("denominator", plan.denominator),
            ("noise multiplier σ", plan.noise.multiplier),
            ("clip norm C", plan.clip.l2_norm),
            ("clipping", plan.clipping),
            ("clip norm per example", plan.clip.item_norm),
            ("target δ", delta_text(plan.budget.target_delta, 6)),
            ("target ε", plan.budget.target_epsilon),
        ]

    @property
    def ledger_command(self) -> str:
        """The command that recomputes ε from the ledger."""
        return f"userdp account --ledger {shlex.quote(self.name)}"

    @property
    def expected(self) -> str:
        """The answer of both commands."""
        return round_up(self.guarantee.epsilon, 6)

    @property
    def mechanism_command(self) -> str | None:
        """The command that prices the mechanism from nothing but the constants on the page.

        None where one mechanism is not all of the claim: choosing a tuning's winner is priced too.
        """
        plan = self.plan
        if plan is None or self.claim.mechanism is None or plan.sampling.kind not in SAMPLINGS:
            return None
        sampling = encode(plan.sampling)
        if plan.sampling.by_user:
            sampling.pop("group_size")  # of no bearing on ε, and refused by `userdp account`
        options = {"sampling": sampling.pop("kind")}
        own = ("group_size", "sampling_probability")  # the others are settings
        options |= {name: sampling.pop(name) for name in own if name in sampling}
        if plan.accountant is not Accountant.CONTOUR:
            options["accountant"] = plan.accountant
        options |= {
            "noise_multiplier": plan.noise.multiplier,
            "steps": plan.steps,
            "delta": self.guarantee.delta,
        }
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
        flags += [f"--set sampling.{name}={value}" for name, value in sampling.items()]
        return f"userdp account {' '.join(flags)}"


def parts_of_claim(claim: Claim) -> Table | None:
    """The parts of a claim and their prices; None of a claim with one part, which is all of it."""
    rows = [
        {
            "Part": part.in_words,
            "ε at most": round_up(part.guarantee().epsilon),
            "δ": delta_text(part.guarantee().delta),
        }
        for part in claim.parts
    ]
    return table_of(rows, caption="What the claim is made of") if len(rows) > 1 else None


def read_runs(paths: Sequence[Path]) -> tuple[Facts, ...]:
    """The facts of several runs, each with a name of its own.

    Raises:
        UseError: a path twice, or one that is not a run's folder.
    """
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UseError(f"run {path.name!r} is named {times} times; a comparison needs others")
    runs = [read_run(path) for path in paths]
    names = Counter(run.name for run in runs)
    return tuple(
        replace(run, name=f"{run.path.resolve().parent.name}/{run.name}")
        if names[run.name] > 1
        else run
        for run in runs
    )


def read_run(path: Path, record: RunRecord | None = None) -> Facts:
    """The public facts of the run in ``path``; ε is recomputed from its ledger.

    Args:
        path: of the run.
        record: of its ledger, where that was read already.

    Raises:
        UseError: ``path`` is not a run's folder, its ledger was edited, or it holds other weights
            than the run released.
    """
    record = record or RunRecord.read(path)
    return facts(record, claim(record))


def facts(record: RunRecord, claimed: Claim) -> Facts:
    """The public facts of a run, of its ledger's lines and the allowed options beside them."""
    told = record.begin.facts
    of_store, base = told.get("store_facts", {}), told.get("base_model", {})
    known = {one.name for one in fields(BaseModel)}
    settings = {**record.folder.read_train().get("learning", {}), **told}
    named = {line.step.noise_sampler for line in record.of(Attempt)}
    return Facts(
        path=record.folder.path,
        name=record.folder.path.resolve().name,
        run_id=record.run_id,
        claim=claimed,
        finished=record.finish is not None,
        noise_samplers=tuple(one for one in NoiseSampler if one in named),
        store=told.get("store") or "",
        version=str(told.get("userdp", "unknown")),
        settings={
            key: number_text(value) if isinstance(value, float) else str(value)[:_LONGEST]
            for key in (*words()["setting"], "plan_basis")
            if isinstance(value := settings.get(key), str | int | float)
        },
        ledger_digest=sha256(record.data).hexdigest(),
        released=tuple(record.of(ReleaseLoss)),
        base=BaseModel(**{name: value for name, value in base.items() if name in known}),
        owners=visible(of_store.get("owners") or "")[:_LONGEST],
        user_is=visible(of_store.get("user_is") or "")[:_LONGEST],
    )


def read_store_total(store: Path, runs: Sequence[Facts]) -> Claim:
    """The claim over all that was charged so far in the store that ``runs`` were charged in.

    Raises:
        UseError: there is no ledger, it was edited, or a run was not charged in it.
    """
    known = StoreLedger(store).history().ids
    for run in runs:
        if run.run_id not in known:
            raise UseError(
                f"the ledger of {store} knows no run {run.name!r}: its total would be of other "
                "people than the run's",
                hint="name the store that the run was trained on, or leave --store out",
            )
    return claim(store)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return number_text(value)
    return str(value)
