"""The questions of the campaign, and how one is answered."""

from __future__ import annotations

import logging
import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers

from tests.gradients.campaign import accidents, cases, families, people
from tests.gradients.campaign.measure import (
    Influence,
    biting_clip,
    engine_of,
    influence,
    prepared,
)
from userdp.core.errors import UseError
from userdp.gradients import clipped_sum

NARROW = (
    "bert", "bigbird_pegasus", "biogpt", "bloom", "falcon", "gemma", "gemma2", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite", "granitemoe", "llama",
    "mistral", "mixtral", "mpt", "nemotron", "olmo", "olmo2", "opt", "persimmon", "phi", "phi3",
    "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2", "xglm",
)  # fmt: skip
"""Families that are computed in bfloat16 and with dropout too."""

CASES = 300

SHARDED_MASKS = 100
"""Cases of dropout over sharded models, which take longest: each pass gathers each layer anew."""


class Job(NamedTuple):
    """One question: a kind (a line of the table), an engine, and which of the kind."""

    kind: str
    engine: str
    name: str


def jobs() -> list[Job]:
    """All of them; those that take longest first."""
    found = [
        *(Job(f"families, {mode}", "auto", name) for name in families.FAMILIES for mode in MODES),
        *(
            Job(f"families, {mode}, {more}", "auto", name)
            for name in NARROW
            for mode in MODES
            for more in ("bfloat16", "bfloat16 and dropout")
        ),
        *(Job("accidents", "auto", name) for name in accidents.ACCIDENTS),
    ]
    for kind in cases.KINDS:
        for engine in ("auto", "sharded"):
            count = SHARDED_MASKS if (kind, engine) == ("dropout", "sharded") else CASES
            found += [Job(kind, engine, str(number)) for number in range(count)]
    return found


MODES = ("full", "LoRA")


def answered(job: Job) -> dict[str, Any]:
    """A row of the results: the way, the ratio, and what was said."""
    begin = time.process_time()
    row: dict[str, Any] = job._asdict()
    try:
        found = _measured(job)
        row |= {"way": found.way, "ratio": found.ratio}
    except UseError as error:
        row |= {"way": "refused", "said": str(error)[:200]}
    except _NotBuiltError as error:
        row |= {"way": "not built", "said": str(error)[:200]}
    except Exception as error:  # a failure of ours or of the family, which the table shows
        row |= {"way": "raised", "said": f"{type(error).__name__}: {error}"[:300]}
    return row | {"seconds": round(time.process_time() - begin, 2)}


class _NotBuiltError(Exception):
    """`transformers` or `peft` does not make such a tiny model, or it does not run."""


def _measured(job: Job) -> Influence:
    if job.kind == "accidents":
        return accidents.measured(accidents.ACCIDENTS[job.name])
    if job.kind in cases.KINDS:
        return cases.measured(job.kind, int(job.name), job.engine)
    rate = 0.1 if "dropout" in job.kind else 0.0
    units = people.cohort()
    try:
        model = families.build(job.name, adapters="LoRA" in job.kind, dropout=rate)
        with torch.no_grad():
            people.judged(model, *units.all_rows()[:2])
    except Exception as error:
        raise _NotBuiltError(f"{type(error).__name__}: {error}") from error
    loss = people.judged_in_bfloat16 if "bfloat16" in job.kind else people.judged
    ask = {"micro_batch": people.MICRO_BATCH}
    clip = biting_clip(clipped_sum(model, loss, units, l2_clip_norm=1.0, **ask).norms)
    model = prepared(model, job.engine)
    clipped = partial(engine_of(job.engine), model, loss, l2_clip_norm=clip, **ask)
    return influence(clipped, units, clip=clip, out=people.OUT, vocabulary=families.VOCABULARY)


def wrong(row: dict[str, Any]) -> bool:
    """Whether a row speaks against the engine."""
    if row["kind"] == "accidents":
        told = row["way"] in accidents.ACCIDENTS[row["name"]].allowed
        return not (told and row.get("ratio", 0.0) <= 1)
    if row["kind"] == "routed" and row["way"] == "certified":  # a router's choice can be tipped
        return True
    return row["way"] == "raised" or not row.get("ratio", 0.0) <= 1


def quietly() -> None:
    """One thread, and nothing of what libraries print about tiny models."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(60)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
