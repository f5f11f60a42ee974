"""Whether a folder is what its claim speaks of: of a run, of a model, or an export.

Two things are checked of each. *Bytes* are held against what binds them: of a run the finishing
line of its ledger (`userdp.claims.released_files`), of an export its statement too, and that
against its signature. And the *claim* is computed anew, and compared with what is said of it beside
the weights and in the statement. Whoever changes one of these files alone, or puts other weights in
their place, is noticed. Somebody who writes all of them anew is noticed by a signature only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims.claim_sentences import Claim
from userdp.claims.claims import model_claim, run_claim, second_opinion
from userdp.claims.ledger_lineage import run_lineage
from userdp.claims.lineage import Lineage, sentences
from userdp.claims.released_files import bound_by, differences, is_export, unbound
from userdp.claims.signed_statement import ENVELOPE, public_key, statement_differs, why_unsigned
from userdp.claims.weights import LINEAGE, description_of, digest_of, has_weights
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee, round_up
from userdp.ledger import RunRecord
from userdp.ledger.run_folder import LEDGER
from userdp.plans import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What was found in a folder.

    Args:
        problems: one sentence each; empty: every file is what the claim speaks of.
        claim: recomputed from the folder; None where it cannot be.
        notes: what the reader should know where there are no problems.
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
    if (folder / "federation.json").is_file():  # whose silos' ledgers `account` recomputes
        return None
    if is_export(folder) or (folder / ENVELOPE).exists():
        return "export"
    if (folder / LEDGER).is_file():
        return "run"
    return "model" if (folder / LINEAGE).is_file() or has_weights(folder) else None


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
    public = None if key is None else public_key(key)
    try:
        match kind_of(folder):
            case "export":
                return _of_export(RunRecord.read(folder), public)
            case "run":
                return _of_run(RunRecord.read(folder))
        return _of_model(folder)
    except UseError as error:
        return Checked(problems=(error.message,))


def _of_model(folder: Path) -> Checked:
    described = description_of(folder)
    return Checked(
        problems=tuple(_described_otherwise(folder)),
        claim=None if described is None else model_claim(described.lineage),
        notes=(_words()["model"],),
    )


def _described_otherwise(model: Path, lineage: Lineage | None = None) -> Iterator[str]:
    """Whether ``userdp.json`` speaks of the weights beside it, and says ``lineage`` of them."""
    described, place = description_of(model), model / LINEAGE
    if described is None:
        yield f"there is no {place}, which says what the weights descend from"
    elif described.weights != digest_of(model):
        yield f"the weights in {model} are not those that {place} speaks of"
    elif lineage not in (None, described.lineage):
        yield f"what {place} says that the weights descend from is not what the ledger says"


def _of_run(run: RunRecord) -> Checked:
    words, notes, others = _words(), list[str](), unbound(run)
    if run.finish is None:
        notes.append(words["unfinished"])
    elif others:
        notes.append(words["beside"].format(count=len(others), first=others[0]))
    return Checked(
        problems=tuple(run_differs(run)), claim=run_claim(run), notes=(*notes, words["run"])
    )


def run_differs(run: RunRecord) -> Iterator[str]:
    """What in a run's folder, or in an export, its ledger says otherwise, each in a sentence.

    Checked are every file of the model and the adapters, plan.json and train.toml against the
    ledger; and what the model and the adapters say that they descend from, against what the ledger
    says. A file beside the model that no line speaks of is no problem: it is never exported.
    """
    folder, ledger, bound = run.folder, run.folder.ledger, bound_by(run)
    yield from differences(bound, ledger)
    if (Plan.load(folder.plan) if folder.plan.exists() else None) != run.plan:
        yield f"the plan in {folder.plan} is not the one that {ledger} speaks of"
    model = folder.path if is_export(folder.path) else folder.model
    for place in filter(has_weights, (model, folder.adapter)):
        if not any(path.is_relative_to(place) for path in bound):
            yield (
                f"{ledger} does not speak of the weights in {place}: it does not note the run's "
                "end, or they came after that"
            )
        yield from _described_otherwise(place, run_lineage(run))
    if model != folder.path and has_weights(folder.path):  # where a trainer may save a model too
        yield from _described_otherwise(folder.path)


def _of_export(run: RunRecord, key: Any) -> Checked:
    folder, claimed, words = run.folder.path, run_claim(run), _words()
    problems = (*statement_differs(folder, claimed), *run_differs(run))
    unsigned = None if key is None else why_unsigned(folder, key)
    signed_by = None if key is None or unsigned else str(key.keyid)
    second = second_opinion(claimed)
    signed = "signed" if signed_by else "unchecked" if (folder / ENVELOPE).exists() else "unsigned"
    notes = [words["export"], words[signed].format(key=signed_by)]
    if second is None:
        notes.append(words["alone"])
    else:
        price = round_up(second.epsilon)
        notes.append(words["second"].format(accountant=second.accountant, epsilon=price))
    return Checked(
        problems=(unsigned, *problems) if unsigned else problems,
        claim=claimed,
        notes=tuple(notes),
        second=second,
        signed_by=signed_by,
    )


def _words() -> Mapping[str, str]:
    """What is said where there are no problems."""
    words: Mapping[str, str] = sentences()["verified"]
    return words
