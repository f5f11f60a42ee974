"""Checks an exported folder, on a machine that has neither the data nor the run.

Everything is held against everything else: each file against the statement, the statement against
its signature, every file of the model, the plan and the lineage against the ledger, and the claim
in the statement against the one that is computed anew from the ledger, by two accountants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims.attestation import (
    ENVELOPE,
    STATEMENT,
    Statement,
    differences,
    digests_of,
    read_statement,
    same_lineage,
)
from userdp.claims.bound import bound_in, content_digest, exported_places, place_in_run
from userdp.claims.claims import Claim, claim_of
from userdp.claims.inheritance import run_lineage
from userdp.claims.lineage import Lineage
from userdp.claims.second import second_opinion
from userdp.claims.signing import PublicKey, unchecked_payload
from userdp.claims.verify import descriptions_differ, plan_differs, released_digests
from userdp.claims.weights import LINEAGE, digest_of
from userdp.errors import UseError
from userdp.ledger.folder import RunFolder
from userdp.ledger.journal import read_entries
from userdp.vocabulary import Guarantee

_OF_EXPORT = ("README.md", "report.html", "ledger.jsonl", "plan.json")
"""What an export holds beside the model: made from the ledger, and bound by the statement alone."""
_OF_HUB = re.compile(r"\.gitattributes|\.cache/huggingface/.*", re.DOTALL)
"""What the hub's own client puts into a folder that it downloads. No model is read from these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What was found in an exported folder.

    Args:
        problems: one sentence each; empty: all is as it was exported.
        claim: recomputed from the ledger; None where it cannot be.
        second: the same claim by another accountant; None where only one knows its price.
        signed_by: the id of the key that was given, if it signed the statement.
        notes: what is well, and should be known.
    """

    problems: tuple[str, ...]
    claim: Claim | None
    second: Guarantee | None = None
    signed_by: str | None = None
    notes: tuple[str, ...] = ()


def is_exported(path: Path) -> bool:
    """Whether a folder was exported, or says that it was signed."""
    places = (path / STATEMENT, path / ENVELOPE)
    return any(place.exists() or place.is_symlink() for place in places)


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
        statement = _statement(folder)
        signed_by, unsigned = _signature(folder, public)
        ledger = _Ledger(folder)
    except UseError as error:
        return Checked(problems=(error.message,), claim=None)
    problems = [*unsigned]
    digests, odd = digests_of(folder)
    told = statement.files
    problems += [f"{place} is a link or no file, and an export has none" for place in odd]
    of_hub = [place for place in digests if place not in told and _OF_HUB.fullmatch(place)]
    for place in sorted(digests.keys() | told.keys()):
        if place not in digests:
            problems.append(f"{place} is not there, and {STATEMENT} speaks of it")
        elif place not in told and place not in of_hub:
            problems.append(f"{place} is there, and {STATEMENT} does not speak of it")
        elif place in told and digests[place] != told[place]:
            problems.append(f"{place} is not the file that {STATEMENT} speaks of")
    problems += ledger.problems(statement)
    problems += ledger.unreleased({one: digests[one] for one in digests if one not in of_hub})
    notes = [_vouching(signed_by, (folder / ENVELOPE).is_file())]
    if of_hub:
        notes.append(
            f"{len(of_hub)} file(s) of the hub's client ({of_hub[0]}) are in no statement, and no "
            "model is read from them."
        )
    return Checked(
        problems=tuple(problems),
        claim=ledger.claim,
        second=second_opinion(ledger.claim),
        signed_by=signed_by,
        notes=tuple(notes),
    )


class _Ledger:
    """What the ledger in an exported folder says."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        _require_file(self.folder.ledger)
        self.entries: list[dict[str, Any]] = read_entries(self.folder.ledger)
        self.claim: Claim = claim_of(self.folder.ledger, self.entries)
        self.lineage: Lineage = run_lineage(self.folder.ledger, self.entries)
        self.digests = released_digests(self.entries)
        self.bound = bound_in(self.entries) or {}

    def problems(self, statement: Statement) -> Iterator[str]:
        """What in the folder, or in the statement, is not what the ledger says."""
        for name in differences(statement.claim, self.claim):
            yield (
                f"{STATEMENT} claims another {name} than the ledger gives: "
                f"{str(statement.claim.get(name))[:80]}"
            )
        if not same_lineage(statement.lineage, self.lineage):
            yield f"{STATEMENT} names another lineage than the ledger does"
        if statement.tensors != self.digests.get("weights"):
            yield f"{STATEMENT} is of other weights than those that the ledger's run released"
        base = self.entries[0].get("facts", {}).get("base_model", {}).get("weights")
        if statement.base != base:
            yield f"{STATEMENT} names another base model than the ledger does"
        yield from plan_differs(self.folder, self.entries)
        if self.digests.get("weights") != self.digests.get("adapter"):  # else those are alone
            yield from self._weights(self.folder.path, "weights")
        if self.folder.adapter.is_dir() and not self.folder.adapter.is_symlink():
            yield from self._weights(self.folder.adapter, "adapter")

    def unreleased(self, digests: Mapping[str, str]) -> Iterator[str]:
        """Files of the model that are not those that the ledger's run released.

        Whoever changed one of them may have written the statement anew, but not the ledger.

        Args:
            digests: SHA-256 of the files that are here, by place.
        """
        for place in exported_places(self.bound):
            if place not in digests:
                yield f"{place}, which the ledger's run released, is not there"
        for place, digest in digests.items():
            if place in _OF_EXPORT or place.rpartition("/")[2] == LINEAGE:
                continue
            weights, bound = place.endswith(".safetensors"), self.bound.get(place_in_run(place))
            if weights and not self.bound:
                continue  # nothing but the digest of all weights together was noted: see `_weights`
            if bound is None:
                yield f"{place} is no file that the ledger's run released"
            elif bound != (self._named(place) if weights else digest):
                yield f"{place} is not the file that the ledger's run released"

    def _named(self, place: str) -> str:
        try:
            return content_digest(self.folder.path / place)
        except UseError as error:
            return error.message  # equal to no digest

    def _weights(self, place: Path, name: str) -> Iterator[str]:
        try:
            seen = digest_of(place)
        except UseError as error:
            yield error.message
            return
        if seen != self.digests.get(name):
            yield f"the weights in {place} are not those that the ledger's run released"
        yield from descriptions_differ(place, self.lineage)


