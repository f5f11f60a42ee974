"""Ordinary scripts whose later passes are not those of the certificate, or that keep a state.

Each goes one way, which hangs on code alone: in batches, one unit at a time, or refused before
anything is charged. Whichever it is, one unit moves the sum by at most the clip norm.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any, ClassVar

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.gradients.counted import counted_reference
from userdp.errors import UseError
from userdp.gradients import Loss, Units, causal_lm_loss, get_engine, require_uncoupled
from userdp.gradients.certificate import calls, state
from userdp.gradients.certificate.made_up import circumstances
from userdp.gradients.certificate.state import State
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import following

VOCABULARY, LENGTH, CLIP = 32, 8, 0.05
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
Rows = list[list[list[int]]]


def gpt2(dropout: float = 0.0, *, positions: int = 16) -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=positions, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=dropout, embd_pdrop=0.0, attn_pdrop=0.0, **ENDS,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(shape).train()


def wrapped(block: Callable[[nn.Module], nn.Module], *, positions: int = 16) -> nn.Module:
    """GPT-2 with something around its one layer."""
    model = gpt2(positions=positions)
    model.transformer.h[0] = block(model.transformer.h[0])  # type: ignore[operator, union-attr]
    return model


def users(seed: int = 1) -> Rows:
    draw = random.Random(seed)
    return [[[draw.randrange(1, VOCABULARY) for _ in range(LENGTH)]] for _ in range(8)]


def logits_of(model: nn.Module, input_ids: Tensor) -> Tensor:
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    found: Tensor = model(input_ids=input_ids, position_ids=positions, use_cache=False).logits
    return found


def each_token(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token, 0 for padding; and how many count in each row."""
    logits, targets = logits_of(model, input_ids)[:, :-1], input_ids[:, 1:]
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    losses = flat.view(targets.shape)
    real = torch.arange(targets.shape[1]) < lengths[:, None] - 1
    return losses * real, real.sum(1).clamp(min=1)


class Mining:
    """Keeps only the hard examples once so many passes were made."""

    def __init__(self, after: int) -> None:
        self.calls, self.after = 0, after

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        self.calls += 1
        losses, counts = each_token(model, input_ids, lengths)
        losses = losses.sum(1) / counts
        if self.calls > self.after:
            losses = losses * (losses.detach() > 3.4)
        return losses


class MiningOverBatch(Mining):
    """The same by the batch's own threshold, which nobody would find before the first charge."""

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        self.calls += 1
        losses, counts = each_token(model, input_ids, lengths)
        losses = losses.sum(1) / counts
        if self.calls > self.after:
            losses = losses * (0.2 + 20 * (losses.detach() >= losses.detach().max()))
        return losses


@functools.lru_cache
def weights_of(width: int) -> Tensor:
    return 0.9 ** torch.arange(width)


