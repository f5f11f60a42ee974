"""Whether a folder is what its claim speaks of: of a run, of a model, or an export.

Two things are checked of each. *Bytes* are held against what binds them: of a run the finishing
line of its ledger (`userdp.claims.released`), of an export its statement too, and that against its
signature. And the *claim* is computed anew, and compared with all that is told of it: beside the
weights, in their metadata, in the statement. Whoever changes one of these files alone, or puts
other weights in their place, is noticed. Somebody who writes all of them anew is not, but by a
signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from userdp.claims.claims import model_claim, run_claim, second_opinion
from userdp.claims.lineage import Lineage, run_lineage
from userdp.claims.released import bound_by, differences, unbound
from userdp.claims.signing import (
    ENVELOPE,
    STATEMENT,
    PublicKey,
    Statement,
    digests_of,
    other_claims,
)
from userdp.claims.subject import LINEAGE, description_of, descriptions_of, digest_of
from userdp.claims.words import Claim
from userdp.core import files
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee, round_up
from userdp.ledger import RunRecord
from userdp.ledger.run_folder import LEDGER
from userdp.plans import Plan

_OF_EXPORT = ("README.md", "report.html", LEDGER, "plan.json")
"""What an export holds beside the model: made from the ledger, and bound by the statement alone."""
_OF_HUB = re.compile(r"\.gitattributes|\.cache/huggingface/.*", re.DOTALL)
"""What the hub's own client puts into a folder that it downloads. No model is read from these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What was found in a folder.

    Args:
        problems: one sentence each; empty: every file is what the claim speaks of.
        claim: recomputed from the folder; None where it cannot be.
        notes: what is well, and should be known.
        second: of an export, the same claim by another accountant; None where only one knows it.
        signed_by: of an export, the id of the key that was given, if it signed the statement.
    """

    problems: tuple[str, ...]
    claim: Claim | None = None
    notes: tuple[str, ...] = ()
    second: Guarantee | None = None
    signed_by: str | None = None


def kind_of(folder: Path) -> str | None:
    """``"export"``, ``"run"`` or ``"model"``; None of another folder.

    An export has a statement or a signature, a run a ledger, a model weights or what they descend
    from.
    """
    if any(one.exists() or one.is_symlink() for one in (folder / STATEMENT, folder / ENVELOPE)):
        return "export"
    if (folder / LEDGER).is_file():
        return "run"
    model = (folder / LINEAGE).is_file() or any(folder.glob("*.safetensors"))
    return "model" if model else None


def verify(folder: Path, *, key: Path | None = None) -> Checked:
    """Hold all of a folder against what binds it, and recompute its claim.

    Guarantee: where there are no problems, a run, a model or an export is as it was written. Of an
    export every file is the one that the statement names and there is no other; the claim is what
    the ledger in the folder gives; and with ``key``, whoever holds its private half signed just
    this. Claims are computed, and never read.

    Args:
        folder: of a run, of a model, or an export. That the parts which a model's folder names are
            all there are is known to the run's ledger alone: verify the run where it is at hand.
        key: of an export, public, in PEM. Without it nobody vouches for the folder: whoever can
            write its files can write all of them anew.

    Raises:
        UseError: the key cannot be used.
        FailureError: two accountants contradict each other.
    """
    public = None if key is None else PublicKey(key)
    try:
        match kind_of(folder):
            case "export":
                return _of_export(folder, public)
            case "run":
                return _of_run(RunRecord.read(folder))
        return _of_model(folder)
    except UseError as error:
        return Checked(problems=(error.message,))


def _of_run(run: RunRecord) -> Checked:
    claimed, problems, notes = run_claim(run), run_differs(run), list[str]()
    if run.finish is None:
        notes += ["The run is not finished, so that nothing binds its plan and its options yet."]
    elif others := unbound(run):
        notes += [
            f"{len(others)} file(s) beside the released ones ({others[0]}) are in no line of the "
            "ledger: no claim speaks of them, and they are not exported."
        ]
    notes += ["The run is as written."]
    return Checked(problems=problems, claim=claimed, notes=tuple(notes))


def run_differs(run: RunRecord) -> tuple[str, ...]:
    """What in a run's folder is not what its ledger speaks of, each in a sentence.

    Checked are every file of the model and the adapters, plan.json and train.toml against the
    ledger; and what the model and the adapters say that they descend from, against what the ledger
    says. A file beside the model that no line speaks of is no problem: it is never exported.
    """
    folder, finish = run.folder, run.finish
    problems, bound = [*_plan_differs(run)], bound_by(run)
    train = files.digest_of_file(folder.train) if folder.train.is_file() else None
    if finish is not None and train != finish.digests.get("train"):
        problems.append(f"the options in {folder.train} are not those that {run.path} speaks of")
    problems += differences(bound, run.path)
    for model in (folder.model, folder.adapter):
        if model.is_dir():
            if finish is None:
                problems.append(
                    f"{run.path} does not note the run's end, so that nothing binds the weights "
                    f"in {model} to it"
                )
            elif not any(path.is_relative_to(model) for path in bound):
                problems.append(f"{run.path} does not speak of the weights in {model}")
            problems += _told_differs(model, run_lineage(replace(run, found=())))
    if any(folder.path.glob("*.safetensors")):  # a trainer may write a model beside the ledger too
        problems += _of_model(folder.path).problems
    return tuple(problems)


def _plan_differs(run: RunRecord) -> Iterator[str]:
    """Whether plan.json holds the plan in the ledger's first line."""
    place, expected = run.folder.plan, None if run.plan is None else run.plan.digest
    try:
        kept = Plan.load(place).digest if place.exists() else None
    except UseError as error:
        yield error.message
        return
    if kept != expected:
        yield f"the plan in {place} is not the one that {run.path} speaks of"


