"""How a data set is spread over silos, each with a store.

Each silo's store is prepared like any other (`userdp.data.pipeline`). Coins of a record's own user
decide its silo, so that nobody's presence moves anybody else's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count, require_positive
from userdp.data.pipeline import prepare_store
from userdp.data.records import Record
from userdp.data.sources.source import Source
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_ids import user_hash
from userdp.sampling.coins import Indices

HELD_OUT = 0.2
"""Of each subject's items, for the operators' tests: 80/20, as in Marathe et al. 2023."""


def places(
    user: bytes, records: int, *, silos: int, most: int, seed: int = 0, alpha: float | None = None
) -> Indices:
    """The silos in which a user's records lie: int64 (records,), each below ``silos``.

    Guarantee (invariant 11): a function of the user's id, the number of the record among the
    user's, and public constants. At most ``most`` silos hold anything of the user.

    Args:
        user: the user's id.
        records: number of the user's records.
        silos: n.
        most: s, at most n.
        seed: public.
        alpha: None: each of the user's s silos is equally likely. Else the silo ⌊s x⌋ with x of
            density α x^(α-1) on [0, 1], in an order of the silos of the user's own: the larger
            α, the more of a user's records lie in one silo, and all silos stay alike.

    Source: Marathe et al. 2023, Sections 5.1 and 5.2. The order for each subject is our reading:
    with it the largest group of a mini-batch grows with α as published, with one order for all it
    does not.
    """
    draw = np.random.default_rng([seed, int.from_bytes(user_hash(user))])
    order = draw.permutation(require_count("silos", silos))[:most]
    if alpha is None:
        ranks = draw.integers(most, size=records)
    else:
        require_positive("alpha", alpha)
        ranks = np.minimum((most * draw.power(alpha, records)).astype(np.int64), most - 1)
    return np.asarray(order[ranks], dtype=np.int64)


def spread(
    records: Iterable[Record], *, silos: int, most: int, seed: int = 0, alpha: float | None = None
) -> list[list[Record]]:
    """The records of each silo, every user's as `places` says; a user's keep their order.

    Raises:
        UseError: a silo has none: it could only add noise. A silo without subjects is refused
            here, before a federation runs: a refusal would then tell the server who is there.
    """
    of_users: dict[bytes, list[Record]] = {}
    for record in records:
        of_users.setdefault(record.user, []).append(record)
    parts: list[list[Record]] = [[] for _ in range(silos)]
    for user, own in of_users.items():
        where = places(user, len(own), silos=silos, most=most, seed=seed, alpha=alpha)
        for silo, record in zip(where.tolist(), own, strict=True):
            parts[silo].append(record)
    for silo, part in enumerate(parts):
        if not part:
            raise UseError(
                f"silo {silo} has no subjects: it could only add noise",
                hint="spread the data over fewer silos",
            )
    return parts


def make_store(
    records: Sequence[Record], out: Path, *, tokenizer: StoreTokenizer, seq_len: int
) -> None:
    """The user store of one silo, from its records; those of several owners go to the first."""
    source = Source(
        kind="federation",
        places=(records,),
        read=lambda records, at: iter(records),
        several_owners=True,
        loss_mask=records[0].pieces is not None,
    )
    prepare_store(
        source,
        out,
        tokenizer=tokenizer,
        seq_len=seq_len,
        held_out_users=0.0,
        held_out_examples=HELD_OUT,
    )
