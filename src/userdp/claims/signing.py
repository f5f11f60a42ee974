"""The statement of an export: which files it has, what is claimed of its weights, who signed it.

An in-toto Statement (v1): its subject are the files of weights, by their SHA-256, and its predicate
is the claim, what the weights descend from, and the SHA-256 of every other file. Anybody can write
one: it is a signature that says who did, a DSSE envelope by the library `securesystemslib`. And no
ε is believed because it stands here: whoever checks an export computes it anew from the ledger, and
compares.

Source: in-toto Attestation Framework, Statement v1 (github.com/in-toto/attestation); Dead Simple
Signing Envelope (github.com/secure-systems-lab/dsse).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from userdp.claims.lineage import Lineage
from userdp.claims.words import Claim
from userdp.core import files
from userdp.core.codec import decode, encode, parse, plain
from userdp.core.environment import library
from userdp.core.errors import UseError, in_short

STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:userdp:claim:v3"
"""A name that nobody else uses, and no address: nothing is to be found there."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_WEIGHTS = ".safetensors"
_SAME = 1e-6
"""Relative: two machines' floating-point libraries may differ in an ε's last digits."""
_MAKE = "openssl genpkey -algorithm ed25519 -out key.pem && chmod 600 key.pem"
_MAKE_PUBLIC = "openssl pkey -in key.pem -pubout -out key.pub"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What an export says of itself.

    Args:
        files: SHA-256 of each file by its place; the statement and its signature left out. Those of
            weights are the subject.
        claim: as `told_of` has it.
        lineage: what the weights descend from.
        version: of userdp that exported.
    """

    files: Mapping[str, str]
    claim: Mapping[str, Any]
    lineage: Lineage
    version: str

    def encoded(self) -> bytes:
        """The bytes that are written and signed."""
        predicate = encode(self)
        every = predicate.pop("files")
        predicate["others"] = {one: every[one] for one in every if not one.endswith(_WEIGHTS)}
        values = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": one, "digest": {"sha256": every[one]}}
                for one in every
                if one.endswith(_WEIGHTS)
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
        return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def read(cls, data: bytes, *, where: Path) -> Statement:
        """The inverse of `encoded`; `UseError` if it is none, or has a key twice."""
        values = _object(data, where=where)
        try:
            if (values["_type"], values["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
                raise ValueError(f"it is of type {str(values['predicateType'])[:80]!r}")
            weights = {one["name"]: one["digest"]["sha256"] for one in values["subject"]}
            others = values["predicate"].pop("others")
            stated = {**values["predicate"], "files": {**weights, **others}}
            return decode(cls, stated, what=str(where))
        except (UseError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UseError(
                f"{where} is no statement of a userdp export: {error}",
                hint="ask whoever made the export for it again",
            ) from error


def _object(data: bytes, *, where: Path) -> dict[str, Any]:
    """The JSON object in ``data``; `UseError` for what `userdp.core.codec.parse` refuses.

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
        **plain(asdict(claim.guarantee)),
        "steps": claim.steps,
        "complete": claim.complete,
        "standing": claim.standing,
        "conditions": [asdict(condition) for condition in claim.conditions],
        "parts": [part.id for part in claim.parts],
        "printed": [asdict(one) for one in claim.printed],
        "together": None if both is None else plain(asdict(both)),
    }


def other_claims(told: Mapping[str, Any], claim: Claim) -> list[str]:
    """The names of what a statement says of a claim, and the ledger does not."""
    recomputed = json.loads(json.dumps(told_of(claim)))
    names = sorted({*told, *recomputed})
    return [name for name in names if not _equal(told.get(name), recomputed.get(name))]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    return type(one) is type(other) and bool(one == other)


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


