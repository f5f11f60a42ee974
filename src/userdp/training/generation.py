"""Text sampled from a finished run's released model.

Guarantee: the texts are a function of the released weights, of the prompts and of fresh
randomness, so they are post-processing: the run's own (ε, δ) covers them, however many are drawn.
That holds while prompts are public: a prompt taken from a person's text carries it into the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError
from userdp.ledger import RunFolder
from userdp.training.devices import AUTO, choose_device
from userdp.training.models import read_model, require_released
from userdp.vocabulary import require_count, require_positive, require_probability


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """How texts are sampled.

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
    prompt: tuple[str, ...] = ()
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


class TextGenerator:
    """Samples from the released model of a run.

    Args:
        run: a run's folder, finished.
        config: how.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.

    Raises:
        UseError: the run has released no model, the model has no end-of-text token and no prompt
            is given, or a prompt leaves no room in the model's context.
    """

    def __init__(self, run: Path, config: GenerateConfig, *, device: str = AUTO) -> None:
        folder = RunFolder(run)
        self._config, self._device = config, choose_device(device)
        self._model: Any = read_model(require_released(folder)).to(self._device).eval()
        self._tokenizer = StoreTokenizer.load(folder.model)
        self._end = self._tokenizer.end_of_text_id
        self._prompts = [(text, self._encode(text)) for text in config.prompt]
        if not self._prompts:
            if self._end is None:
                raise UseError(
                    "the model has no end-of-text token to begin from",
                    hint="give a public --prompt",
                )
            self._prompts = [("", [self._end])]
        longest = max(len(ids) for _, ids in self._prompts)
        context = getattr(self._model.config, "max_position_embeddings", None) or 2**20
        self._room = int(context) - longest
        if self._room < 1:
            raise UseError(
                f"a prompt has {longest} tokens, which fills the model's context of {context}",
                hint="give a shorter --prompt",
            )

    @torch.no_grad()
    def texts(self, count: int) -> Iterator[GeneratedText]:
        """Sample ``count`` texts, batch after batch."""
        require_count("count", count)
        with torch.random.fork_rng():
            if self._config.seed is None:
                torch.seed()
            else:
                torch.manual_seed(self._config.seed)
            for begin in range(0, count, self._config.micro_batch):
                here = range(begin, min(count, begin + self._config.micro_batch))
                yield from self._batch([self._prompts[i % len(self._prompts)] for i in here])

    def _batch(self, prompts: Sequence[tuple[str, list[int]]]) -> list[GeneratedText]:
        width = max(len(ids) for _, ids in prompts)
        pad = 0 if self._end is None else self._end
        # Padded on the left, so that every text goes on from its prompt's last token.
        rows = [[pad] * (width - len(ids)) + ids for _, ids in prompts]
        seen = [[0] * (width - len(ids)) + [1] * len(ids) for _, ids in prompts]
        sampled = self._model.generate(
            input_ids=torch.tensor(rows, device=self._device),
            attention_mask=torch.tensor(seen, device=self._device),
            do_sample=True,
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            top_k=0,
            max_new_tokens=min(self._config.max_tokens, self._room),
            eos_token_id=self._end,
            pad_token_id=pad,
            use_cache=True,  # whoever trains under checkpointing saves a model that says no
        )
        return [
            self._text(prompt, row[width:].tolist())
            for (prompt, _), row in zip(prompts, sampled, strict=True)
        ]

    def _text(self, prompt: str, ids: list[int]) -> GeneratedText:
        kept = ids[: ids.index(self._end)] if self._end in ids else ids  # no id is None
        text = self._tokenizer.encoder.decode(kept, skip_special_tokens=True)
        return GeneratedText(prompt, text, tuple(kept), len(kept) < len(ids))

    def _encode(self, text: str) -> list[int]:
        (ids,) = self._tokenizer.with_end(None).encode([text])
        if not ids:
            raise UseError("a prompt is empty", hint="leave --prompt out to begin from nothing")
        return ids