def weighted(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses, counts = each_token(model, input_ids, lengths)
    return (losses * weights_of(losses.shape[1])).sum(1) / counts


@functools.lru_cache
def out_of_sight() -> list[Tensor]:
    return [torch.zeros(())]


def follows_the_last_pass(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses = causal_lm_loss(model, input_ids, lengths)
    before, out_of_sight()[0] = out_of_sight()[0], losses.detach().mean()
    return losses * (1 + before)


@torch.jit.script
def words(ids: Tensor) -> int:
    return int((ids > 5).sum())


def per_word(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Counts all rows' words, as nothing shows on one row."""
    return causal_lm_loss(model, input_ids, lengths) * (len(input_ids) / (1 + words(input_ids)))


def seeded(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    torch.manual_seed(0)
    return causal_lm_loss(model, input_ids, lengths)


TEACHER = gpt2().eval()
for parameter in TEACHER.parameters():
    parameter.data.add_(0.1 * torch.randn_like(parameter))


def distilled(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = logits_of(TEACHER, input_ids).log_softmax(-1)
    found = logits_of(model, input_ids).log_softmax(-1)
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    apart = (wanted.exp() * (wanted - found)).sum(2)
    return (apart * real).sum(1) / lengths


def dynamic_rope() -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, **ENDS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(shape).train()


def layerdrop() -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=16, ffn_dim=16, num_hidden_layers=2, dropout=0.0,
        num_attention_heads=2, max_position_embeddings=16, word_embed_proj_dim=16, layerdrop=0.4,
        **ENDS,
    )  # fmt: skip
    return transformers.OPTForCausalLM(shape).train()


def watched() -> nn.Module:
    """As by wandb.watch, which asks every parameter for its gradient."""
    model = gpt2()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: None)
    return model


class Around(nn.Module):
    """A layer of GPT-2 with something around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        return self.inner(hidden, *args, **options)


class Counts(Around):
    calls = 0

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return super().forward(hidden, *args, **options)


class RunningMean(Around):
    """Takes off a running mean of earlier passes, which is an ordinary attribute."""

    mean: Any = None

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        before, now = self.mean, hidden.detach().mean((0, 1))
        self.mean = now if before is None else 0.5 * before + 0.5 * now
        return super().forward(hidden if before is None else hidden - 9 * before, *args, **options)


class RunningMaximum(Around):
    """The same in a buffer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        largest = self.get_buffer("largest")
        answer = super().forward(hidden / (1 + largest), *args, **options)
        largest.copy_(torch.maximum(largest, hidden.detach().abs().max()))
        return answer


class Skips(Around):
    """Stochastic depth by Python's own generator."""

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        if self.training and random.random() < 0.3:
            return hidden
        return super().forward(hidden, *args, **options)


class RunningLoss:
    """Divides by a running mean of earlier losses, which is an attribute of the loss."""

    mean: Any = 1.0

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        before, self.mean = self.mean, 0.5 * self.mean + 0.5 * losses.detach().mean()
        return losses / before


class Linear8bitLt(nn.Linear):
    """By name and module as in LLM.int8, which needs a GPU."""


Linear8bitLt.__module__ = "bitsandbytes.nn.modules"


def eight_bits() -> nn.Module:
    model = gpt2()
    model.lm_head = Linear8bitLt(16, VOCABULARY, bias=False)
    return model


def summed(model: nn.Module, loss: Loss, rows: Rows, clip: float = CLIP) -> dict[str, Tensor]:
    units = Units.from_rows(rows)
    return get_engine("auto")(model, loss, units, l2_clip_norm=clip, micro_batch=4).value


def influence(model: nn.Module, loss: Loss, clip: float = CLIP) -> float:
    """The most by which one of a few units moves the sum, over the clip norm."""
    rows = users()
    everybody = summed(model, loss, rows, clip)
    moves = [0.0]
    for out in (0, 3, 7):
        rest = summed(model, loss, rows[:out] + rows[out + 1 :], clip)
        moves.append(math.sqrt(squared_norm(everybody[n] - v for n, v in rest.items())) / clip)
    return max(moves)


def way(model: nn.Module, loss: Loss) -> str:
    with counted_reference() as alone:
        summed(model, loss, users())
    return "one by one" if sum(alone) else "batched"


Case = tuple[Callable[[], nn.Module], Callable[[], Loss], str]
CASES: dict[str, Case] = {
    "hard examples": (gpt2, lambda: Mining(0), "one by one"),
    "a module that counts its calls": (lambda: wrapped(Counts), lambda: causal_lm_loss, "batched"),
    "a running mean": (lambda: wrapped(RunningMean), lambda: causal_lm_loss, "one by one"),
    "a buffer that grows": (lambda: wrapped(RunningMaximum), lambda: causal_lm_loss, "one by one"),
    "a teacher in a global": (gpt2, lambda: distilled, "batched"),
    "weights cached by lru_cache": (gpt2, lambda: weighted, "batched"),
    "a running mean in a loss": (gpt2, RunningLoss, "one by one"),
    "dynamic rotary embeddings": (dynamic_rope, lambda: causal_lm_loss, "batched"),
}


@pytest.mark.parametrize("case", CASES)
def test_invariant_3_what_goes_its_way_moves_the_sum_by_at_most_the_clip_norm(case: str) -> None:
    build, loss_of, expected = CASES[case]
    model, loss = build(), loss_of()
    assert influence(model, loss) <= 1
    assert way(model, loss) == expected


def test_a_number_of_the_pass_before_that_is_kept_out_of_sight_is_refused() -> None:
    """What a cache holds is a constant only while it is the same tensor in each pass."""
    with pytest.raises(UseError, match="keeps a state"):
        summed(gpt2(), follows_the_last_pass, users())


THAT_DRAW: dict[str, Case] = {
    "stochastic depth": (lambda: wrapped(Skips), lambda: causal_lm_loss, "one by one"),
    "layers that are dropped": (layerdrop, lambda: causal_lm_loss, "one by one"),
    "dropout": (lambda: gpt2(0.3), lambda: causal_lm_loss, "batched"),
}


@pytest.mark.parametrize("case", THAT_DRAW)
def test_what_draws_once_for_a_pass_is_computed_one_unit_at_a_time(case: str) -> None:
    """How far masks let one unit move the sum is asked in `test_dropout_influence`."""
    build, loss_of, expected = THAT_DRAW[case]
    assert way(build(), loss_of()) == expected


REFUSED: dict[str, tuple[Callable[[], nn.Module], Loss, str]] = {
    "a seed in the loss": (lambda: gpt2(0.1), seeded, "seeds a random number generator"),
    "hooks as of wandb.watch": (watched, causal_lm_loss, "wandb.watch"),
    "a script that counts all rows": (gpt2, per_word, "on made-up rows"),
    "layers of eight bits": (eight_bits, causal_lm_loss, "Linear8bitLt"),
}


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_engine_can_compute_is_refused_whoever_was_drawn(case: str, engine: str) -> None:
    build, loss, words = REFUSED[case]
    with pytest.raises(UseError, match=words):
        get_engine(engine)(build(), loss, Units.from_rows([]), l2_clip_norm=CLIP)


# What changes from one step to the next.


def test_invariant_3_a_schedule_that_begins_later_is_computed_one_by_one_from_then_on() -> None:
    model, loss = gpt2(), Mining(1 << 30)
    assert way(model, loss) == "batched"
    loss.after = 0
    assert way(model, loss) == "one by one"
    assert influence(model, loss) <= 1
    loss.after = 1 << 30
    assert way(model, loss) == "batched"


def any_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken twin: a pass need not make the calls of its certificate."""
    honest = following.Comparing.ran

    def ran(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        here = self._known.seen[self._at : self._at + 1]
        if func in following.ASKS or (here and here[0].function is func):
            return honest(self, func, args, kwargs)
        return func(*args, **kwargs)

    monkeypatch.setattr(following.Comparing, "ran", ran)
    monkeypatch.setattr(following.Comparing, "require_apart", lambda self, proved, missed: None)


def test_invariant_3_twin_other_calls_than_those_of_the_certificate_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hardest example of the batch weighs most; whoever it is moves all others."""

    def mined() -> tuple[nn.Module, Loss]:
        model, loss = gpt2(), MiningOverBatch(1 << 30)
        summed(model, loss, users(), 100.0)
        loss.after = 0
        return model, loss

    assert influence(*mined(), clip=100.0) <= 1
    any_calls(monkeypatch)
    model, loss = mined()
    assert way(model, loss) == "batched"
    rows = users()
    alone = [norm_of(model, loss, [row]) for row in rows]
    clip = 1.2 * min(alone) / 21  # what one unit has where it is not the hardest
    assert max(influence(model, loss, scale * clip) for scale in (1.0, 2.0, 4.0)) > 1


def norm_of(model: nn.Module, loss: Loss, rows: Rows) -> float:
    units = Units.from_rows(rows)
    return float(get_engine("reference")(model, loss, units, l2_clip_norm=1e6).norms[0])


def test_invariant_3_twin_a_running_mean_that_is_not_put_back_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = wrapped(RunningMean)
    assert influence(model, causal_lm_loss) <= 1
    monkeypatch.setattr(State, "put_back", lambda self: None)
    assert influence(model, causal_lm_loss) > 1


def test_adapters_that_are_exchanged_between_steps_are_certified_anew() -> None:
    model: Any = peft.get_peft_model(gpt2(), adapter("c_attn"))
    model.add_adapter("other", adapter("c_fc"))
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        assert way(model, causal_lm_loss) == "batched"
        assert influence(model, causal_lm_loss) <= 1


def adapter(target: str) -> peft.LoraConfig:
    return peft.LoraConfig(
        r=2, target_modules=[target], fan_in_fan_out=True, init_lora_weights=False
    )


def test_embeddings_that_renormalise_their_table_are_refused() -> None:
    model = gpt2()
    model.transformer.wte.max_norm = 1.0  # type: ignore[operator, union-attr]
    with pytest.raises(UseError, match="max_norm"):
        require_uncoupled(model)


# What a class or a global holds, and what only a whole number tells.

LAST: dict[torch.Size, Tensor] = {}


class Carries(nn.Module):
    """Adds what the last pass wrote into its class, or into a global, after a warm-up."""

    kept: ClassVar[dict[torch.Size, Tensor]] = {}

    def __init__(self, inner: nn.Module, *, in_global: bool) -> None:
        super().__init__()
        self.inner, self.in_global, self.warm = inner, in_global, False

    def forward(self, *args: Any, **named: Any) -> Any:
        held = LAST if self.in_global else self.kept
        found = self.inner(*args, **named)
        before = held.setdefault(found.shape, torch.zeros_like(found))
        now = 40 * found.detach()
        if self.warm:
            held[found.shape] = now
        return found + before


def carrying(in_global: bool) -> nn.Module:
    model = wrapped(functools.partial(Carries, in_global=in_global))
    summed(model, causal_lm_loss, users())
    model.transformer.h[0].warm = True  # type: ignore[operator, union-attr]
    return model


@pytest.mark.parametrize("in_global", [False, True])
def test_invariant_3_what_a_class_or_a_global_holds_reaches_no_other_user(
    in_global: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = carrying(in_global)
    assert influence(model, causal_lm_loss) <= 1
    assert way(model, causal_lm_loss) == "one by one"
    # Broken twin: neither is read.
    monkeypatch.setattr(state, "_of_library", lambda code: True)
    assert way(model, causal_lm_loss) == "batched"
    assert influence(model, causal_lm_loss) > 1


class AlongRows:
    """Weighs tokens by a softmax along the row; later, by another number, along the batch."""

    def __init__(self) -> None:
        self.dim = 1

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses, _ = each_token(model, input_ids, lengths)
        return (losses * (8 * losses).softmax(self.dim)).sum(1)


class Everything:
    def __contains__(self, function: object) -> bool:
        return True


def test_invariant_3_a_dimension_is_compared_and_a_number_that_counts_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def later() -> tuple[nn.Module, Loss]:
        model, loss = gpt2(), AlongRows()
        summed(model, loss, users())
        loss.dim = 0
        return model, loss

    assert way(*later()) == "one by one"
    assert influence(*later()) <= 1
    monkeypatch.setattr(calls, "COUNTED", Everything())  # broken twin
    assert way(*later()) == "batched"
    assert influence(*later()) > 1


def test_an_answer_found_on_one_device_is_none_about_another() -> None:
    model = gpt2()
    before = circumstances(model, dict(model.named_parameters()), masked=False)
    assert before == circumstances(model, dict(model.named_parameters()), masked=False)
    model.to("meta")
    assert before != circumstances(model, dict(model.named_parameters()), masked=False)
