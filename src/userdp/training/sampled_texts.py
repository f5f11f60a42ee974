"""Text sampled from a finished run's released model.

Guarantee: the texts are a function of the released weights, of the prompts and of fresh
randomness, so they are post-processing: the run's own (ε, δ) covers them, however many are drawn.
That holds while prompts are public: a prompt taken from a person's text carries it into the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from userdp.claims.released_files import refuse_diverged
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count, require_positive, require_probability
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.ledger import RunFolder
from userdp.training.causal_models import context_of, read_model
from userdp.training.devices import AUTO, choose_device
from userdp.training.released_model import require_released


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """Settings of sampling.

    Args:
        max_tokens: most tokens of a text after its prompt, at least 1; never beyond the model's
            context.
        temperature: > 0; 1 samples from the model as it is.
        top_p: keep the likeliest tokens of this total probability, in (0, 1].
        prompt: public texts to go on from, in turn; by default the end-of-text token, which is
            what stands between texts. Nobody's private text: it would be carried into what no
            epsilon covers.
        micro_batch: texts in one pass.
        seed: for the same texts again; by default the operating system's.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    prompt: tuple[str, ...] | str = ()
    micro_batch: int = 32
    seed: int | None = None

    def __post_init__(self) -> None:
        require_count("max_tokens", self.max_tokens)
        require_positive("temperature", self.temperature)
        require_probability("top_p", self.top_p)
        require_count("micro_batch", self.micro_batch)


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """One sampled text.

    Args:
        prompt: what it goes on from; not part of ``text``.
        text: what was sampled, without special tokens.
        tokens: the ids behind ``text``, without the end of text.
        ended: the model ended it itself; otherwise it was cut at ``max_tokens``.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    ended: bool


@torch.no_grad()
def sampled_texts(
    run: Path, config: GenerateConfig, count: int, *, device: str = AUTO
) -> Iterator[GeneratedText]:
    """Sample ``count`` texts from the released model of a run, batch after batch.

    Args:
        run: a run's folder, finished.
        config: how.
        count: of the texts.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.

    Raises:
        UseError: the run has released no model or one that diverged, the model has no end-of-text
            token and no prompt is given, or a prompt is empty or leaves no room in its context.
    """
    require_count("count", count)
    folder, computes = require_released(RunFolder(run)), choose_device(device)
    refuse_diverged(RunFolder(run))
    model: Any = read_model(str(folder)).to(computes).eval()
    model.generation_config = GenerationConfig()  # the model as it is, without a base's penalties
    tokenizer = StoreTokenizer.load(folder)
    end = tokenizer.end_of_text_id
    texts = [config.prompt] if isinstance(config.prompt, str) else config.prompt
    prompts = list(zip(texts, tokenizer.with_end(None).encode(texts), strict=True))
    if not prompts and end is not None:
        prompts = [("", [end])]
    lengths = [len(ids) for _, ids in prompts]
    context = context_of(model)
    if not (lengths and min(lengths) > 0 and max(lengths) < context):
        raise UseError(
            f"there is nothing to begin a text from: prompts have {lengths} tokens, of 1 to "
            f"{context - 1}, and without one the model needs an end-of-text token",
            hint="give a public --prompt",
        )
    pad = 0 if end is None else end
    with torch.random.fork_rng():
        torch.manual_seed(torch.seed() if config.seed is None else config.seed)
        for begin in range(0, count, config.micro_batch):
            numbers = range(begin, min(count, begin + config.micro_batch))
            here = [prompts[number % len(prompts)] for number in numbers]
            width = max(len(ids) for _, ids in here)
            # Padded on the left, so that every text goes on from its prompt's last token.
            rows = [[pad] * (width - len(ids)) + ids for _, ids in here]
            seen = [[0] * (width - len(ids)) + [1] * len(ids) for _, ids in here]
            sampled = model.generate(
                input_ids=torch.tensor(rows, device=computes),
                attention_mask=torch.tensor(seen, device=computes),
                do_sample=True,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=0,
                max_new_tokens=min(config.max_tokens, context - max(lengths)),
                eos_token_id=end,
                pad_token_id=pad,
                use_cache=True,  # whoever trains under checkpointing saves a model that says no
            )
            for (prompt, _), row in zip(here, sampled[:, width:].tolist(), strict=True):
                kept = row[: row.index(end)] if end in row else row
                text = tokenizer.encoder.decode(kept, skip_special_tokens=True)
                yield GeneratedText(prompt, text, tuple(kept), len(kept) < len(row))
