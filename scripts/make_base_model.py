"""The bundled base model, by this project's own `prepare` and `train`, without privacy.

Run ``python scripts/make_tokenizer.py`` first if the vocabulary is to change, then::

    python scripts/make_base_model.py --work build/base-model

Public text only: the docstrings of Python's standard library and `pydoc_data.topics` (PSF
licence, see NOTICE). Some of the modules are held out to measure on. Interrupted, it goes on from
its last checkpoint; finished, it only exports again. On two busy cores it takes 25 minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from userdp.cli.app import run as userdp
from userdp.core import files
from userdp.ledger import RunFolder
from userdp.training.causal_models import BASE_MODEL

STEPS = 1100
BATCH_SIZE = 32
TRAIN_OPTIONS = [
    "--model",
    "new",
    "--set",
    "learning.layers=4",
    "--set",
    "learning.width=192",
    "--set",
    "learning.heads=6",
    "--micro-batch",
    "16",
    "--set",
    "learning.precision=bfloat16",
    "--learning-rate",
    "2.5e-3",
    "--set",
    "learning.warmup_steps=100",
    "--set",
    "learning.schedule=cosine",
    "--set",
    "learning.weight_decay=0.1",
    "--set",
    "learning.checkpoint_every=100",
    "--set",
    "learning.evaluate_every=200",
]

CARD = """# The bundled base model

A small decoder (GPT-2 style, 4 layers of width 192, 6 heads, 4,096 BPE pieces, context 128, tied
embeddings, 2.6 M parameters, bfloat16) that `userdp` fine-tunes by default. It is made for
trying the tool out, not for writing text.

- **Text**: docstrings of Python {python}'s standard library and `pydoc_data.topics`, nothing
  else ({tokens:,} tokens). Licence of the text: PSF-2.0, see NOTICE.
- **Made by** `scripts/make_base_model.py`: `userdp prepare` and `userdp train` without privacy,
  {steps} steps of {batch_size} examples.
- **Loss** on held-out modules of the standard library: {loss:.3f} nats per token (perplexity
  {perplexity:.0f}).
- **Privacy**: trained without; the text is public.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/base-model"))
    parser.add_argument("--out", type=Path, default=BASE_MODEL)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    store, run = options.work / "store", options.work / "run"
    options.work.mkdir(parents=True, exist_ok=True)
    if not store.exists():
        _do("prepare stdlib --source docstrings --held-out-users 0.05 --held-out-examples 0", store)
    _train(store, run, steps=options.steps)
    _export(store, run, options.out, steps=options.steps)


def _train(store: Path, run: Path, *, steps: int) -> None:
    folder = RunFolder(run)
    if folder.finished:
        return
    length = ["--set", f"plain.steps={steps}", "--set", f"plain.batch_size={BATCH_SIZE}"]
    resume = ["--resume"] if folder.resume.exists() else []
    status = userdp(["train", str(store), "--out", str(run), *TRAIN_OPTIONS, *length, *resume])
    if status:
        raise SystemExit(status)


def _export(store: Path, run: Path, out: Path, *, steps: int) -> None:
    """The released model in bfloat16, beside the tokenizer, with its card."""
    released = run / "model"
    weights = load_file(released / "model.safetensors")
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    partial = out / ".partial-model.safetensors"
    save_file(narrow, partial, metadata={"format": "pt"})
    partial.chmod(files.SHAREABLE_FILE)
    partial.replace(out / "model.safetensors")
    config = json.loads((released / "config.json").read_text(encoding="utf-8"))
    config |= {"dtype": "bfloat16", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    files.write_json(out / "config.json", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        files.write_file(out / name, (released / name).read_bytes())
    lines = (run / "operator.jsonl").read_text(encoding="utf-8").splitlines()
    last = [entry for entry in map(json.loads, lines) if entry["kind"] == "evaluation"][-1]
    meta = json.loads((store / "meta.json").read_text(encoding="utf-8"))
    card = CARD.format(
        python=platform.python_version(),
        tokens=meta["totals"]["splits"]["train"]["tokens"],
        steps=steps,
        batch_size=BATCH_SIZE,
        loss=last["loss"],
        perplexity=last["perplexity"],
    )
    files.write_file(out / "README.md", card.encode())


def _do(command: str, store: Path) -> None:
    status = userdp([*command.split(), "--out", str(store)])
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    main()
