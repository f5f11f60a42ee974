"""Real runs to export, made once; and keys to sign with."""

from __future__ import annotations

from pathlib import Path

from tests.claims.lives import PLAN, begin
from tests.training.toy import toy_store

MARK = "quetzalcoatl"
"""A word that somebody put somewhere, and that must not leave."""


def make_runs(folder: Path) -> Path:
    """A store of its own for each of two runs: ``run``, and ``adapted`` with adapters."""
    for name, config in (("run", {}), ("adapted", {"lora_rank": 2})):
        begin(toy_store(folder / f"{name}-people"), folder / name, PLAN, **config)
    return folder


def make_key(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """A private key that only its owner may read, and its public half, both in PEM."""
    from cryptography.hazmat.primitives import serialization as pem
    from securesystemslib.signer import CryptoSigner

    private = CryptoSigner.generate_ed25519().private_bytes
    public = pem.load_pem_private_key(private, None).public_key()
    places = folder / f"{name}.pem", folder / f"{name}.pub"
    places[0].write_bytes(private)
    places[0].chmod(0o600)
    places[1].write_bytes(
        public.public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    )
    return places
