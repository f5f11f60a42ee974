"""``userdp export``: a folder of what may leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.api.export import Exported


def export(
    run: Path,
    /,
    *,
    out: Path,
    base_model: str | None = None,
    license: str | None = None,
    dataset: tuple[str, ...] = (),
    tag: tuple[str, ...] = (),
    sign: Path | None = None,
) -> Answer:
    """Write a folder of all that may leave of a finished private run, and of nothing else.

    In it are the weights, the adapters, the tokenizer, README.md (a model card for the Hugging Face
    hub), the ledger, the plan, the public report, and a statement with the digest of each file.
    `userdp verify DIR` checks it on any machine. A run of which nothing is claimed is refused.

    Args:
        run: folder that `userdp train` wrote, a loop or a trainer of your own, or a sweep's winner.
        out: the new folder.
        base_model: name of the base model on the hub; by default as the run noted it.
        license: of the model, as the hub spells it: apache-2.0.
        dataset: name on the hub of public training data; may be repeated.
        tag: for the card, beside its own; may be repeated.
        sign: private key (PEM; Ed25519 or ECDSA) that only you may read: signs the statement.
    """
    from userdp.api.export import export as api

    exported = api(
        run, out=out, base_model=base_model, license=license, dataset=dataset, tag=tag, sign=sign
    )
    return Answer(values=exported.to_dict(), parts=_parts(exported))


def _parts(exported: Exported) -> Iterator[Table | str]:
    yield from claim_parts(exported.claim)
    yield f"Export: {exported.path}, {len(exported.files)} files."
    if exported.signed_by is None:
        yield "It is not signed, so that nobody vouches for it: --sign KEY."
    else:
        yield f"Signed by the key {exported.signed_by}."
    yield from exported.notes
    yield f"Check it on any machine: userdp verify {exported.path}"
