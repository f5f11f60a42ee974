"""Signatures: the envelope is DSSE's, whoever checks it, and a bad key is refused kindly."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.exports import make_key
from userdp.claims.signing import PublicKey, Signer
from userdp.core.errors import UseError

pytest.importorskip("securesystemslib", reason="the extra sign is not installed")
WHERE = Path("statement.dsse.json")


@pytest.mark.parametrize("kind", ["ed25519", "P-256", "P-384"])
def test_a_signature_is_checked_by_the_public_key_of_its_signer_only(tmp_path, kind):
    private, public = make_key(tmp_path, kind=kind)
    _, other = make_key(tmp_path, "other", kind=kind)
    signer = Signer(private)
    envelope = signer.sign(b"{}")
    assert PublicKey(public).payload_of(envelope, where=WHERE) == b"{}"
    assert PublicKey(public).id == signer.id
    assert PublicKey(other).payload_of(envelope, where=WHERE) is None


def test_the_signature_is_of_the_encoding_that_dsse_prescribes(tmp_path):
    """Checked by hand: "DSSEv1", and the lengths and bytes of type and payload."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    private, public = make_key(tmp_path)
    values = json.loads(Signer(private).sign(b'{"a": 1}'))
    kind = values["payloadType"].encode()
    payload = base64.b64decode(values["payload"])
    encoded = b" ".join(
        [b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload]
    )
    (signature,) = values["signatures"]
    load_pem_public_key(public.read_bytes()).verify(base64.b64decode(signature["sig"]), encoded)


def test_a_payload_that_was_changed_is_not_signed(tmp_path):
    private, public = make_key(tmp_path)
    values = json.loads(Signer(private).sign(b"{}"))
    values["payload"] = base64.b64encode(b'{"a": 1}').decode()
    envelope = json.dumps(values).encode()
    assert PublicKey(public).payload_of(envelope, where=WHERE) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601, 0o610])
def test_a_private_key_that_others_may_read_is_refused(tmp_path, mode):
    private, _ = make_key(tmp_path)
    private.chmod(mode)
    with pytest.raises(UseError, match="other people") as refused:
        Signer(private)
    assert "chmod 600" in (refused.value.hint or "")


@pytest.mark.parametrize("kind", ["RSA", "P-521"])
def test_a_key_of_another_kind_is_refused(tmp_path, kind):
    private, public = make_key(tmp_path, kind=kind)
    with pytest.raises(UseError, match="another kind"):
        Signer(private)
    with pytest.raises(UseError, match="another kind"):
        PublicKey(public)


def test_what_is_no_key_is_refused(tmp_path):
    private, public = make_key(tmp_path)
    with pytest.raises(UseError, match="cannot read a key"):
        Signer(tmp_path / "nothing.pem")
    with pytest.raises(UseError, match="holds a private key"):
        PublicKey(private)
    public.chmod(0o600)
    with pytest.raises(UseError, match="no private key"):
        Signer(public)
    public.write_text("hello")
    with pytest.raises(UseError, match="no public key"):
        PublicKey(public)


def test_an_encrypted_key_is_refused_with_a_way_out(tmp_path):
    from cryptography.hazmat.primitives import serialization as pem

    private, _ = make_key(tmp_path)
    loaded = pem.load_pem_private_key(private.read_bytes(), password=None)
    private.write_bytes(
        loaded.private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(UseError, match="passphrase"):
        Signer(private)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"payload": "", "payloadType": "x", "signatures": []}',
     b'{"payload": 1, "payloadType": "application/vnd.in-toto+json", "signatures": []}',
     b'{"payload": "", "payloadType": "application/vnd.in-toto+json", "signatures": [{}]}'],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(tmp_path, text):
    _, public = make_key(tmp_path)
    with pytest.raises(UseError):
        PublicKey(public).payload_of(text, where=WHERE)
