"""The statement of an export: the digest of every file, what is claimed, and who signed both.

An in-toto Statement (v1): its subject is every file of the export by its SHA-256, its predicate is
the claim. Anybody can write one; a signature says who did. That is a DSSE envelope by the library
`securesystemslib`, which any other DSSE library checks too. No ε is believed because it stands
here: whoever checks an export computes it anew from the ledger, and compares.

Source: in-toto Attestation Framework, Statement v1 (github.com/in-toto/attestation); Dead Simple
Signing Envelope (github.com/secure-systems-lab/dsse).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from userdp.claims.claim_sentences import Claim
from userdp.claims.released_files import STATEMENT
from userdp.core import files
from userdp.core.codec import parse, plain
from userdp.core.environment import library
from userdp.core.errors import UseError, in_short
from userdp.core.vocabulary import Guarantee, delta_up, round_up
from userdp.version import __version__

ENVELOPE = "statement.dsse.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:userdp:claim:v4"
"""A name that nobody else uses, and no address: nothing is to be found there."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def statement_of(folder: Path, claim: Claim) -> dict[str, Any]:
    """What an export says of its files and its claim; the statement and its signature left out."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": place, "digest": {"sha256": digest}}
            for place, digest in _digests(folder).items()
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"claim": _stated(claim), "version": __version__},
    }


def encoded(statement: Mapping[str, Any]) -> bytes:
    """The bytes that are written and signed."""
    return (json.dumps(statement, indent=1, sort_keys=True) + "\n").encode()


def statement_differs(folder: Path, claim: Claim) -> Iterator[str]:
    """What the statement in a folder says of files and claim, and is not so; sentences.

    Raises:
        UseError: there is no statement, or it is damaged.
    """
    stated, known = files.read_json(folder / STATEMENT, what="an export"), _digests(folder)
    try:
        digests = {one["name"]: one["digest"]["sha256"] for one in stated["subject"]}
        told = dict(stated["predicate"]["claim"])
    except (KeyError, TypeError, ValueError) as error:
        raise UseError(
            f"{folder / STATEMENT} is no statement of a userdp export: {error!r}",
            hint="ask whoever made the export for it again",
        ) from error
    for place in sorted(known.keys() | digests.keys()):
        if place not in known:
            yield f"{place} is not there, and {STATEMENT} speaks of it"
        elif place not in digests:
            yield f"{place} is there, and {STATEMENT} does not speak of it"
        elif known[place] != digests[place]:
            yield f"{place} is not the file that {STATEMENT} speaks of"
    computed = _stated(claim)
    for name in sorted(told.keys() | computed.keys()):
        if told.get(name) != computed.get(name):
            yield (
                f"{STATEMENT} claims another {name} than the ledger gives: "
                f"{str(told.get(name))[:80]}"
            )


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 by place of every file of an export.

    Left out are the statement, its signature, and what the hub's own client puts into a folder that
    it downloads: no model is read from that.
    """
    places = {one.relative_to(folder).as_posix(): one for one in folder.rglob("*")}
    return {
        # A link to a folder, or to nothing, has no digest: no statement speaks of one.
        place: files.digest_of_file(path) if path.is_file() else ""
        for place, path in sorted(places.items())
        if (path.is_file() or path.is_symlink())
        and place not in (STATEMENT, ENVELOPE, ".gitattributes")
        and not place.startswith(".cache/huggingface/")
    }


def _stated(claim: Claim) -> dict[str, Any]:
    """A claim as a statement has it: numbers as they are printed, which every machine computes
    alike, and all that they rest on; no sentence, since a later version may word it better.
    """
    return {
        **_printed(claim.guarantee),
        "steps": claim.steps,
        "complete": claim.complete,
        "standing": claim.standing,
        "conditions": [asdict(condition) for condition in claim.conditions],
        "parts": [part.id for part in claim.parts],
        "printed": {one.id: float(round_up(one.pure_epsilon)) for one in claim.printed},
        "together": claim.together and _printed(claim.together),
    }


def _printed(told: Guarantee) -> dict[str, Any]:
    epsilon, delta = float(round_up(told.epsilon)), float(delta_up(told.delta))
    return dict(plain(replace(told, epsilon=epsilon, delta=delta)))


# Signatures. Keys are in PEM, of any kind that the library signs with, such as Ed25519.


def private_key(path: Path) -> Any:
    """securesystemslib's signer by a private key that only its owner may read."""
    load = _library("cryptography.hazmat.primitives.serialization").load_pem_private_key
    signer = _library("securesystemslib.signer").CryptoSigner
    make = "openssl genpkey -algorithm ed25519 -out key.pem && chmod 600 key.pem"
    key = _key(path, lambda pem: signer(load(pem, password=None)), make=make)
    if path.stat().st_mode & 0o077:
        raise UseError(
            f"other people on this machine may read the private key {path}: any of them could sign "
            "in your name, so that a signature by it would say nothing",
            hint=f"chmod 600 {path}; if others did read it, make a new key",
        )
    return key


def public_key(path: Path) -> Any:
    """securesystemslib's key that checks what the private half has signed."""
    load = _library("cryptography.hazmat.primitives.serialization").load_pem_public_key
    of = _library("securesystemslib.signer").SSlibKey.from_crypto
    return _key(
        path, lambda pem: of(load(pem)), make="openssl pkey -in key.pem -pubout -out key.pub"
    )


def _key(path: Path, load: Callable[[bytes], Any], *, make: str) -> Any:
    try:
        return load(path.read_bytes())
    except Exception as error:  # of a broken key OpenSSL's errors come through, of any class
        raise UseError(
            f"the key in {path} cannot be used: {in_short(error)}", hint=f"make one: {make}"
        ) from error


def envelope_of(payload: bytes, key: Any) -> bytes:
    """The DSSE envelope of a statement, as JSON, signed by a `private_key`."""
    envelope = _library("securesystemslib.dsse").Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(key)
    return (json.dumps(envelope.to_dict(), indent=1) + "\n").encode()


def why_unsigned(folder: Path, key: Any) -> str | None:
    """Why an export does not count as signed by a `public_key`; None where it does."""
    path, dsse = folder / ENVELOPE, _library("securesystemslib.dsse")
    if not path.exists():
        return f"nobody signed this export: there is no {ENVELOPE} to check with the key"
    try:
        envelope = dsse.Envelope.from_dict(parse(path.read_bytes()))
        envelope.verify([key], 1)
    except _library("securesystemslib.exceptions").VerificationError:
        return f"{ENVELOPE} was not signed by the key that was given ({key.keyid})"
    except Exception as error:  # what its parts raise: the library documents no list of it
        return f"{ENVELOPE} is damaged: {in_short(error)}"
    signed = (PAYLOAD_TYPE, (folder / STATEMENT).read_bytes())
    if (envelope.payload_type, envelope.payload) != signed:
        return f"{ENVELOPE} signs another statement than {STATEMENT}"
    return None


_library = partial(library, extra="sign", what="a signature")
