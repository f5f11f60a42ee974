"""Every attack on one run, and the verdict: all of ``userdp audit``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.auditing.canaries import ExtraRun, extra_run
from userdp.auditing.copies import Repetition
from userdp.auditing.inference import fresh_text, user_inference
from userdp.auditing.references import reference_scores
from userdp.claims import Claim, claim
from userdp.core import files
from userdp.core.codec import encode, plain
from userdp.core.errors import UseError
from userdp.core.stages import NoProgress, Progress
from userdp.core.vocabulary import require_count
from userdp.data.strategy import Strategy
from userdp.data.user_store import UserStore
from userdp.ledger import RunRecord, StoreLedger
from userdp.training.config import PlainPlan, TrainConfig, train_config
from userdp.training.devices import AUTO, choose_device
from userdp.training.run_models import base_of, released_models

FOLDER, RESULT = "audit", "audit.json"
_NEVER = 1e9  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Attacks:
    """What an audit does.

    Args:
        canaries: how many users to make up for the extra run; more can prove a larger epsilon.
        inference: attack the released model.
        repeat: make the extra run; only of a private run.
        references: make the attack also against so many reference runs (an even number): runs like
            this one on halves of all people, each of which costs as much. It is the sharper attack.
            Those that are finished are kept.
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
    """Attack a finished run, and repeat it once with canaries under observation.

    The result is written to ``RUN/audit/audit.json`` (mode 0600). Operator-only.

    Args:
        run: a run's folder, finished.
        store: the one it was trained on.
        attacks: what is done.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many steps of the extra run are done.

    Returns:
        ``claimed_epsilon``, ``delta``, ``inference`` (a `Roc`), ``references`` (how many, and a
        `Roc`), ``extra_run``, ``epsilon_lower``, ``flagged`` (what contradicts the claim, by name),
        ``false_alarm`` (a right run is flagged with at most this probability, over all checks and
        canaries together; 0 where nothing is held against a claim), ``passed``.

    Raises:
        UseError: the run has no model, was trained on another store, or nothing is asked for.
    """
    record, computes = RunRecord.read(run), choose_device(device)
    folder = record.folder
    if record.facts.get("store") != store.meta.store_id:
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
    trained_by = plan or PlainPlan(**options["plain"])
    like = Repetition(
        store=store,
        plan=trained_by,
        config=quiet(train_config(options.get("learning", {})), trained_by.steps),
        place=run / FOLDER,
        device=device,
        progress=progress or NoProgress(),
    )
    like.clean()
    found: dict[str, Any] = {"inference": None, "references": None}
    if models:
        model, base = (models[of].float().to(computes) for of in ("model", "base"))
        fresh = fresh_text(store)
        found["inference"] = encode(user_inference(model, base, fresh))
        if count := attacks.references:
            beside = replace(like, place=like.place / "references")
            others = reference_scores(beside, fresh, count=count)
            told = fresh.roc(fresh.means(model, per_token=True) - others)
            found["references"] = {"runs": count, **encode(told)}
    again = None
    if repeat and plan is not None:
        again = extra_run(like, plan, canaries=attacks.canaries, confidence=attacks.confidence)
    flagged = contradictions(again, held) if again else []
    result = {
        "claimed_epsilon": claimed.epsilon,
        "delta": claimed.delta,
        "unit": str(claimed.unit),
        "adjacency": str(claimed.adjacency),
        **found,
        "extra_run": again and encode(again),
        "epsilon_lower": again and again.epsilon_lower,
        "flagged": flagged,
        "false_alarm": again.false_alarm if again and math.isfinite(held) else 0.0,
        "passed": not flagged,
    }
    told = plain(result)
    files.write_json(run / FOLDER / RESULT, told, mode=files.OPERATOR_FILE)
    folder.log({"kind": "audit", **{name: told[name] for name in ("flagged", "epsilon_lower")}})
    return result


def quiet(config: TrainConfig, steps: int) -> TrainConfig:
    """A run's configuration without what looks at people between steps, or chooses by scores.

    Scores are of the audited store, and say nothing of a copy.
    """
    chosen = Strategy.RANDOM if config.selection.scored else config.selection
    return replace(
        config,
        selection=chosen,
        evaluate_every=0,
        checkpoint_every=steps,
        checkpoint_seconds=_NEVER,
    )


def price_of_steps(whole: Claim) -> float:
    """ε that an extra run is held against: that of the plan's steps; infinite without a claim.

    It repeats these steps alone, once. What else the model descends from, how often its plan was
    charged, and what choosing it cost would only hide that they leak too much.
    """
    if whole.plan is None or math.isinf(whole.parts[-1].guarantee().epsilon):
        return math.inf
    return whole.plan.guarantee().epsilon


def contradictions(again: ExtraRun, claimed: float) -> list[str]:
    """What of an extra run is not what ``claimed`` says; nothing can be, where that is infinite."""
    if math.isinf(claimed):
        return []
    flagged = [f"steps: {name}" for name in again.steps.flagged]
    bounds = {"canaries": again.bound.epsilon_lower, "steps": again.steps.epsilon_lower}
    above = (name for name, lower in bounds.items() if lower > claimed)
    return flagged + [f"{name}: lower bound above the claim" for name in above]