class Signer:
    """Signs with the private key in a PEM file.

    Raises:
        UseError: there is no such file, others may read it, it is encrypted, or of another kind.

    Attributes:
        id: the name of the key: a digest of its public half.
    """

    def __init__(self, path: Path) -> None:
        _refuse_readable_by_others(path)
        load = _library("cryptography.hazmat.primitives.serialization").load_pem_private_key
        try:
            private = _loaded(path, partial(load, password=None), kind="private", make=_MAKE)
        except TypeError as error:
            raise UseError(
                f"the key in {path} is encrypted with a passphrase, which a command that may run "
                "alone cannot ask for",
                hint=f"decrypt it into a file of your own: openssl pkey -in {path} -out key.pem",
            ) from error
        _require_kind(private.public_key(), path)
        self._signer: Any = _library("securesystemslib.signer").CryptoSigner(private)
        self.id = str(self._signer.public_key.keyid)

    def sign(self, payload: bytes) -> bytes:
        """The envelope of a statement, as JSON."""
        envelope = _library("securesystemslib.dsse").Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return (json.dumps(envelope.to_dict(), indent=1) + "\n").encode()


class PublicKey:
    """The public key in a PEM file.

    Raises:
        UseError: there is no such file, or it holds no public key of a kind that is known.

    Attributes:
        id: the name of the key: a digest of it.
    """

    def __init__(self, path: Path) -> None:
        load = _library("cryptography.hazmat.primitives.serialization").load_pem_public_key
        if b"PRIVATE KEY" in _read(path):
            raise UseError(
                f"{path} holds a private key, and a signature is checked with the public one; a "
                "private key belongs on the machine that signs, and nowhere else",
                hint=f"make the public one there: {_MAKE_PUBLIC}",
            )
        public = _loaded(path, load, kind="public", make=_MAKE_PUBLIC)
        _require_kind(public, path)
        self._key: Any = _library("securesystemslib.signer").SSlibKey.from_crypto(public)
        self.id = str(self._key.keyid)

    def payload_of(self, envelope: bytes, *, where: Path) -> bytes | None:
        """What is signed in an envelope; None if this key has not signed it.

        Raises:
            UseError: it is no envelope of a statement.
        """
        values, dsse = _object(envelope, where=where), _library("securesystemslib.dsse")
        if values.get("payloadType") != PAYLOAD_TYPE:
            raise UseError(f"{where} is no envelope of a statement")
        try:
            opened = dsse.Envelope.from_dict(values)
        except Exception as error:  # what its parts raise: the library documents no list of it
            raise UseError(f"{where} is a damaged DSSE envelope: {in_short(error)}") from error
        try:
            opened.verify([self._key], 1)
        except _library("securesystemslib.exceptions").VerificationError:
            return None
        return bytes(opened.payload)


def _library(module: str) -> Any:
    return library(module, extra="sign", what="a signature")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UseError(
            f"cannot read a key from {path}: {error.strerror}", hint=f"make one: {_MAKE}"
        ) from error


def _loaded(path: Path, load: Callable[[bytes], Any], *, kind: str, make: str) -> Any:
    data = _read(path)
    try:
        return load(data)
    except TypeError:  # it is encrypted
        raise
    except Exception as error:  # of a broken key OpenSSL's errors come through, of any class
        raise UseError(
            f"{path} holds no {kind} key in PEM: {in_short(error)}", hint=f"make one: {make}"
        ) from error


def _refuse_readable_by_others(path: Path) -> None:
    if path.exists() and path.stat().st_mode & 0o077:
        raise UseError(
            f"other people on this machine may read the private key {path}: any of them could sign "
            "in your name, so that a signature by it would say nothing",
            hint=f"chmod 600 {path}; if others did read it, make a new key",
        )


def _require_kind(public: Any, path: Path) -> None:
    curve = getattr(getattr(public, "curve", None), "name", None)
    if "Ed25519" not in type(public).__name__ and curve not in ("secp256r1", "secp384r1"):
        raise UseError(
            f"the key in {path} is of another kind than an Ed25519 key, or an ECDSA key on the "
            "curve P-256 or P-384",
            hint=f"make one: {_MAKE}",
        )
