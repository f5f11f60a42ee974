"""Small plans, silos and federations, over items that are their own gradients."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from tests.data.corpora import ListSource
from tests.words import write_tokenizer
from userdp.data.pipeline import prepare_store
from userdp.data.records import Record
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.federated.algorithms import ALGORITHMS, Declared
from userdp.federated.federation_plan import PLAN_FILE, STORE, FederationPlan, ModelSpec
from userdp.federated.silo import Silo, build_model
from userdp.federated.simulation import make_federation
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan

PRIVATE = [name for name in ALGORITHMS if name != "fedavg"]
with TemporaryDirectory() as _folder:
    _file = write_tokenizer(Path(_folder) / "tokenizer.json", [str(n) for n in range(-5, 6)])
    NUMBERS = StoreTokenizer.load(_file).with_end(None)
FACTS = {"tokenizer_sha256": NUMBERS.sha256, "vocab_size": NUMBERS.vocab_size}
WIDTH = 6
ZERO_TOKEN = 7
"""Token t stands for the number t - 7: two are no numbers."""


@dataclass(frozen=True, kw_only=True)
class ToySpec(ModelSpec):
    kind: ClassVar[str] = "toy"


TOY = ToySpec(seq_len=WIDTH, **FACTS)
DECLARED = {"items_per_silo": 40, "subjects_per_silo": 20, "group_size": 3, "batch_size": 10,
            "local_steps": 2, "l2_clip_norm": 0.5}  # fmt: skip
FEDERATION = {"algorithm": "local-group-dp", "silos": 3, "silos_per_round": 3,
              "silos_per_subject": 3, "rounds": 2, "learning_rate": 0.1, "model": TOY}  # fmt: skip


def constants(*, target_epsilon=4.0, target_delta=1e-5, sampling_probability=None, **changes):
    """The arguments of `FederationPlan.calibrated`."""
    declared = {name: changes.pop(name, value) for name, value in DECLARED.items()}
    if sampling_probability is not None:
        declared["batch_size"] = sampling_probability * declared["items_per_silo"]
    budget = Budget(target_epsilon=target_epsilon, target_delta=target_delta)
    return FEDERATION | changes | {"declared": Declared(**declared), "budget": budget}


def plan(noise_multiplier=1.0, **changes):
    """A plan of a given noise, for no budget."""
    values = constants(target_epsilon=None, **changes)
    given = values.pop("declared"), values.pop("budget")
    local = ALGORITHMS[values["algorithm"]].local(*given)
    if isinstance(local, Plan):
        local = replace(local, noise=Gaussian(multiplier=noise_multiplier))
    return FederationPlan(local=local, **values)


def made_in(tmp_path, made):
    """The folder of a federation."""
    folder = tmp_path / "federation"
    make_federation(folder, made, items([5] * 20).records(), tokenizer=NUMBERS)
    return folder


COUNTS = [3, 1, 2, 3, 3]
"""Items of each subject of a silo."""


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(WIDTH))


def linear_loss(model, rows, lengths):
    values = torch.where(torch.arange(rows.shape[1]) < lengths[:, None], rows - ZERO_TOKEN, 0)
    values = nn.functional.pad(values, (0, WIDTH - rows.shape[1]))
    return values.float() @ model.w


@build_model.register
def _(spec: ToySpec):
    return Linear(), linear_loss


@dataclass(frozen=True)
class Items:
    """Numbers of subjects, (items, WIDTH), each from -5 to 5."""

    rows: np.ndarray
    subjects: np.ndarray

    def records(self):
        return [
            Record(f"s{who:03d}".encode(), " ".join(map(str, row)).encode())
            for who, row in zip(self.subjects, self.rows, strict=True)
        ]


def items(counts, seed=0, scale=5):
    draw = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    return Items(draw.integers(-scale, scale + 1, size=(len(owners), WIDTH)), owners)


def store_of(records, folder, seq_len=WIDTH):
    prepare_store(
        ListSource(tuple(records)),
        folder,
        tokenizer=NUMBERS,
        seq_len=seq_len,
        held_out_users=0,
        held_out_examples=0,
    )


def silo(folder, plan, data, index=0, seed=None):
    """The silo in ``folder``, whose store is made once; its plan is written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    plan.save(folder / PLAN_FILE)
    if not (folder / STORE).exists():
        store_of(data.records(), folder / STORE)
    return Silo(folder, index, *build_model(plan.model), unsafe_seed=seed)


ZERO = {"w": np.zeros(WIDTH, dtype=np.float32)}
