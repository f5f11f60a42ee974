"""The statement of an export: which files it has, and what is claimed of its weights.

An in-toto Statement (v1): its subject are the files of weights, by their SHA-256, and its predicate
is the claim, what the weights descend from, and the SHA-256 of every other file. Anybody can write
one: it is a signature that says who did (`userdp.claims.signing`). And no ε is believed because it
stands here: whoever checks an export computes it anew from the ledger, and compares.

Source: in-toto Attestation Framework, Statement v1 (github.com/in-toto/attestation).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from userdp import files
from userdp.claims.claims import Claim
from userdp.claims.lineage import Lineage
from userdp.errors import UseError
from userdp.strict_json import parse

STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:userdp:claim:v1"
"""A name that nobody else uses, and no address: nothing is to be found there."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_SAME = 1e-6
"""Relative: two machines' floating-point libraries may differ in an ε's last digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What an export says of itself.

    Args:
        weights: SHA-256 of each file of weights, by its place in the folder.
        others: the same of every other file; the statement and its signature left out.
        tensors: digest of the weights whatever files they lie in (`userdp.claims.weights`).
        base: digest of the base model's weights, if the run noted it.
        claim: as `told_of` has it.
        lineage: what the weights descend from, as plain values.
        version: of userdp that exported.
    """

    weights: Mapping[str, str]
    others: Mapping[str, str]
    tensors: str
    base: str | None
    claim: Mapping[str, Any]
    lineage: Mapping[str, Any]
    version: str

    @property
    def files(self) -> dict[str, str]:
        """Every file by its place."""
        return {**self.weights, **self.others}

    def encoded(self) -> bytes:
        """The bytes that are written and signed."""
        predicate = {
            "claim": dict(self.claim),
            "lineage": dict(self.lineage),
            "tensors": {"sha256": self.tensors},
            "baseModel": None if self.base is None else {"tensors": {"sha256": self.base}},
            "files": {place: {"sha256": digest} for place, digest in self.others.items()},
            "userdp": self.version,
        }
        values = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": place, "digest": {"sha256": digest}}
                for place, digest in self.weights.items()
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
        return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()


def read_statement(data: bytes, *, where: Path) -> Statement:
    """The inverse of `Statement.encoded`.

    Raises:
        UseError: it is none, has a key twice, or names a file outside of its folder.
    """
    values = strict_json(data, where=where)
    try:
        if (values["_type"], values["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise ValueError(f"it is of type {str(values['predicateType'])[:80]!r}")
        predicate = values["predicate"]
        weights = {_place(one["name"]): _sha256(one) for one in values["subject"]}
        others = {
            _place(name): _sha256({"digest": one}) for name, one in predicate["files"].items()
        }
        if len(weights) != len(values["subject"]) or weights.keys() & others.keys():
            raise ValueError("it names a file twice")
        base = predicate["baseModel"]
        return Statement(
            weights=weights,
            others=others,
            tensors=_sha256({"digest": predicate["tensors"]}),
            base=None if base is None else _sha256({"digest": base["tensors"]}),
            claim=dict(predicate["claim"]),
            lineage=dict(predicate["lineage"]),
            version=str(predicate["userdp"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UseError(
            f"{where} is no statement of a userdp export: {error}",
            hint="ask whoever made the export for it again",
        ) from error


def strict_json(data: bytes, *, where: Path) -> dict[str, Any]:
    """The JSON object in ``data``; `UseError` for what `userdp.strict_json.parse` refuses.

    Readers disagree about which of two equal keys counts, so that one signature would cover two
    meanings.
    """

    try:
        values = parse(data)
    except ValueError as error:
        raise UseError(f"{where} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UseError(f"{where} holds no JSON object")
    return values


def told_of(claim: Claim) -> dict[str, Any]:
    """A claim as the statement has it: numbers, and all that they rest on, but no sentence.

    ``printed`` is what stands beside the model in the export, and ``together`` what both cost.
    """
    both = claim.together
    return {
        **files.finite(asdict(claim.guarantee)),
        "steps": claim.steps,
        "complete": claim.complete,
        "standing": claim.standing,
        "conditions": [asdict(condition) for condition in claim.conditions],
        "parts": [part.id for part in claim.parts],
        "printed": [asdict(one) for one in claim.printed],
        "together": None if both is None else files.finite(asdict(both)),
    }


def differences(told: Mapping[str, Any], claim: Claim) -> list[str]:
    """The names of what a statement says of a claim, and the ledger does not."""
    recomputed = json.loads(json.dumps(told_of(claim)))
    names = sorted({*told, *recomputed})
    return [name for name in names if not _equal(told.get(name), recomputed.get(name))]


def same_lineage(told: Mapping[str, Any], lineage: Lineage) -> bool:
    """Whether a statement names what the ledger says that the weights descend from."""
    return bool(told == json.loads(json.dumps(lineage.plain)))


def digests_of(folder: Path) -> tuple[dict[str, str], list[str]]:
    """SHA-256 of every file in a folder by its place, and what there is no file.

    No link is followed: what lies behind one is not in the folder. The statement and its signature
    are left out.
    """
    digests: dict[str, str] = {}
    odd: list[str] = []
    for parent, folders, names in os.walk(folder):
        for name in sorted([*folders, *names]):
            path = Path(parent) / name
            place = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                odd.append(place)
            elif path.is_file() and place not in (STATEMENT, ENVELOPE):
                digests[place] = files.digest_of_file(path)
    return dict(sorted(digests.items())), sorted(odd)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    return type(one) is type(other) and bool(one == other)


def _place(name: Any) -> str:
    place = PurePosixPath(name)
    if not name or place.is_absolute() or ".." in place.parts or place.as_posix() != name:
        raise ValueError(f"{str(name)[:80]!r} is no place in a folder")
    return str(name)


def _sha256(values: Mapping[str, Any]) -> str:
    digest = values["digest"]["sha256"]
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"{str(digest)[:80]!r} is no SHA-256")
    return digest
