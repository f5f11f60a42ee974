"""What somebody hands on: an exported folder, its statement and signature, keys."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import chain
from benchmarks.faults.hostile.targets.prices import remember_prices

_STATEMENT, _ENVELOPE = "statement.json", "statement.dsse.json"


class Export(Target):
    """An export as it came: whatever was changed, it is noticed."""

    name = "export"
    what = "an exported folder, its statement, signature and key"
    mended: ClassVar[bool] = False

    def make(self, folder: Path) -> None:
        remember_prices()
        made = folder.with_name("making")
        try:
            _export(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def read(self, folder: Path) -> None:
        from userdp.claims.exported import is_exported, verify_export

        is_exported(folder)
        checked = verify_export(folder, key=_beside(folder))
        if not self.mended:
            assert checked.problems or _same(folder, folder.with_name("sound")), (
                "a changed export was verified"
            )
            assert checked.problems or checked.signed_by, "nobody signed what was verified"
        verify_export(folder)


class MendedExport(Export):
    """An export whose digests and ledger were made anew; nobody's signature fits."""

    name = "export-mended"
    what = "an exported folder, its digests made anew"
    mended = True

    def mend(self, folder: Path, file: str) -> None:
        if file == "ledger.jsonl":
            chain(folder / file)
        path = folder / _STATEMENT
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            values: dict[str, Any] = json.loads(path.read_bytes())
            told = values["predicate"]["files"]
            digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
            if file in told:
                told[file] = {"sha256": digest}
            for one in values["subject"]:
                if one["name"] == file:
                    one["digest"] = {"sha256": digest}
            if file != _STATEMENT:
                path.write_text(json.dumps(values))
        envelope = {
            "payload": base64.b64encode(path.read_bytes()).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [],
        }
        if file != _ENVELOPE:
            (folder / _ENVELOPE).write_text(json.dumps(envelope))


class PrivateKey(Target):
    """The key that an export is signed with."""

    name = "key"
    what = "private keys in PEM"

    def make(self, folder: Path) -> None:
        (folder / "key.pem").write_bytes(_keys()[0])

    def mend(self, folder: Path, file: str) -> None:
        (folder / file).chmod(0o600)

    def read(self, folder: Path) -> None:
        from userdp.claims.signing import Signer

        (folder / "key.pem").chmod(0o600)
        Signer(folder / "key.pem").sign(b"{}")


TARGETS: tuple[type[Target], ...] = (Export, MendedExport, PrivateKey)


def _beside(folder: Path) -> Path:
    """The public key, which no export holds."""
    path = folder.with_name("key.pub")
    if not path.exists():
        path.write_bytes(_keys()[1])
    return path


def _same(folder: Path, sound: Path) -> bool:
    """Whether an export is what it was made as; the signature may be written in other words."""
    paths = [path for path in sound.rglob("*") if path.is_file()]
    if not paths:  # the world itself is tried
        return True
    return all(
        (folder / path.relative_to(sound)).read_bytes() == path.read_bytes()
        for path in paths
        if path.name != _ENVELOPE
    )


def _keys() -> tuple[bytes, bytes]:
    """A private key and its public half, in PEM: always the same ones."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    return (
        private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()),
        private.public_key().public_bytes(
            form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def _export(work: Path, folder: Path) -> None:
    """Train a run of a few steps, and export it into ``folder``, signed."""
    from tests.claims.lives import PLAN, begin
    from tests.training.toy import cycles, toy_store
    from userdp.commands.export import export

    work.mkdir()
    begin(toy_store(work / "people", cycles(12)), work / "run", PLAN)
    private, _ = _keys()
    (work / "key.pem").write_bytes(private)
    (work / "key.pem").chmod(0o600)
    folder.rmdir()
    export(work / "run", out=folder, sign=work / "key.pem")
