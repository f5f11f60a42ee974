"""A store, a model and plans so small that a whole run takes a second."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.data.corpora import ListSource, interleaved
from tests.plans import uls_plan
from tests.words import WORDS, write_tokenizer
from userdp.data.pipeline import prepare_store
from userdp.data.sources.source import Source
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.gradients import trainable_parameters
from userdp.ledger import RunFolder
from userdp.plans.proposal import as_plan, declared_users
from userdp.training.causal_models import new_model
from userdp.training.config import PrivateOptions, RunOptions, TrainConfig
from userdp.training.open_run import Training
from userdp.training.private_run import PrivateRun, opened

CONFIG = TrainConfig(model="new", layers=1, width=16, heads=2, learning_rate=0.01)
RESUMED = RunOptions(resume=True)


def cycles(users: int, seed: int = 0) -> dict[bytes, list[str]]:
    """Each record counts upwards from a random word: easy to learn."""
    draw = random.Random(seed)

    def record() -> str:
        start = draw.randrange(len(WORDS))
        return " ".join(WORDS[(start + n) % len(WORDS)] for n in range(draw.randint(4, 7)))

    return {
        f"user{number:03d}".encode(): [record() for _ in range(draw.randint(1, 9))]
        for number in range(users)
    }


def toy_store(
    folder: Path, texts: dict[bytes, list[str]] | None = None, *, held_out: float = 0.2
) -> UserStore:
    """The store of ``texts``, in ``folder/store``."""
    source = ListSource(interleaved(cycles(40) if texts is None else texts))
    return store_of(folder, source, held_out_users=held_out, held_out_examples=held_out)


def store_of(folder: Path, source: Source, **options: Any) -> UserStore:
    """The store of a source in the toy's words, in ``folder/store``."""
    folder.mkdir(exist_ok=True)
    tokenizer = StoreTokenizer.load(write_tokenizer(folder / "tokenizer.json"))
    prepare_store(source, folder / "store", tokenizer=tokenizer, seq_len=8, **options)
    return UserStore.open(folder / "store", fixed_graph="records_per_user" in options)


def toy_model(store: UserStore) -> nn.Module:
    return new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)


def tiny_gpt2(vocab_size: int, **shape: Any) -> nn.Module:
    """A GPT-2 of one layer with random weights."""
    shape = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, **shape}
    config = transformers.GPT2Config(vocab_size=vocab_size, bos_token_id=0, eos_token_id=0, **shape)
    return transformers.GPT2LMHeadModel(config)


def loaded(base: Path) -> nn.Module:
    """The model in a folder, without dropout."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    return model.train()


def moved(model: nn.Module) -> nn.Module:
    """The model after a training of one part, of which no ledger knows."""
    with torch.no_grad():
        model.transformer.wpe.weight.add_(1e-3)
    return model


def adapted(model: nn.Module, name: str = "default", **settings) -> nn.Module:
    """A GPT-2 with new low-rank adapters, by default on all of its linear layers."""
    import peft

    settings = {"target_modules": "all-linear", "fan_in_fan_out": True, **settings}
    lora = peft.LoraConfig(r=2, task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(model, lora, adapter_name=name)


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(trainable_parameters(model).values(), lr=rate)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def attempts(run: Path) -> int:
    """Steps charged: those of lost folders and cut lines too, which the counter alone remembers.

    Read off the file, not through the ledger's own code.
    """
    taken = 0
    for line in lines(run / "ledger.jsonl"):
        taken = max(taken + (line["kind"] == "attempt"), line.get("attempts", 0))
    return taken


def private_run(model, optimizer, store, plan, *, out, base=None, **options):
    """`make_private`, with each option by its name, and what the weights descend from."""
    how = {"loss": options.pop("loss")} if "loss" in options else {}
    people, where, options = opened(store), Path(out), PrivateOptions(**options)
    what = {"model": model, "optimizer": optimizer, "store": people, "plan": as_plan(plan)}
    training = Training(**what, out=where, base=base, options=options, **how)
    return PrivateRun(training, users=declared_users(plan)).open()


def take(private, most=None):
    """Take the steps that remain, or so many: each, with the gradient that the loop finds."""
    seen = []
    for step in islice(private, most):
        seen.append((step, gradient(private._of.model)))
        private._of.optimizer.step()
    return seen


def trained(model, store, out, plan=None, *, save=True, optimizer=None, **options):
    """A run of all its steps, which is saved."""
    optimizer, plan = optimizer or sgd(model), plan or uls_plan(steps=2)
    with private_run(model, optimizer, store, plan, out=out, **options) as private:
        take(private)
        if save:
            assert private.save() == RunFolder(out).model
    return private


def run_all(model, store, plan, out, **options):
    with private_run(model, sgd(model), store, plan, out=out, **options) as private:
        return take(private)
