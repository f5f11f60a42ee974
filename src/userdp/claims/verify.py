"""Whether a folder is what its claim speaks of: of a run, of a model, or an export.

Bytes are held against what binds them: of a run the finishing line of its ledger, which holds the
digests of every file of the released model, the plan and the options; of an export its statement
too, and that against its signature. And every claim is computed anew, and compared with what is
told of it. Whoever changes one of these files alone, or puts other weights in their place, is
noticed. Somebody who writes all of them anew is not, but by a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from userdp.claims.claims import Claim, claim, model_claim, second_opinion
from userdp.claims.lineage import Lineage, run_lineage
from userdp.claims.released import (
    content_digest,
    exported_places,
    files_differ,
    place_in_run,
    unbound,
)
from userdp.claims.signing import (
    ENVELOPE,
    STATEMENT,
    PublicKey,
    Statement,
    differences,
    digests_of,
    unchecked_payload,
)
from userdp.claims.weights import LINEAGE, descriptions_of, digest_of
from userdp.core import files
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee
from userdp.ledger import RunFolder, RunRecord
from userdp.ledger.folder import LEDGER
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
        second: of an export, the same claim by another accountant; None where only one knows it.
        signed_by: of an export, the id of the key that was given, if it signed the statement.
        notes: what is well, and should be known.
    """

    problems: tuple[str, ...]
    claim: Claim | None
    second: Guarantee | None = None
    signed_by: str | None = None
    notes: tuple[str, ...] = ()


def is_run(path: Path) -> bool:
    """Whether a folder is a run's: it has a ledger."""
    return RunFolder(path).ledger.is_file()


def is_model(path: Path) -> bool:
    """Whether a folder is a model's: it has weights, or says of some what they descend from."""
    return (path / LINEAGE).is_file() or any(path.glob("*.safetensors"))


def is_exported(path: Path) -> bool:
    """Whether a folder was exported, or says that it was signed."""
    places = (path / STATEMENT, path / ENVELOPE)
    return any(place.exists() or place.is_symlink() for place in places)


def require_released_files(run: RunRecord) -> None:
    """Refuse to tell the ε of a run where its folder holds another model than it released.

    Every command that tells the ε of a released model calls this. A run that is not finished, or
    whose model lies elsewhere, has nothing here that could be compared.

    Raises:
        UseError: the weights in the folder, or a file beside them, are not what the finishing line
            speaks of, or the weights are damaged.
    """
    place = run.folder.released
    if run.finish is None or run.finish.digests.get("weights") is None or not place.is_dir():
        return
    bound = _bound_here(run)
    weights = (f"{place.name}/{path.name}" for path in place.glob("*.safetensors"))
    name, problem = next(files_differ(run.folder, bound), ("", ""))
    # Tensors that lie in bound files are known by the digests of those.
    others = not all(one in bound for one in weights) and any(
        _weights_differ(run, place, "weights")
    )
    if others or name.endswith(".safetensors"):
        problem = (
            f"the weights in {place} are not those that the run released, as the last lines of "
            f"{run.path} say"
        )
    if problem:
        raise UseError(
            f"{problem}: what is said of the run is said of the whole model that it released, and "
            "of no file that came later",
            hint="put the released files back; `userdp verify RUN` names all that differs",
        )


def run_differs(run: RunRecord) -> tuple[str, ...]:
    """What in a run's folder is not what its ledger speaks of, each in a sentence.

    Checked are the chain of the ledger; every file of the model and the adapters, plan.json and
    train.toml against the digests in the finishing line; plan.json against the plan in the first
    line; and what the model and the adapters say that they descend from, against what the ledger
    says. A file beside the model that no line speaks of is named, and is no problem: it is never
    exported.
    """
    folder, problems = run.folder, [*_files_of(run), *_plan_differs(run)]
    for model in (folder.model, folder.adapter):
        if model.is_dir():
            problems += _told_differs(model, run_lineage(run.as_written))
    if is_model(folder.path):  # a trainer may write a model beside the ledger as well
        problems += verify_model(folder.path).problems
    return tuple(problems)


def verify_run(path: Path) -> Checked:
    """Hold every file of a run's folder against its ledger (`run_differs`); recompute the claim."""
    try:
        run = RunRecord.read(path)
        claimed, problems = claim(run), run_differs(run)
    except UseError as error:
        return Checked(problems=(error.message,), claim=None)
    return Checked(problems=problems, claim=claimed, notes=tuple(_notes(run)))


