"""Every attack on one run, and the verdict: all of ``userdp audit``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from userdp import files
from userdp.auditing.canaries import clean_folder
from userdp.auditing.extra_run import ExtraRun, extra_run
from userdp.auditing.inference import fresh_text, user_inference
from userdp.auditing.references import calibrated, per_token, reference_scores
from userdp.claims import Claim, claim
from userdp.codec import encode
from userdp.data.progress import Progress
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.ledger import RunRecord, StoreLedger
from userdp.ledger.folder import read_lines
from userdp.training.config import PlainPlan, train_config
from userdp.training.devices import AUTO, choose_device
from userdp.training.run_models import base_of, released_models

FOLDER, RESULT = "audit", "audit.json"


def audit_run(
    run: Path,
    store: UserStore,
    *,
    inference: bool = True,
    references: int = 0,
    repeat: bool = True,
    canaries: int = 128,
    most_users: int = 2000,
    most_examples: int = 8,
    confidence: float = 0.95,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Attack a finished run, and repeat it once with canaries under observation.

    The result is written to ``RUN/audit/audit.json`` (mode 0600). Operator-only.

    Args:
        run: a run's folder, finished.
        store: the one it was trained on.
        inference: the user-inference attack on the released model.
        references: runs like this one that the attack is also made against, see
            `userdp.auditing.references`; even. Those that are finished are kept.
        repeat: the extra run with canaries and white-box checks; only for a private run.
        canaries: of the extra run.
        most_users: of a side of the attack.
        most_examples: fresh ones of a user that the attack reads.
        confidence: of the canaries' bound.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many steps of the extra run are done.

    Returns:
        ``claimed_epsilon``, ``delta``, ``inference`` (a `Roc`), ``references`` (how
        many, and a `Roc`), ``extra_run``, ``run_seconds`` (of
        the audited run's own steps; None where its operator's file is gone), ``epsilon_lower``,
        ``flagged`` (what contradicts the claim, by name), ``false_alarm`` (a right run is flagged
        with at most this probability, over all checks and canaries together; 0 where nothing is
        held against a claim), ``passed``.

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
    whole = claim(record)
    claimed, held = whole.guarantee, price_of_steps(whole)
    plan = record.plan
    repeat = repeat and plan is not None
    if not inference and not repeat:
        raise UseError(
            "nothing is left to audit: a run without privacy claims nothing that a repetition "
            "could contradict",
            hint="leave --no-inference out",
        )
    if references < 0 or references % 2:
        raise UseError(
            f"references must be an even number, got {references}: each person is in one run of "
            "every pair"
        )
    if (repeat or references) and not folder.train.exists():
        raise UseError(
            f"the run at {run} was trained by a loop of its own, which cannot be repeated: there "
            "is no extra run, and no reference run like it",
            hint="audit only the released model: --no-repeat, without --references",
        )
    if not inference:
        base_of(folder, store)  # refuses a run whose base is another model by now
    models = released_models(folder, store, with_base=True) if inference else {}
    options = folder.read_train()
    StoreLedger(store.path).look("audit")
    place = run / FOLDER
    clean_folder(place)
    config = train_config(options.get("learning", {}))
    if config.selection.scored:  # the scores are of the audited store
        config = replace(config, selection=Strategy.RANDOM)
    roc = against_references = again = None
    if models:
        model, base = (models[of].float().to(computes) for of in ("model", "base"))
        fresh = fresh_text(store, most_examples=most_examples, most_users=most_users)
        roc = encode(user_inference(model, base, fresh))
        if references:
            scores = reference_scores(
                store,
                fresh,
                plan or PlainPlan(**options["plain"]),
                config,
                place=place / "references",
                count=references,
                device=device,
                progress=progress,
            )
            calibration = fresh.roc(calibrated(per_token(model, fresh), scores))
            against_references = {"runs": references, **encode(calibration)}
    if repeat and plan is not None:
        again = extra_run(
            store,
            plan,
            config,
            place=place,
            canaries=canaries,
            confidence=confidence,
            device=device,
            progress=progress,
        )
    proven = None if again is None else max(again.bound.epsilon_lower, again.steps.epsilon_lower)
    flagged = [] if again is None else contradictions(again, held)
    result: dict[str, Any] = {
        "claimed_epsilon": claimed.epsilon,
        "delta": claimed.delta,
        "unit": str(claimed.unit),
        "adjacency": str(claimed.adjacency),
        "inference": roc,
        "references": against_references,
        "extra_run": None if again is None else encode(again),
        "run_seconds": _seconds_of(folder.operator),
        "epsilon_lower": proven,
        "flagged": flagged,
        "false_alarm": 0.0 if again is None or math.isinf(held) else again.false_alarm,
        "passed": not flagged,
    }
    files.write_json(place / RESULT, files.finite(result), mode=files.OPERATOR_FILE)
    folder.log({"kind": "audit", "flagged": flagged, "epsilon_lower": files.finite(proven)})
    return result


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


def _seconds_of(operator: Path) -> float | None:
    """Of all steps in an operator's file; None where there is none."""

    def of_line(line: dict[str, Any]) -> float | None:
        return float(line["seconds"]) if line.get("kind") == "step" else None

    return sum(read_lines(operator, of_line, torn=True)) or None
