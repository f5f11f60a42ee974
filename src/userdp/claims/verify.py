"""Whether a run's or a model's folder is what its claim speaks of, by the folder alone.

The finishing line of a run's ledger holds the digests of every file of the released model, the plan
and the options, and every line follows from the one before it: so whoever changes one of these
files alone, or puts other weights in their place, is noticed. Somebody who writes all of them anew
is not: the digests are no signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims.bound import bound_in, files_differ, unbound
from userdp.claims.claims import Claim, claim_of, compose
from userdp.claims.inheritance import run_lineage
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Steps
from userdp.claims.weights import LINEAGE, descriptions_of, digest_of
from userdp.errors import UseError
from userdp.ledger.folder import RunFolder
from userdp.ledger.journal import read_entries
from userdp.ledger.run import finish_of, plan_of
from userdp.plans import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was found in a folder.

    Args:
        problems: one sentence each; empty: every file is what the claim speaks of.
        claim: recomputed from the folder; None where it cannot be.
        notes: what is well, and should be known.
    """

    problems: tuple[str, ...]
    claim: Claim | None
    notes: tuple[str, ...] = ()


def require_released_files(folder: RunFolder) -> None:
    """Refuse to tell the ε of a run where its folder holds another model than it released.

    Every command that tells the ε of a released model calls this. A run that is not finished, or
    whose model lies elsewhere, has nothing here that could be compared.

    Raises:
        UseError: the weights in the folder, or a file beside them, are not what the finishing line
            speaks of, or the weights are damaged.
    """
    entries = read_entries(folder.ledger)
    released = released_digests(entries).get("weights")
    place = folder.released
    if released is None or not place.is_dir():
        return
    bound = _bound_here(folder, entries)
    hint = "put the released files back; `userdp verify RUN` names all that differs"
    weights = {f"{place.name}/{path.name}" for path in place.glob("*.safetensors")}
    different = next(files_differ(folder, bound), None)
    others = not weights <= bound.keys() and digest_of(place) != released
    if others or (different is not None and different[0].endswith(".safetensors")):
        raise UseError(
            f"the weights in {place} are not those that the run released, as the last lines "
            f"of {folder.ledger} say: the epsilon of the run is of other weights, and says nothing "
            "of these",
            hint=hint,
        )
    if different is not None:
        raise UseError(
            f"{different[1]}: what is said of the run is said of the whole model that it released, "
            "and of no file that came later",
            hint=hint,
        )


def verify_run(path: Path) -> Verified:
    """Hold every file of a run's folder against its ledger, and recompute the claim.

    Checked are the chain of the ledger; every file of the model and the adapters, plan.json and
    train.toml against the digests in the finishing line; plan.json against the plan in the first
    line; and what the model and the adapters say that they descend from, against what the ledger
    says. A file beside the model that no line speaks of is named, and is no problem: it is never
    exported.
    """
    folder = RunFolder(path)
    try:
        entries = read_entries(folder.ledger)
        claimed = claim_of(folder.ledger, entries)
        lineage = run_lineage(folder.ledger, entries)
    except UseError as error:
        return Verified(problems=(error.message,), claim=None)
    problems = [*_of_files(folder, entries), *plan_differs(folder, entries)]
    for model in (folder.model, folder.adapter):
        if model.is_dir():
            problems += descriptions_differ(model, lineage)
    if is_model(path):  # a trainer may write a model beside the ledger as well
        problems += verify_model(path).problems
    return Verified(problems=tuple(problems), claim=claimed, notes=tuple(_notes(folder, entries)))


def _notes(folder: RunFolder, entries: list[dict[str, Any]]) -> Iterator[str]:
    if finish_of(entries) is None:
        yield "The run is not finished, so that nothing binds its plan and its options yet."
        return
    bound = bound_in(entries)
    if bound is None and folder.model.is_dir():
        yield (
            "The ledger binds the weights only: it is of before the files beside them (settings, "
            "tokenizer) were bound too. They are not exported."
        )
        return
    others = unbound(folder, bound or {})
    if not bound:  # the model was saved after the run had ended: its weights are known all the same
        others = [place for place in others if not place.endswith(".safetensors")]
    if others:
        yield (
            f"{len(others)} file(s) beside the released ones ({others[0]}) are in no line of the "
            "ledger: no claim speaks of them, and they are not exported."
        )


