"""The public facts of a run: its ledger, and the allowed constants of its configuration.

Nothing here opens an operator's file. Whatever a public page shows comes from `RunFacts`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from userdp.claims import Claim, claim
from userdp.claims.verify import require_released_files
from userdp.errors import UseError
from userdp.ledger import RunFolder, RunRecord
from userdp.ledger.place import PLACE
from userdp.noise.gaussian import NoiseSampler
from userdp.plans import Plan
from userdp.plans.origin import in_words
from userdp.reporting.base_model import BaseModel, read_base_model
from userdp.reporting.markdown import visible
from userdp.reporting.numbers import number_text
from userdp.reporting.releases import ReleasedLoss, read_releases
from userdp.vocabulary import Guarantee

_ALLOWED = (
    "seq_len",
    "optimizer",
    "learning_rate",
    "warmup_steps",
    "schedule",
    "weight_decay",
    "lora_rank",
    "lora_alpha",
    "dropout",
    "averaging",
    "averaging_decay",
    "selection",
    "steps",
    "batch_size",
    "plan_basis",
)
"""Settings that a public page may show: all fixed before the run, none of them a path or a count.

An allow-list, so that whatever a later version notes of a run stays out until it is judged.
"""
_LONGEST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What may be told of one run.

    Args:
        path: the run's folder; for reading, never shown.
        name: what the page calls it; distinct among the runs of one page.
        run_id: random, of the ledger: by it the store's ledger knows the run.
        claim: recomputed from the ledger when this was read.
        plan: None for a run without privacy.
        finished: the ledger notes the run's end.
        unsafe_seeds: sampling or noise had a known seed, so that nothing is claimed.
        noise_samplers: what drew the noise of the attempted steps, by the ledger's lines; None if a
            line does not say, so that nothing is claimed.
        store: the random name of the user store, or None if the ledger has none.
        version: of userdp when the run began.
        settings: public constants of the training, by name, only those of `_ALLOWED`, as text.
        train: the public options that the run began with, the model without its place.
        released: losses that were released under DP, at a price of their own.
        owners: the assumption that was made where a record may have several owners; else None.
        user_is: which field, or what else, named the user of a record; None if it is not recorded.
        base: the model that training began from.
        ledger_digest: SHA-256 of the ledger's bytes: tells whether a ledger is the one meant here.
    """

    path: Path
    name: str
    run_id: str
    claim: Claim
    plan: Plan | None
    finished: bool
    unsafe_seeds: bool
    noise_samplers: tuple[NoiseSampler, ...] | None
    store: str | None
    version: str
    settings: Mapping[str, str]
    ledger_digest: str
    train: Mapping[str, Any]
    released: tuple[ReleasedLoss, ...]
    base: BaseModel
    owners: str | None = None
    user_is: str | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The claim; ε is infinite where nothing is claimed."""
        return self.claim.guarantee

    @property
    def private(self) -> bool:
        """Whether anything is claimed."""
        return math.isfinite(self.guarantee.epsilon)

    @property
    def basis(self) -> str | None:
        """What the plan's constants were chosen from; of a sweep's winner, how it was too."""
        said = self.settings.get("plan_basis")
        return said or (None if self.plan is None else in_words(self.plan.origins))

    @property
    def gradients(self) -> float | None:
        """Most gradients that the attempted steps computed in expectation."""
        if self.plan is None:
            return None
        sampling = self.plan.sampling
        per_step = self.plan.denominator * (sampling.group_size if sampling.by_user else 1)
        return per_step * self.claim.steps


def read_runs(paths: Sequence[Path]) -> tuple[RunFacts, ...]:
    """The facts of several runs, each with a name of its own.

    Raises:
        UseError: no path, a path twice, or one that is not a run's folder.
    """
    if not paths:
        raise UseError("no run to report", hint="name one or more run folders")
    resolved = Counter(path.resolve() for path in paths)
    for path, times in resolved.items():
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


def read_run(path: Path, record: RunRecord | None = None) -> RunFacts:
    """The public facts of the run in ``path``; ε is recomputed from its ledger.

    Args:
        path: of the run.
        record: of it, where it was read already.

    Raises:
        UseError: ``path`` is not a run's folder, its ledger was edited, or it holds other weights
            than the run released.
    """
    folder = RunFolder(path)
    hint = "name the folder that `userdp train STORE --out RUN` wrote"
    if not path.is_dir():
        what = "it is a file" if path.exists() else "nothing is there"
        raise UseError(f"there is no run at {path}: {what}", hint=hint)
    if not folder.ledger.exists():
        raise UseError(
            f"{path} is not a run's folder: it has no {folder.ledger.name}, and without one there "
            "is no epsilon to report",
            hint=hint,
        )
    if (path / PLACE).exists():
        raise UseError(
            f"{path} is a user store, not a run: its ledger tells of all runs on it",
            hint=f"for the sum over its runs: userdp account --ledger {path}",
        )
    record = record or RunRecord.read(path)
    claimed = claim(record)
    require_released_files(record)
    facts, train = record.facts, folder.read_train().get("learning", {})
    told = facts.get("store_facts")
    return RunFacts(
        path=path,
        name=path.resolve().name,
        run_id=record.run_id,
        claim=claimed,
        plan=claimed.plan,
        finished=record.finish is not None,
        unsafe_seeds=bool(facts.get("unsafe_seeds")),
        noise_samplers=record.samplers,
        store=facts.get("store"),
        version=str(facts.get("userdp", "unknown")),
        settings=_settings({**train, **facts}),
        ledger_digest=record.digest,
        train={key: _shown(key, str(train[key])) for key in ("model", "selection") if key in train},
        released=read_releases(record),
        owners=_told(told, "owners"),
        user_is=_told(told, "user_is"),
        base=read_base_model(folder.model, facts, train.get("model")),
    )


def _told(facts: Any, name: str) -> str | None:
    """What a store's preparation says under one name."""
    words = facts.get(name) if isinstance(facts, dict) else None
    return visible(words)[:_LONGEST] if isinstance(words, str) else None


def _settings(given: Mapping[str, Any]) -> dict[str, str]:
    """The allowed settings, as text."""
    return {
        key: _shown(key, given[key])
        for key in _ALLOWED
        if isinstance(given.get(key), str | int | float)
    }


def _shown(key: str, value: str | float) -> str:
    if key == "model":
        return PurePath(str(value)).name or "unknown"  # a folder's place is nobody's business
    return number_text(value) if isinstance(value, float) else str(value)[:_LONGEST]
