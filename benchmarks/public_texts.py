"""Public text by user that a Linux machine with this project's environment holds already.

``docstrings`` of installed packages by module, ``comments`` of their Python files by file, and
``changelogs`` of Debian packages by the author of each entry. Python's own library is in none of
them: the bundled model and the other base models of the grid were trained on it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from userdp.data.pipeline import prepare_store
from userdp.data.sources import open_source
from userdp.data.sources.source import Source
from userdp.data.splits import Split, user_hash
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.gradients import Units, causal_lm_loss
from userdp.training.causal_models import BASE_MODEL, read_model

PUBLIC_TEXTS = ("docstrings", "comments", "changelogs")
SEQ_LEN = 32
_BASE_SEQ_LEN = 64
_USERS = 1_500
_HELD_OUT = 0.1
_PACKAGES = ["numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib"]
_ENTRY = re.compile(r"^\S+ \(.*?\n(.*?)^ -- .*?<(.*?)>", re.MULTILINE | re.DOTALL)
_BASE_STEPS, _BASE_BATCH = 500, 16


def comments() -> Iterator[tuple[str, str]]:
    """Blocks of full-line comments, each with its file; files in the order of their hashes."""
    files = {
        str(file.locate()): None
        for one in distributions()
        for file in one.files or ()
        if file.suffix == ".py" and "test" not in str(file)
    }
    users = 0
    for path in sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest()):
        try:
            with tokenize.open(path) as file:
                lines = [line.strip() for line in file]
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        joined = "\n".join(line[1:] if line.startswith("#") else "\0" for line in lines)
        blocks = [block.strip() for block in re.split(r"[\0\n]*\0[\0\n]*", joined)]
        blocks = [block for block in blocks if len(block) >= 40 and "icense" not in block]
        if len(blocks) >= 2:
            users += 1
            yield from ((path, block) for block in blocks)
        if users == _USERS:
            return


def changelogs() -> Iterator[tuple[str, str]]:
    """Entries of Debian changelogs, each with its author, once; several packages share files."""
    seen = set()
    for path in sorted(Path("/usr/share/doc").glob("*/changelog.Debian.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            for text, author in _ENTRY.findall(file.read()):
                entry = re.sub(r"\n\s*", "\n", text).strip()
                if entry not in seen and not seen.add(entry):
                    yield author, entry


def store_of(text: str, data: Path, work: Path) -> UserStore:
    """The store of a text, made where there is none.

    Args:
        text: of `PUBLIC_TEXTS`, "stdlib" (what base models learn from), or a file in ``data``.
        data: a folder of ``{text}.jsonl.gz`` with fields ``user`` and ``text``.
        work: the folder of the stores.
    """
    if not (work / text).exists():
        work.mkdir(parents=True, exist_ok=True)
        source: Source
        if text == "stdlib":
            source = open_source(["stdlib"], kind="docstrings")
        elif text == "docstrings":
            source = open_source(_PACKAGES, kind="docstrings")
            (modules,) = source.places
            chosen = sorted(modules, key=lambda name: user_hash(name.encode()))[:_USERS]
            source = replace(source, places=({name: modules[name] for name in chosen},))
        else:
            path = data / f"{text}.jsonl.gz"
            if text in PUBLIC_TEXTS:
                path = work / f"{text}.jsonl"
                records = {"comments": comments, "changelogs": changelogs}[text]()
                lines = (json.dumps({"user": user, "text": said}) + "\n" for user, said in records)
                path.write_text("".join(lines), "utf-8")
            source = open_source([str(path)], kind="jsonl")
        tokenizer = StoreTokenizer.load()
        prepare_store(
            source,
            work / text,
            tokenizer=tokenizer,
            seq_len=_BASE_SEQ_LEN if text == "stdlib" else SEQ_LEN,
            held_out_users=_HELD_OUT,
            held_out_examples=0.0,
        )
    return UserStore.open(work / text)


def _shape(model: str, vocabulary: int) -> Any:
    """The configuration of a base model other than the bundled one."""
    if model == "gpt2":
        return transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=128, n_embd=128, n_layer=6, n_head=4
        )
    return transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )


def base_model(model: str, work: Path) -> Path:
    """The folder of a base: "bundled", or "gpt2" or "llama", pre-trained here where there is none.

    The latter two are small and learn for some minutes from Python's own docstrings.
    """
    folder = work / "bases" / model
    if model == "bundled" or folder.exists():
        return BASE_MODEL if model == "bundled" else folder
    split = store_of("stdlib", work, work).split(Split.TRAIN)
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    made: Any = transformers.AutoModelForCausalLM.from_config(
        _shape(model, StoreTokenizer.load().vocab_size)
    )
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3, betas=(0.9, 0.98), fused=True)
    users = np.repeat(np.arange(len(split.counts)), split.counts)
    examples = np.concatenate([np.arange(count) for count in split.counts])
    for step in range(_BASE_STEPS):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(step / 50, 1 - step / _BASE_STEPS)
        rows = draw.integers(len(users), size=_BASE_BATCH)
        found = split.gather(users[rows], examples[rows])
        units = Units.from_flat(found.tokens, found.offsets, np.arange(len(rows) + 1))
        loss = causal_lm_loss(made, units.input_ids, units.lengths).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.save_pretrained(folder)
    return folder


def read_base(model: str, work: Path) -> torch.nn.Module:
    """A base model, ready to train."""
    return read_model(str(base_model(model, work))).train()
