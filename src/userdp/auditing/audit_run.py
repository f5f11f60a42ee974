"""A whole audit (``userdp audit``): every attack on one run, and what contradicts its claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.auditing.canaries import ExtraRun, extra_run
from userdp.auditing.membership import fresh_text, membership_inference
from userdp.auditing.repetitions import Repetition, reference_scores
from userdp.claims import Claim, claim
from userdp.core import files
from userdp.core.codec import encode, plain
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count
from userdp.data.selection_strategies import Strategy
from userdp.data.user_store import UserStore
from userdp.ledger import RunRecord, StoreLedger
from userdp.training.config import PlainPlan, TrainConfig, train_config
from userdp.training.devices import AUTO, choose_device
from userdp.training.released_model import base_of, released_models

FOLDER, RESULT = "audit", "audit.json"
_NEVER = 1e9  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Attacks:
    """The attacks that an audit makes.

    Args:
        canaries: how many users to make up for the extra run; more can prove a larger epsilon.
        inference: attack the released model.
        repeat: repeat a private run once, with canaries among its users.
        references: make the attack also against so many reference runs (an even number), which are
            like this run on halves of all people and cost as much each: the sharper attack.
            Finished reference runs are kept.
        confidence: of the lower bound by canaries.
    """

    canaries: int = 128
    inference: bool = True
    repeat: bool = True
    references: int = 0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.references and not self.inference:
            raise UseError("--no-inference leaves out the attack that --references sharpen")
        if self.references < 0 or self.references % 2:
            raise UseError(
                f"references must be an even number, got {self.references}: each person is in one "
                "run of every pair"
            )
        require_count("canaries", self.canaries, at_least=8, at_most=100_000)
        if not 0.5 <= self.confidence < 1:
            raise UseError(f"confidence must be from 0.5 to less than 1, got {self.confidence}")


def audit_run(
    run: Path,
    store: UserStore,
    attacks: Attacks,
    *,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Attack a finished run's model, and repeat the run once with canaries under observation.

    The result is written to ``RUN/audit/audit.json`` (mode 0600). Operator-only.

    Args:
        run: the folder of a finished run.
        store: the store that the run was trained on.
        attacks: the attacks to make.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many steps of the extra run are done.

    Returns:
        ``claimed_epsilon``, ``delta``, ``inference`` (a `Roc`), ``references`` (how many, and a
        `Roc`), ``extra_run``, ``epsilon_lower``, ``flagged`` (the names of the checks that
        contradict the claim), ``false_alarm`` (a right run is flagged with at most this
        probability, over all checks and canaries together; 0 where nothing is held against a
        claim), ``passed``.

    Raises:
        UseError: the run has no model, was trained on another store, or no attack is left.
    """
    record, computes = RunRecord.read(run), choose_device(device)
    folder = record.folder
    if record.begin.facts.get("store") != store.meta.store_id:
        raise UseError(
            f"the run at {run} was trained on another store than {store.path}: its members are not "
            "this store's training users",
            hint="give the --store that it was trained on",
        )
    whole, plan = claim(record), record.plan
    claimed, held = whole.guarantee, price_of_steps(whole)
    repeat = attacks.repeat and plan is not None
    if not (attacks.inference or repeat):
        raise UseError(
            "nothing is left to audit: no attack on the model is asked for, and no repetition, or "
            "the run claims no privacy that one could contradict",
            hint="leave --no-inference out",
        )
    if (repeat or attacks.references or plan is None) and not folder.train.exists():
        raise UseError(
            f"the run at {run} was trained by a loop of its own, which cannot be repeated: there "
            "is no extra run, and no reference run like it",
            hint="audit only the released model: --no-repeat, without --references",
        )
    if not attacks.inference:
        base_of(folder, store)  # refuses a run whose base is another model by now
    models = released_models(folder, store, with_base=True) if attacks.inference else {}
    options = folder.read_train()
    StoreLedger(store.path).look("audit")
    # A plan of norms that were measured on the store: a copy of that has a ledger of its own.
    trained_by = replace(plan, made_for=None) if plan else PlainPlan(**options["plain"])
    like = Repetition(
        store=store,
        plan=trained_by,
        config=quiet(train_config(options.get("learning", {})), trained_by.steps),
        place=run / FOLDER,
        device=device,
        progress=progress or Progress(),
    )
    like.clean()
    found: dict[str, Any] = {"inference": None, "references": None}
    if models:
        model, base = (models[of].float().to(computes) for of in ("model", "base"))
        fresh = fresh_text(store)
        found["inference"] = encode(membership_inference(model, base, fresh))
        if count := attacks.references:
            place = like.place / "references"
            others = reference_scores(replace(like, place=place), fresh, count=count)
            sharper = fresh.roc(fresh.means(model, per_token=True) - others)
            found["references"] = {"runs": count, **encode(sharper)}
    extra, flagged = None, list[str]()
    if repeat and plan is not None:
        extra = extra_run(like, plan, canaries=attacks.canaries, confidence=attacks.confidence)
        flagged = contradictions(extra, held)
    result = {
        "claimed_epsilon": claimed.epsilon,
        "held_epsilon": held,
        "delta": claimed.delta,
        "unit": str(claimed.unit),
        "adjacency": str(claimed.adjacency),
        **found,
        "extra_run": extra and encode(extra),
        "epsilon_lower": extra and extra.epsilon_lower,
        "flagged": flagged,
        "false_alarm": extra.false_alarm if extra and math.isfinite(held) else 0.0,
        "passed": not flagged,
    }
    values = plain(result)
    files.write_json(run / FOLDER / RESULT, values, mode=files.OPERATOR_FILE)
    folder.log({"kind": "audit", **{name: values[name] for name in ("flagged", "epsilon_lower")}})
    return result


def quiet(config: TrainConfig, steps: int) -> TrainConfig:
    """A run's configuration without evaluations and checkpoints, and with a random selection.

    A selection by scores cannot be repeated: scores belong to the audited store, not to its copy.
    """
    chosen = Strategy.RANDOM if config.selection.scored else config.selection
    never: dict[str, Any] = {"evaluate_every": 0, "checkpoint_seconds": _NEVER}
    return replace(config, selection=chosen, checkpoint_every=steps, **never)


def price_of_steps(whole: Claim) -> float:
    """The ε that an extra run is held against: that of the plan's steps; infinite without a claim.

    The extra run repeats only these steps, once. The whole claim may be larger, for the model's
    ancestors or for choosing the model. Compared with that sum,
    steps that leak too much would pass.
    """
    if whole.plan is None or math.isinf(whole.parts[-1].guarantee().epsilon):
        return math.inf
    return whole.plan.guarantee().epsilon


def contradictions(extra: ExtraRun, claimed: float) -> list[str]:
    """The checks of an extra run that contradict ε ``claimed``; none where that is infinite."""
    if math.isinf(claimed):
        return []
    flagged = [f"steps: {name}" for name in extra.steps.flagged]
    bounds = {"canaries": extra.bound.epsilon_lower, "steps": extra.steps.epsilon_lower}
    above = (name for name, lower in bounds.items() if lower > claimed)
    return flagged + [f"{name}: lower bound above the claim" for name in above]
