"""Trainers so small that a whole run takes about a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, TrainingArguments

from tests.plans import uls_plan
from tests.training.toy import cycles, tiny_gpt2
from tests.words import WORDS, write_tokenizer
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.training.huggingface.trainer import UserLevelTrainer
from userdp.training.store_losses import rows_of

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}w1 {% generation %}{{ message['content'] }} "
    "<|endoftext|>{% endgeneration %} "
    "{% else %}w0 {{ message['content'] }} {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}w1 {% endif %}"
)
"""A chat template in the words of the toy tokenizer, with TRL's markers of generated text."""


def toy_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(write_tokenizer(folder / "tokenizer.json")),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="[UNK]",
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def toy_model(*, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return tiny_gpt2(len(WORDS) + 2, n_positions=128, **rates)


def rows(users: int = 40) -> list[dict[str, str]]:
    """A row per text, in an order that mixes the users."""
    pairs = [(user, text) for user, texts in cycles(users).items() for text in texts]
    every = [{"author": user.decode(), "text": text} for user, text in pairs]
    random.Random(1).shuffle(every)
    return every


def tokenized(tokenizer: PreTrainedTokenizerFast, users: int = 40) -> datasets.Dataset:
    table = datasets.Dataset.from_list(rows(users))
    return table.map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]})


def examples(store: UserStore) -> list[tuple[int, list[int], list[int]]]:
    """(user's place, tokens, labels) of each training example, in the store's order."""
    split = store.split(Split.TRAIN)
    users, places = rows_of(split, np.arange(len(split.counts)))
    read, found = split.gather(users, places), []
    for user, begin, end in zip(users.tolist(), read.offsets[:-1], read.offsets[1:], strict=True):
        ids = read.tokens[begin:end].tolist()
        marks = [True] * len(ids) if read.targets is None else read.targets[begin:end]
        found.append((user, ids, [i if mark else -100 for i, mark in zip(ids, marks, strict=True)]))
    return found


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    values: dict[str, Any] = {"use_cpu": True, "learning_rate": 0.01, "report_to": "none"}
    values |= {"logging_steps": 1, "save_steps": 2, "disable_tqdm": True}
    return TrainingArguments(str(folder / "out"), **{**values, **changes})


def trainer(folder: Path, *, kind: type = UserLevelTrainer, **changes: Any) -> Any:
    """A trainer over the toy people; its output lies in ``folder/out``, the store in the same."""
    tokenizer = toy_tokenizer(folder / "tokenizer")
    options: dict[str, Any] = {
        "model": changes.pop("model", None) or toy_model(),
        "args": changes.pop("args", None) or arguments(folder, **changes.pop("arguments", {})),
        "train_dataset": tokenized(tokenizer),
        "processing_class": tokenizer,
        "user_column": "author",
        "plan": uls_plan(),
        "store": folder / "people",
        "seq_len": 8,
    }
    return kind(**{**options, **changes})