def verify_model(folder: Path) -> Checked:
    """Hold a model's weights against what its folder says of them, and recompute the claim.

    The claim is recomputed from the parts that the folder names. That those are all there are is
    known to the ledger of the run alone: verify the run's folder, where it is at hand.
    """
    try:
        told = [one for _, one in descriptions_of(folder) if one is not None]
        weights = digest_of(folder)
    except UseError as error:
        return Checked(problems=(error.message,), claim=None)
    if not told:
        silent = f"nothing in {folder} says what the weights descend from"
        return Checked(problems=(silent,), claim=None)
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
    return Checked(problems=tuple(problems), claim=model_claim(lineage))


def _notes(run: RunRecord) -> Iterator[str]:
    if run.finish is None:
        yield "The run is not finished, so that nothing binds its plan and its options yet."
        return
    others = unbound(run.folder, run.finish.files)
    if not run.finish.files:  # the model was saved after the run's end: its weights are known
        others = [place for place in others if not place.endswith(".safetensors")]
    if others:
        yield (
            f"{len(others)} file(s) beside the released ones ({others[0]}) are in no line of the "
            "ledger: no claim speaks of them, and they are not exported."
        )


def _files_of(run: RunRecord) -> Iterator[str]:
    """What differs of the files that the finishing line binds."""
    folder, place = run.folder, run.folder.released
    if run.finish is None:
        if folder.model.is_dir():
            yield (
                f"{run.path} does not note the run's end, so that nothing binds the weights "
                f"in {folder.model} to it"
            )
        return
    yield from _weights_differ(run, place, "weights")
    train = files.digest_of_file(folder.train) if folder.train.is_file() else None
    yield from _same("the options", folder.train, run.finish.digests.get("train"), train)
    yield from _weights_differ(run, folder.adapter, "adapter")
    for _, problem in files_differ(folder, _bound_here(run)):
        yield problem


def _bound_here(run: RunRecord) -> dict[str, str]:
    """What the finishing line binds of those folders that are here: others are named as a whole."""
    here = {top.name for top in (run.folder.model, run.folder.adapter) if top.is_dir()}
    bound = {} if run.finish is None else run.finish.files
    return {place: one for place, one in bound.items() if place.partition("/")[0] in here}


_CALLED = {"weights": "the weights", "adapter": "the adapter"}


def _weights_differ(run: RunRecord, place: Path, name: str) -> Iterator[str]:
    """Whether the weights in a folder are those that the ledger names so."""
    expected = None if run.finish is None else run.finish.digests.get(name)
    try:
        seen = digest_of(place) if place.is_dir() else None
    except UseError as error:
        yield error.message
        return
    yield from _same(_CALLED[name], place, expected, seen)


def _plan_differs(run: RunRecord) -> Iterator[str]:
    """plan.json, the plan in the ledger's first line and the one that the run finished with."""
    expected, kept = None if run.plan is None else run.plan.digest, None
    if run.folder.plan.exists():
        try:
            kept = Plan.load(run.folder.plan).digest
        except UseError as error:
            yield error.message
            return
    yield from _same("the plan", run.folder.plan, expected, kept)
    if run.finish is not None and run.finish.digests.get("plan") != expected:
        yield f"the finishing line of {run.path} is of another plan than its first line"


def _told_differs(model: Path, lineage: Lineage) -> Iterator[str]:
    """What is said in a model's folder, by each of the places in it."""
    try:
        weights, told = digest_of(model), descriptions_of(model)
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