def verify_model(folder: Path) -> Verified:
    """Hold a model's weights against what its folder says of them, and recompute the claim.

    The claim is recomputed from the parts that the folder names. That those are all there are is
    known to the ledger of the run alone: verify the run's folder, where it is at hand.
    """
    try:
        told = [one for _, one in descriptions_of(folder) if one is not None]
        weights = digest_of(folder)
    except UseError as error:
        return Verified(problems=(error.message,), claim=None)
    if not told:
        silent = f"nothing in {folder} says what the weights descend from"
        return Verified(problems=(silent,), claim=None)
    problems = []
    if any(one.weights != weights for one in told):
        problems.append(f"the weights in {folder} are not those that {LINEAGE} speaks of")
    if any(one != told[0] for one in told):
        problems.append(
            f"{LINEAGE} and the metadata of the weights in {folder} say different things"
        )
    lineage = told[0].lineage
    for one in told[1:]:
        lineage = one.lineage + lineage if one.lineage != lineage else lineage
    return Verified(problems=tuple(problems), claim=_model_claim(lineage))


def is_run(path: Path) -> bool:
    """Whether a folder is a run's: it has a ledger."""
    return RunFolder(path).ledger.is_file()


def is_model(path: Path) -> bool:
    """Whether a folder is a model's: it has weights, or says of some what they descend from."""
    return (path / LINEAGE).is_file() or any(path.glob("*.safetensors"))


def _model_claim(lineage: Lineage) -> Claim:
    steps = (one.plan.steps * one.charges for one in lineage.parts if isinstance(one, Steps))
    return Claim(
        guarantee=compose(lineage),
        lineage=lineage,
        subject="model",
        steps=sum(steps),
        complete=True,
    )


def released_digests(entries: list[dict[str, Any]]) -> dict[str, str | None]:
    """What a run's finishing line binds, by name; nothing of a run that is not finished."""
    finish = finish_of(entries)
    return {} if finish is None else dict(finish["digests"])


def _of_files(folder: RunFolder, entries: list[dict[str, Any]]) -> Iterator[str]:
    """The files that the finishing line binds."""
    told = released_digests(entries)
    if finish_of(entries) is None:
        if folder.model.is_dir():
            yield (
                f"{folder.ledger} does not note the run's end, so that nothing binds the weights "
                f"in {folder.model} to it"
            )
        return
    place = folder.released
    yield from _same("the weights", place, told.get("weights"), _of_weights(place))
    yield from _same("the options", folder.train, told.get("train"), _of_bytes(folder.train))
    if "adapter" in told:  # runs of before this was noted say nothing of it
        seen = _of_weights(folder.adapter)
        yield from _same("the adapter", folder.adapter, told["adapter"], seen)
    for _, problem in files_differ(folder, _bound_here(folder, entries)):
        yield problem


def _bound_here(folder: RunFolder, entries: list[dict[str, Any]]) -> dict[str, str]:
    """What the finishing line binds of those folders that are here: others are named as a whole."""
    here = {top.name for top in (folder.model, folder.adapter) if top.is_dir()}
    bound = bound_in(entries) or {}
    return {place: one for place, one in bound.items() if place.partition("/")[0] in here}


def plan_differs(folder: RunFolder, entries: list[dict[str, Any]]) -> Iterator[str]:
    """plan.json, the plan in the ledger's first line and the one that the run finished with."""
    plan = plan_of(folder.ledger, entries)
    expected = None if plan is None else plan.digest
    kept: str | None = None
    if folder.plan.exists():
        try:
            kept = Plan.load(folder.plan).digest
        except UseError as error:
            yield error.message
            return
    yield from _same("the plan", folder.plan, expected, kept)
    if finish_of(entries) is not None and released_digests(entries).get("plan") != expected:
        yield f"the finishing line of {folder.ledger} is of another plan than its first line"


def descriptions_differ(model: Path, lineage: Lineage) -> Iterator[str]:
    """What is said in a model's folder, by each of the places in it."""
    try:
        weights = digest_of(model)
        told = descriptions_of(model)
    except UseError as error:
        yield error.message
        return
    for place, described in told:
        if described is None:
            yield f"{place} does not say what the weights descend from"
        elif described.weights != weights:
            yield f"what {place} says is of other weights than those in {model}"
        elif described.lineage != lineage:
            yield f"what {place} says that the weights descend from is not what the ledger says"


def _same(what: str, place: Path, expected: str | None, seen: str | None) -> Iterator[str]:
    if expected == seen:
        return
    if seen is None:
        yield f"{what} that the ledger speaks of are not at {place}"
    elif expected is None:
        yield f"the ledger does not speak of {what} in {place}"
    else:
        yield f"{what} in {place} differ from those that the ledger speaks of"


def _of_weights(model: Path) -> str | None:
    if not model.is_dir():
        return None
    try:
        return digest_of(model)
    except UseError as error:
        return error.message  # equal to no digest: the weights are named as different


def _of_bytes(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