def _told_differs(model: Path, lineage: Lineage) -> Iterator[str]:
    """What is said in a model's folder, by each of the places in it, against what is known."""
    try:
        weights, told = digest_of(model), descriptions_of(model)
    except UseError as error:
        yield error.message
        return
    for place, described in told.items():
        if described is None:
            yield f"{place} does not say what the weights descend from"
        elif described.weights != weights:
            yield f"what {place} says is of other weights than those in {model}"
        elif described.lineage != lineage:
            yield f"what {place} says that the weights descend from is not what the ledger says"


def _of_model(folder: Path) -> Checked:
    told = [one for one in descriptions_of(folder).values() if one is not None]
    weights, whole = digest_of(folder), description_of(folder)
    if whole is None:
        return Checked(problems=(f"nothing in {folder} says what the weights descend from",))
    problems = []
    if any(one.weights != weights for one in told):
        problems.append(f"the weights in {folder} are not those that {LINEAGE} speaks of")
    if any(one != told[0] for one in told):
        problems.append(
            f"{LINEAGE} and the metadata of the weights in {folder} say different things"
        )
    said, claimed = ("The model is as written.",), model_claim(whole.lineage)
    return Checked(problems=tuple(problems), claim=claimed, notes=said)


def _of_export(folder: Path, key: PublicKey | None) -> Checked:
    statement = Statement.read(_bytes_of(folder / STATEMENT), where=folder / STATEMENT)
    signed_by, problems = _signature(folder, key)
    _require_file(folder / LEDGER)
    run = RunRecord.read(folder)
    claimed = run_claim(run)
    digests, odd = digests_of(folder)
    problems += [f"{place} is a link or no file, and an export has none" for place in odd]
    of_hub = [one for one in digests if one not in statement.files and _OF_HUB.fullmatch(one)]
    ours = {place: one for place, one in digests.items() if place not in of_hub}
    for place in sorted(ours.keys() | statement.files.keys()):
        if place not in ours:
            problems.append(f"{place} is not there, and {STATEMENT} speaks of it")
        elif place not in statement.files:
            problems.append(f"{place} is there, and {STATEMENT} does not speak of it")
        elif ours[place] != statement.files[place]:
            problems.append(f"{place} is not the file that {STATEMENT} speaks of")
    problems += [*_stated_differs(statement, run, claimed), *_unreleased(run, ours)]
    second = second_opinion(claimed)
    notes = ["Every file is the one that was exported."]
    if signed_by is None:
        is_signed = (folder / ENVELOPE).is_file()
        check = "It is signed: check by whom with --key." if is_signed else "It is not signed."
        notes.append(
            "Nobody vouches for it: whoever can write these files can write all of them anew, so "
            f"that they agree. {check}"
        )
    else:
        notes.append(f"Signed by the key {signed_by}: its holder vouches for every file, and the "
                     "claim.")  # fmt: skip
    if of_hub:
        notes.append(
            f"{len(of_hub)} file(s) of the hub's client ({of_hub[0]}) are in no statement, and no "
            "model is read from them."
        )
    notes.append(
        "No second accountant here knows the price of all of its parts."
        if second is None
        else f"Recomputed by another accountant ({second.accountant}): ε ≤ "
        f"{round_up(second.epsilon)} at the same δ. Both are upper bounds of the true one."
    )
    return Checked(
        problems=tuple(problems),
        claim=claimed,
        notes=tuple(notes),
        second=second,
        signed_by=signed_by,
    )


def _stated_differs(statement: Statement, run: RunRecord, claimed: Claim) -> Iterator[str]:
    """What is told in an export is not what its ledger says."""
    for name in other_claims(statement.claim, claimed):
        yield (
            f"{STATEMENT} claims another {name} than the ledger gives: "
            f"{str(statement.claim.get(name))[:80]}"
        )
    if statement.lineage != claimed.lineage:
        yield f"{STATEMENT} names another lineage than the ledger does"
    yield from _plan_differs(run)
    for place in (run.folder.path, run.folder.adapter):
        if any(place.glob("*.safetensors")):
            yield from _told_differs(place, claimed.lineage)


def _unreleased(run: RunRecord, digests: Mapping[str, str]) -> Iterator[str]:
    """Files of an exported model that are not those that the ledger's run released.

    Whoever changed one of them may have written the statement anew, but not the ledger.

    Args:
        run: of the export.
        digests: SHA-256 of the files that are here, by place.
    """
    folder, bound = run.folder.path, bound_by(run, exported=True)
    yield from differences(bound, run.path)
    for place in digests:
        path = folder / place
        known = place in _OF_EXPORT or path.name == LINEAGE or path in bound
        saved_later = path.suffix == ".safetensors" and not (run.finish and run.finish.files)
        if not (known or saved_later):
            yield f"{place} is no file that the ledger's run released"


def _signature(folder: Path, key: PublicKey | None) -> tuple[str | None, list[str]]:
    """The id of the key, if it signed the statement; and what is wrong."""
    path = folder / ENVELOPE
    if key is None:
        return None, []
    if not path.exists():
        return None, [f"nobody signed this export: there is no {ENVELOPE} to check with the key"]
    payload = key.payload_of(_bytes_of(path), where=path)
    if payload is None:
        return None, [f"{ENVELOPE} was not signed by the key that was given ({key.id})"]
    if payload != _bytes_of(folder / STATEMENT):
        return None, [f"{ENVELOPE} signs another statement than {STATEMENT}"]
    return key.id, []


def _bytes_of(path: Path) -> bytes:
    """What a file of an export holds; `UseError` where it is missing, or a link."""
    _require_file(path)
    return path.read_bytes()


def _require_file(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise UseError(f"{path} is a link or no file, and every export has that file")
