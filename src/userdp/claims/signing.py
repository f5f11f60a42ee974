"""Signatures of a statement: DSSE envelopes, by the library `securesystemslib`.

Source: Dead Simple Signing Envelope (github.com/secure-systems-lab/dsse).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from userdp.claims.attestation import PAYLOAD_TYPE, strict_json
from userdp.errors import UseError, in_short
from userdp.extras import library

_KINDS = "an Ed25519 key, or an ECDSA key on the curve P-256 or P-384"
_MAKE = "openssl genpkey -algorithm ed25519 -out key.pem && chmod 600 key.pem"
_MAKE_PUBLIC = "openssl pkey -in key.pem -pubout -out key.pub"


class Signer:
    """Signs with the private key in a PEM file.

    Raises:
        UseError: there is no such file, others may read it, it is encrypted, or of another kind.
    """

    def __init__(self, path: Path) -> None:
        _refuse_readable_by_others(path)
        serialization = _library("cryptography.hazmat.primitives.serialization")
        try:
            private = serialization.load_pem_private_key(_read(path), password=None)
            public = private.public_key()
        except UseError:
            raise
        except TypeError as error:
            raise UseError(
                f"the key in {path} is encrypted with a passphrase, which a command that may run "
                "alone cannot ask for",
                hint=f"decrypt it into a file of your own: openssl pkey -in {path} -out key.pem",
            ) from error
        except Exception as error:  # of a broken key OpenSSL's errors come through, of any class
            raise UseError(
                f"{path} holds no private key in PEM: {in_short(error)}", hint=f"make one: {_MAKE}"
            ) from error
        _require_kind(public, path)
        signers = _library("securesystemslib.signer")
        self._signer: Any = signers.CryptoSigner(private)

    @property
    def id(self) -> str:
        """The name of the key: a digest of its public half."""
        return str(self._signer.public_key.keyid)

    def sign(self, payload: bytes) -> bytes:
        """The envelope of a statement, as JSON."""
        dsse = _library("securesystemslib.dsse")
        envelope = dsse.Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return (json.dumps(envelope.to_dict(), indent=1) + "\n").encode()


class PublicKey:
    """The public key in a PEM file.

    Raises:
        UseError: there is no such file, or it holds no public key of a kind that is known.
    """

    def __init__(self, path: Path) -> None:
        serialization = _library("cryptography.hazmat.primitives.serialization")
        data = _read(path)
        if b"PRIVATE KEY" in data:
            raise UseError(
                f"{path} holds a private key, and a signature is checked with the public one; a "
                "private key belongs on the machine that signs, and nowhere else",
                hint=f"make the public one there: {_MAKE_PUBLIC}",
            )
        try:
            public = serialization.load_pem_public_key(data)
        except Exception as error:  # of a broken key OpenSSL's errors come through, of any class
            raise UseError(
                f"{path} holds no public key in PEM: {in_short(error)}",
                hint=f"make one: {_MAKE_PUBLIC}",
            ) from error
        _require_kind(public, path)
        self._key: Any = _library("securesystemslib.signer").SSlibKey.from_crypto(public)

    @property
    def id(self) -> str:
        """The name of the key: a digest of it."""
        return str(self._key.keyid)

    def payload_of(self, envelope: bytes, *, where: Path) -> bytes | None:
        """What is signed in an envelope; None if this key has not signed it.

        Raises:
            UseError: it is no envelope of a statement.
        """
        opened = _opened(envelope, where=where)
        errors = _library("securesystemslib.exceptions")
        try:
            opened.verify([self._key], 1)
        except errors.VerificationError:
            return None
        return bytes(opened.payload)


def unchecked_payload(envelope: bytes, *, where: Path) -> bytes:
    """What an envelope says that somebody signed; nobody has checked that. Needs no library.

    Raises:
        UseError: it is no envelope of a statement.
    """
    values = _envelope(envelope, where=where)
    try:
        return base64.b64decode(values["payload"], validate=True)
    except (TypeError, ValueError) as error:
        raise UseError(f"{where} is a damaged DSSE envelope: {in_short(error)}") from error


def _opened(envelope: bytes, *, where: Path) -> Any:
    values = _envelope(envelope, where=where)
    try:
        return _library("securesystemslib.dsse").Envelope.from_dict(values)
    except UseError:
        raise
    except Exception as error:  # what its parts raise: the library documents no list of it
        raise UseError(f"{where} is a damaged DSSE envelope: {in_short(error)}") from error


def _envelope(envelope: bytes, *, where: Path) -> dict[str, Any]:
    values = strict_json(envelope, where=where)
    if set(values) != {"payload", "payloadType", "signatures"}:
        raise UseError(f"{where} is no DSSE envelope: it holds {sorted(values)!r:.80}")
    if values["payloadType"] != PAYLOAD_TYPE:
        raise UseError(f"{where} is an envelope of something else: {values['payloadType']!r:.80}")
    return values


def _library(module: str) -> Any:
    return library(module, extra="sign", what="a signature")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UseError(
            f"cannot read a key from {path}: {error.strerror}", hint=f"make one: {_MAKE}"
        ) from error


def _refuse_readable_by_others(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # `_read` says why
    if mode & 0o077:
        raise UseError(
            f"other people on this machine may read the private key {path}: any of them could sign "
            "in your name, so that a signature by it would say nothing",
            hint=f"chmod 600 {path}; if others did read it, make a new key",
        )


def _require_kind(public: Any, path: Path) -> None:
    kind = type(public).__name__
    curve = getattr(getattr(public, "curve", None), "name", None)
    if "Ed25519" in kind or curve in ("secp256r1", "secp384r1"):
        return
    raise UseError(f"the key in {path} is of another kind than {_KINDS}", hint=f"make one: {_MAKE}")
