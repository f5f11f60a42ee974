"""The request of a tuning: its candidates, how the best is chosen, and what that may cost."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from userdp.accounting.private_selection import (
    PoissonNumber,
    Repetitions,
    TruncatedNegativeBinomial,
)
from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.plans import FixedGrid, Plan, Tuning
from userdp.plans.proposal import Proposal, as_plan
from userdp.plans.provenance import in_words, uncovered
from userdp.plans.tuning_price import divided, selected
from userdp.queries.statistics import require_one_owner
from userdp.training.causal_models import load_model
from userdp.training.checks_before_charge import require_covered
from userdp.training.config import TrainConfig, changed
from userdp.training.model_origin import digests_of, made_with, require_made_for

SCORES_SHARE = 0.1
"""Of the budget, for all scores of a fixed grid, if nothing else is asked for."""
SCORE_SHARE = 0.05
"""Of the budget, for one score of a private selection."""


class TuningMode(StrEnum):
    """How the best candidate is chosen, and so what the winner claims.

    ``NON_PRIVATE``: by an exact loss; the winner claims only its own run, and says so.
    ``COMPOSITION``: by DP scores; the winner claims all runs and all scores together.
    ``PRIVATE_SELECTION``: a random number of candidates; the winner claims what choosing costs.
    """

    NON_PRIVATE = "non-private"
    COMPOSITION = "composition"
    PRIVATE_SELECTION = "private-selection"


class Distribution(StrEnum):
    """The law of the random number of candidates of a private selection, by its name."""

    LOGARITHMIC = "logarithmic"
    GEOMETRIC = "geometric"
    POISSON = "poisson"

    def of_mean(self, mean: float) -> Repetitions:
        """The law with this mean."""
        if self is Distribution.POISSON:
            return PoissonNumber(mu=mean)
        eta = 0.0 if self is Distribution.LOGARITHMIC else 1.0
        return TruncatedNegativeBinomial.of_mean(mean, eta=eta)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How the best candidate is chosen, and at what price.

    Args:
        tuning: the mode.
        epsilon: of the winner, choosing included; the least of the plans' own by default.
        split: whose loss is the score: held-out-users or held-out-examples.
        score_epsilon: of each score; by default a tenth of the budget for all of a fixed grid, a
            twentieth each for a private selection.
        loss_bound: a public bound in nats per token, larger losses count as so much in DP scores;
            by default that of guessing all tokens of the vocabulary alike.
        mean_trials: of the random number of candidates of a private selection.
        distribution: of that number. A fixed number has no claim: the best of K can cost K times
            one run, since how good it is tells how many were near it. Logarithmic is mostly the
            cheapest for its mean.
    """

    tuning: TuningMode
    epsilon: float | None = None
    split: Split = Split.HELD_OUT_USERS
    score_epsilon: float | None = None
    loss_bound: float | None = None
    mean_trials: float | None = None
    distribution: Distribution = Distribution.LOGARITHMIC


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One cell of the grid."""

    plan: Plan
    config: TrainConfig

    @property
    def settings(self) -> dict[str, Any]:
        """The values that a tuning may vary."""
        return {
            "algorithm": self.plan.algorithm,
            "l2_clip_norm": self.plan.clip.l2_norm,
            "learning_rate": self.config.learning_rate,
            "optimizer": str(self.config.optimizer),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """A tuning, fixed before its first run. Its folder keeps it, and resuming takes no other.

    Args:
        candidates: the grid, in order; plans have their final noise.
        split: the score is the loss on this split.
        loss_bound: in nats per token; a DP score counts larger losses as this much.
        tuning: prices the winner; None where its choice is not private.
    """

    candidates: tuple[Candidate, ...]
    split: Split
    loss_bound: float
    tuning: Tuning | None = None

    @property
    def mode(self) -> TuningMode:
        """How the best is chosen."""
        if self.tuning is None:
            return TuningMode.NON_PRIVATE
        fixed = isinstance(self.tuning, FixedGrid)
        return TuningMode.COMPOSITION if fixed else TuningMode.PRIVATE_SELECTION

    @property
    def in_words(self) -> str:
        """How the winner was chosen, for its ledger and its report."""
        count = f"{len(self.candidates)} candidates"
        chosen = {
            TuningMode.NON_PRIVATE: f"non-private tuning on {self.split} ({count}, of which the "
            "claim covers this one's run alone)",
            TuningMode.COMPOSITION: f"DP scores of {count}, all in this claim",
            TuningMode.PRIVATE_SELECTION: "private selection from a random number of candidates, "
            "in this claim",
        }[self.mode]
        origins = {k: v for one in self.candidates for k, v in one.plan.origins.items()}
        if not origins:
            return chosen
        # Looks that no claim covers stand first: reports search the beginning.
        basis = in_words(origins)
        return f"{basis}; {chosen}" if uncovered(origins) else f"{chosen}; {basis}"


def grid(
    plans: Sequence[Plan | Proposal | str | os.PathLike[str]],
    base: TrainConfig,
    *,
    l2_clip_norms: Sequence[float] = (),
    axes: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Candidate, ...]:
    """All combinations; an axis without values keeps the value of the plan or of ``base``.

    Args:
        plans: the methods, such as one of ULS and one of ELS; see `userdp.make_private`.
        base: the rest of the configuration.
        l2_clip_norms: clip norms; each leaves the noise multiplier as it is.
        axes: values of fields of `TrainConfig`, by name.
    """
    used = {name: values for name, values in (axes or {}).items() if values}
    candidates = [
        Candidate(
            plan=plan if clip is None else replace(plan, clip=replace(plan.clip, l2_norm=clip)),
            config=changed(base, **dict(zip(used, values, strict=True))),
        )
        for plan in map(as_plan, plans)
        for clip in (l2_clip_norms or (None,))
        for values in itertools.product(*used.values())
    ]
    if len(set(candidates)) < len(candidates):
        raise UseError(
            "two candidates of the grid are alike: that would be one more run for nothing",
            hint="name each value once",
        )
    return tuple(candidates)


def build_request(
    store: UserStore, candidates: tuple[Candidate, ...], choice: Choice
) -> SweepRequest:
    """Split the budget and calibrate every plan, before anything private is read.

    Args:
        store: the store that is trained on, and scored on.
        candidates: the grid.
        choice: how the best is chosen.

    Raises:
        UseError: the mode has no claim for these candidates, or what was given says nothing in it.
    """
    mode, epsilon, score_epsilon = choice.tuning, choice.epsilon, choice.score_epsilon
    if not candidates:
        raise UseError("a tuning needs at least one candidate, got none")
    scored = store.split(choice.split)
    if not len(scored.counts):
        raise UseError(
            f"the store holds nothing in split {scored.name}: there is no loss to choose by",
            hint="prepare it with --held-out-users 0.1",
        )
    model = load_model(candidates[0].config, store)  # one that does not fit must cost nothing
    for candidate in candidates:
        require_covered(store, candidate.plan)
        if candidate.config.selection.scored:
            raise UseError("a tuning scores no examples: no selection by perplexity")
        if (measured := candidate.plan.made_for) is not None:
            made = made_with(candidate.config, weights=digests_of(model).whole)
            require_made_for(measured, store, made)
    selects = mode is TuningMode.PRIVATE_SELECTION
    if selects and choice.mean_trials is None:
        raise UseError(
            "a private selection needs the mean of its random number of candidates",
            hint="give --mean-trials 8",
        )
    logarithmic = choice.distribution == Distribution.LOGARITHMIC
    if not selects and not (choice.mean_trials is None and logarithmic):
        raise UseError(
            f"--tuning {mode} tries the whole grid: a random number of candidates says nothing",
            hint="leave --mean-trials and --distribution out, or use --tuning private-selection",
        )
    bound = math.log(store.meta.vocab_size) if choice.loss_bound is None else choice.loss_bound
    request = SweepRequest(candidates=candidates, split=scored.name, loss_bound=bound)
    if mode is TuningMode.NON_PRIVATE:
        if any(value is not None for value in (epsilon, score_epsilon, choice.loss_bound)):
            raise UseError(
                "--epsilon, --score-epsilon and --loss-bound say nothing with --tuning "
                "non-private: each run costs its own plan's epsilon, and scores are exact",
                hint="leave them out, or choose another --tuning",
            )
        return request
    require_positive("the loss bound", bound, at_most=1e6)
    require_one_owner(store.meta)
    library("opendp", extra="queries", what="a DP score")
    plans = tuple(candidate.plan for candidate in candidates)
    if epsilon is None:
        epsilon = min(plan.budget.target_epsilon or plan.guarantee().epsilon for plan in plans)
    delta = min(plan.budget.target_delta for plan in plans)
    if score_epsilon is None:
        score_epsilon = epsilon * (SCORE_SHARE if selects else SCORES_SHARE / len(plans))
    budget = {"epsilon": epsilon, "delta": delta, "score_epsilon": score_epsilon}
    tuning: Tuning
    if choice.mean_trials is not None:
        plans = tuple(dict.fromkeys(plans))
        law = Distribution(choice.distribution).of_mean(choice.mean_trials)
        tuning = selected(plans, repetitions=law, **budget)
    else:
        tuning = divided(plans, **budget)
    priced = dict(zip(plans, tuning.plans, strict=True))
    tuned = tuple(replace(one, plan=priced[one.plan]) for one in candidates)
    return replace(request, tuning=tuning, candidates=tuned)