def _statement(folder: Path) -> Statement:
    path = folder / STATEMENT
    if not path.exists() and not path.is_symlink():
        raise UseError(
            f"{ENVELOPE} is there, and the {STATEMENT} that it signs is not: part of the export is "
            "missing"
        )
    _require_file(path)
    return read_statement(path.read_bytes(), where=path)


def _signature(folder: Path, key: PublicKey | None) -> tuple[str | None, list[str]]:
    """The id of the key, if it signed the statement; and what is wrong."""
    path, statement = folder / ENVELOPE, (folder / STATEMENT).read_bytes()
    if not path.exists() and not path.is_symlink():
        problem = f"nobody signed this export: there is no {ENVELOPE} to check with the key"
        return None, [] if key is None else [problem]
    _require_file(path)
    envelope = path.read_bytes()
    payload = unchecked_payload(envelope, where=path)
    if payload != statement:
        return None, [f"{ENVELOPE} signs another statement than {STATEMENT}"]
    if key is None:
        return None, []
    if key.payload_of(envelope, where=path) != statement:
        return None, [f"{ENVELOPE} was not signed by the key that was given ({key.id})"]
    return key.id, []


def _require_file(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise UseError(f"{path} is a link or no file, and an export has none")


def _vouching(signed_by: str | None, signed: bool) -> str:
    if signed_by is not None:
        return f"Signed by the key {signed_by}: its holder vouches for every file, and the claim."
    nobody = (
        "Nobody vouches for it: whoever can write these files can write all of them anew, so that "
        "they agree."
    )
    if signed:
        return f"{nobody} It is signed: check by whom with --key."
    return f"{nobody} It is not signed."