def verify_export(folder: Path, *, key: Path | None = None) -> Checked:
    """Check all of an exported folder, and recompute its claim.

    Guarantee: where there are no problems, every file is the one that the statement names and there
    is no other; the claim is what the ledger in the folder gives; and with ``key``, whoever holds
    its private half signed just this. ``claim`` and ``second`` are computed, and never read.

    Args:
        folder: that `userdp export` wrote.
        key: public, in PEM. Without it nobody vouches for the folder: whoever can write its files
            can write all of them anew.

    Raises:
        UseError: the key cannot be used.
        FailureError: two accountants contradict each other.
    """
    public = None if key is None else PublicKey(key)
    try:
        statement = Statement.read(_bytes_of(folder / STATEMENT), where=folder / STATEMENT)
        signed_by, problems = _signature(folder, public)
        _require_file(folder / LEDGER)
        run = RunRecord.read(folder)
        claimed = claim(run)
    except UseError as error:
        return Checked(problems=(error.message,), claim=None)
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
    nobody = (
        "Nobody vouches for it: whoever can write these files can write all of them anew, so that "
        "they agree."
    )
    is_signed = (folder / ENVELOPE).is_file()
    check = "It is signed: check by whom with --key." if is_signed else "It is not signed."
    vouched = f"Signed by the key {signed_by}: its holder vouches for every file, and the claim."
    notes = [f"{nobody} {check}" if signed_by is None else vouched]
    if of_hub:
        notes.append(
            f"{len(of_hub)} file(s) of the hub's client ({of_hub[0]}) are in no statement, and no "
            "model is read from them."
        )
    return Checked(
        problems=tuple(problems),
        claim=claimed,
        second=second_opinion(claimed),
        signed_by=signed_by,
        notes=tuple(notes),
    )


def _stated_differs(statement: Statement, run: RunRecord, claimed: Claim) -> Iterator[str]:
    """What in an export, or in its statement, is not what its ledger says."""
    digests = {} if run.finish is None else run.finish.digests
    for name in differences(statement.claim, claimed):
        yield (
            f"{STATEMENT} claims another {name} than the ledger gives: "
            f"{str(statement.claim.get(name))[:80]}"
        )
    if statement.lineage != claimed.lineage:
        yield f"{STATEMENT} names another lineage than the ledger does"
    if statement.tensors != digests.get("weights"):
        yield f"{STATEMENT} is of other weights than those that the ledger's run released"
    if statement.base != run.facts.get("base_model", {}).get("weights"):
        yield f"{STATEMENT} names another base model than the ledger does"
    yield from _plan_differs(run)
    folder, adapter = run.folder.path, run.folder.adapter
    for place, name in ((folder, "weights"), (adapter, "adapter")):
        alone = digests.get("weights") == digests.get("adapter")  # adapters that have no model
        if (place == folder and not alone) or (place == adapter and adapter.is_dir()):
            yield from _weights_differ(run, place, name)
            yield from _told_differs(place, claimed.lineage)


def _unreleased(run: RunRecord, digests: Mapping[str, str]) -> Iterator[str]:
    """Files of an exported model that are not those that the ledger's run released.

    Whoever changed one of them may have written the statement anew, but not the ledger.

    Args:
        run: of the export.
        digests: SHA-256 of the files that are here, by place.
    """
    released = {} if run.finish is None else run.finish.files
    for place in exported_places(released):
        if place not in digests:
            yield f"{place}, which the ledger's run released, is not there"
    for place, digest in digests.items():
        if place in _OF_EXPORT or place.rpartition("/")[2] == LINEAGE:
            continue
        weights, bound = place.endswith(".safetensors"), released.get(place_in_run(place))
        if weights and not released:
            continue  # nothing but the digest of all weights together was noted
        try:
            seen = content_digest(run.folder.path / place) if weights else digest
        except UseError as error:
            seen = error.message  # equal to no digest
        if bound is None:
            yield f"{place} is no file that the ledger's run released"
        elif bound != seen:
            yield f"{place} is not the file that the ledger's run released"


def _signature(folder: Path, key: PublicKey | None) -> tuple[str | None, list[str]]:
    """The id of the key, if it signed the statement; and what is wrong."""
    path, statement = folder / ENVELOPE, _bytes_of(folder / STATEMENT)
    if not path.exists() and not path.is_symlink():
        problem = f"nobody signed this export: there is no {ENVELOPE} to check with the key"
        return None, [] if key is None else [problem]
    envelope = _bytes_of(path)
    if unchecked_payload(envelope, where=path) != statement:
        return None, [f"{ENVELOPE} signs another statement than {STATEMENT}"]
    if key is None:
        return None, []
    if key.payload_of(envelope, where=path) != statement:
        return None, [f"{ENVELOPE} was not signed by the key that was given ({key.id})"]
    return key.id, []


def _bytes_of(path: Path) -> bytes:
    """What a file of an export holds; `UseError` where it is missing, or a link."""
    _require_file(path)
    return path.read_bytes()


def _require_file(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise UseError(f"{path} is a link or no file, and every export has that file")
