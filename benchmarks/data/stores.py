"""Stores of random tokens, indices without tokens, and samplers over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.plans import plan_of_size
from userdp.sampling import PoissonUsers
from userdp.sampling.draws import Sampler

SEQ_LEN = 128


def write_store(path: Path, counts: NDArray[np.int64], length: int) -> Any:
    """A store of random tokens; every example has ``length``."""
    from userdp.data.records import Tally
    from userdp.data.splits import Split
    from userdp.data.store_tokenizer import StoreTokenizer
    from userdp.data.user_store import UserStore
    from userdp.data.writer import StoreWriter

    draw = np.random.default_rng(0)
    block = draw.integers(0, 4096, int(counts.max()) * length).astype(np.uint16)
    with StoreWriter.create(path, tokenizer=StoreTokenizer.load(), seq_len=length) as writer:
        from userdp.data import writer as written

        # The content hash is not what is timed here.
        hashing, written.prolong = written.prolong, lambda chain, *_: chain
        try:
            for user, count in enumerate(counts.tolist()):
                lengths = np.full(count, length, dtype=np.int64)
                writer.write(b"%09d" % user, Split.TRAIN, block[: count * length], lengths)
        finally:
            written.prolong = hashing
        writer.finish(source={}, tally=Tally())
    return UserStore.open(path)


def index_of(counts: NDArray[np.int64]) -> Any:
    """A split of which the users and the examples' offsets alone exist, each of one token."""
    from userdp.data.splits import Split
    from userdp.data.store_contents import TokenRows
    from userdp.data.user_store import StoreSplit

    held = TokenRows(np.zeros(0, np.uint16), np.arange(counts.sum() + 1), None)
    return StoreSplit(Split.TRAIN, held, counts, np.zeros((len(counts), 2), np.uint64))


def sampler_of(counts: NDArray[np.int64], cohort: int) -> Any:
    from userdp.sampling.draws import secret_generator

    plan = plan_of_size(
        PoissonUsers, population=len(counts), size=cohort, group_size=4, steps=10,
        l2_clip_norm=1.0, target_delta=1e-6, noise_multiplier=1.0,
    )  # fmt: skip
    return Sampler(plan.sampling, counts, secret_generator())
