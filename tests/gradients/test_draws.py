"""What rows of a pass share: two users in one pass must have no random number in common."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.dropout.influence import build_model, build_rows
from tests.gradients.one_pass import one_pass_sum
from tests.speed import fast_then_slow
from userdp.errors import FailureError
from userdp.gradients import Units, causal_lm_loss, draws, get_engine
from userdp.gradients.draws import (
    Draws,
    _mirrored,
    _OthersDraw,
    _row_stands_alone,
    draws_of,
    watching_draws,
)
from userdp.gradients.engines.choice import choose
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.model_randomness import secret_randomness

UNITS = Units.from_rows(build_rows((2, 1, 3)))
PER_ROW = ["gpt2", "llama", "tokens", "embeddings", "always"]
SHARED = ["positions", "layerdrop", "weights", "rrelu"]


@pytest.mark.parametrize("kind", PER_ROW)
def test_dropout_of_rows_belongs_to_rows(kind):
    assert draws_of(build_model(kind, rate=0.3), causal_lm_loss, UNITS) is Draws.PER_ROW


@pytest.mark.parametrize("kind", SHARED)
def test_coins_masks_and_weights_of_a_whole_pass_are_shared_and_auto_says_so(kind):
    model = build_model(kind, rate=0.3)
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.SHARED
    assert choose(model, causal_lm_loss, UNITS).engine == "reference"
    with pytest.raises(NotCoveredError, match="share"):
        one_pass_sum(model, causal_lm_loss, UNITS, l2_clip_norm=1.0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_without_dropout_or_in_evaluation_draws_nothing_and_changes_are_noticed(kind):
    model = build_model(kind, rate=0.0)
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.NONE
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.1)
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.PER_ROW
    assert draws_of(model.eval(), causal_lm_loss, UNITS) is Draws.NONE


def with_coin(coin):
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return causal_lm_loss(model, input_ids, lengths) * coin(len(input_ids))

    return loss


COINS = {
    "python": lambda rows: 1.0 + random.random(),
    "numpy": lambda rows: 1.0 + np.random.random(),
    "numpy by row": lambda rows: torch.from_numpy(1.0 + np.random.random(rows)),
    "one number": lambda rows: 1 + torch.rand([]),
    "15 weights": lambda rows: 1 + F.dropout(torch.ones(15, 4), 0.5).mean(),
    "960 weights": lambda rows: 1 + F.dropout(torch.ones(960, 4), 0.5).mean(),
    "pairs of rows": lambda rows: 1 + torch.rand(rows * rows).mean(),
    "the mean of the rows' coins": lambda rows: 1 + torch.rand(rows).mean(),
    "whole numbers": lambda rows: 1 + torch.randint(2, (rows,)).float().mean(),
    "many whole numbers": lambda rows: 1 + torch.randint(9, (rows, 4)).float().mean(),
    "truths": lambda rows: 1 + torch.empty(rows, dtype=torch.bool).bernoulli_().float().mean(),
    "the next row's coin": lambda rows: 1 + torch.rand(rows).roll(1),
    "rows' weights, normalised": lambda rows: (
        (d := F.dropout(torch.ones(rows, 8), 0.5).mean(1)) / (1 + d.sum())
    ),
}


@pytest.mark.parametrize("coin", COINS)
def test_what_is_not_of_one_row_is_shared(coin):
    """Also where a size divides by the rows by chance, and where torch does not see the draw."""
    model, loss = build_model("gpt2", rate=0.0), with_coin(COINS[coin])
    assert draws_of(model, loss, UNITS) is Draws.SHARED


def test_an_order_of_the_rows_is_shared():
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        return losses + losses[torch.randperm(len(losses))]

    assert draws_of(build_model("gpt2", rate=0.0), loss, UNITS) is Draws.SHARED


@pytest.mark.parametrize("engine", fast_then_slow(["bookkeeping", "lora", "vmap", "auto"]))
@pytest.mark.parametrize("coin", fast_then_slow(["python", "numpy", "one number"]))
def test_no_engine_lets_two_users_share_a_coin(engine, coin):
    """Each user is tossed for alone: gradients of equal users differ."""
    row = build_rows((1,))[0]

    def toss(rows: int) -> Tensor:
        return torch.tensor(float(COINS[coin](rows)))

    model = build_model("gpt2", rate=0.0)
    engine_ = get_engine(engine)
    engine_(model, with_coin(toss), Units.from_rows([row, row]), l2_clip_norm=1e6)
    loss = with_coin(toss)
    found = engine_(model, loss, Units.from_rows([row] * 4), l2_clip_norm=1e6)
    ratios = found.norms / found.losses
    assert len({round(float(norm), 6) for norm in found.norms}) == 4
    torch.testing.assert_close(ratios, ratios[:1].expand(4), rtol=1e-3, atol=0)


def test_twin_a_pass_with_a_shared_coin_couples_its_users(monkeypatch):
    """Were the coin let through, users of one pass would be alike, and of two passes not."""
    from userdp.gradients.engines import agreement, one_pass
    from userdp.gradients.engines.engine import Task

    monkeypatch.setattr(Task, "draws", Draws.PER_ROW)
    monkeypatch.setattr(one_pass, "watching_draws", lambda *_: torch.enable_grad())
    monkeypatch.setattr(one_pass, "require_no_draws", lambda *_: None)
    monkeypatch.setattr(agreement, "agrees_with_reference", lambda *_: True)
    row = build_rows((1,))[0]
    model, loss = build_model("gpt2", rate=0.0), with_coin(COINS["one number"])
    units = Units.from_rows([row] * 4)
    norms = one_pass_sum(model, loss, units, l2_clip_norm=1e6, micro_batch=2, strict=False).norms
    one, two, three, four = norms.sort().values.tolist()  # who shares a pass is drawn
    assert one == pytest.approx(two, rel=1e-5)
    assert three == pytest.approx(four, rel=1e-5)
    assert one != pytest.approx(three, rel=1e-5)


class Switched(nn.Module):
    """Dropout, and one mask of channels for a whole pass once it is switched over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mode, self.phase, self.options = "rows", 0, {"shared": 0.0}
        self.config = SimpleNamespace(shared=False)
        self.table, self.head = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)

    def forward(self, input_ids: Tensor, **rest: object) -> SimpleNamespace:
        hidden, config = self.table(input_ids), self.config
        if self.mode == "shared" or self.phase or self.options["shared"] or config.shared:
            hidden = hidden * (torch.rand(64) < 0.5).to(hidden)
        else:
            hidden = F.dropout(hidden, 0.1, self.training)
        return SimpleNamespace(logits=self.head(hidden))


SWITCHES = {
    "a word": lambda model: setattr(model, "mode", "shared"),
    "a whole number": lambda model: setattr(model, "phase", 1),
    "an entry": lambda model: model.options.update(shared=0.5),
    "a configuration": lambda model: setattr(model.config, "shared", True),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_invariant_14_a_schedule_that_switches_to_shared_masks_is_noticed(switch):
    model = Switched()
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.PER_ROW
    SWITCHES[switch](model)
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.SHARED


def switched_unseen(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The sum of eight users over a model that has switched, of which its settings do not tell."""
    monkeypatch.setattr(draws, "_settings", lambda model: ())
    model, engine = Switched(), get_engine("bookkeeping")
    model.table.requires_grad_(False)
    units = Units.from_rows([[[2, 20 + unit, 30]] for unit in range(8)])
    engine(model, causal_lm_loss, units, l2_clip_norm=1.0)
    model.mode = "shared"
    return engine(model, causal_lm_loss, units, l2_clip_norm=1.0).value["head.weight"]


def test_invariant_14_a_shared_mask_of_a_multiple_of_the_rows_is_stopped(monkeypatch):
    with pytest.raises(FailureError, match="as it had not before"):
        switched_unseen(monkeypatch)


def test_invariant_14_twin_multiples_let_one_mask_be_everybodys(monkeypatch):
    watching = draws.watching_draws
    monkeypatch.setattr(
        "userdp.gradients.engines.one_pass.watching_draws",
        lambda kind, rows: watching(Draws.FLATTENED if kind is Draws.PER_ROW else kind, rows),
    )
    monkeypatch.setattr("userdp.gradients.engines.one_pass.require_no_draws", lambda *_: None)
    dropped = switched_unseen(monkeypatch).abs().sum(0) == 0
    assert float(dropped.float().mean()) > 0.2  # independent masks of eight users: 0.004


def test_twin_settings_of_switches_and_rates_alone_are_caught(monkeypatch):
    monkeypatch.setattr(draws, "_SIMPLE", (bool, float, type))
    model = Switched()
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.PER_ROW
    SWITCHES["a word"](model)
    assert draws_of(model, causal_lm_loss, UNITS) is Draws.PER_ROW


@pytest.mark.parametrize("engine", fast_then_slow(["bookkeeping", "lora", "vmap", "auto"]))
@pytest.mark.parametrize("draw", fast_then_slow([random.random, np.random.random]))
def test_a_later_pass_that_draws_otherwise_is_stopped(engine, draw):
    calm = {"is": True}

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return causal_lm_loss(model, input_ids, lengths) * (1.0 if calm["is"] else 1 + draw())

    model, engine_ = build_model("gpt2", rate=0.0), get_engine(engine)
    engine_(model, loss, UNITS, l2_clip_norm=1.0)
    calm["is"] = False
    with pytest.raises(FailureError, match="as it had not before"):
        engine_(model, loss, UNITS, l2_clip_norm=1.0)


@pytest.mark.parametrize(
    ("kind", "draw", "right"),
    [
        (Draws.NONE, lambda: None, True),
        (Draws.NONE, lambda: torch.rand(3), False),
        (Draws.PER_ROW, lambda: torch.rand(3, 2), True),
        (Draws.PER_ROW, lambda: torch.rand(6), False),
        (Draws.FLATTENED, lambda: torch.rand(6), True),
        (Draws.FLATTENED, lambda: torch.rand(4), False),
        (Draws.FLATTENED, lambda: torch.rand([]), False),
        (Draws.PER_ROW, lambda: torch.rand(4, 3), False),
        (Draws.PER_ROW, lambda: torch.rand([]), False),
        (Draws.PER_ROW, random.random, False),
        (Draws.PER_ROW, lambda: np.random.random(3), False),
    ],
)
def test_every_pass_is_held_to_what_was_found(kind, draw, right):
    with secret_randomness():
        if right:
            with watching_draws(kind, 3):
                draw()
            return
        with pytest.raises(FailureError), watching_draws(kind, 3):
            draw()


@pytest.mark.parametrize(
    "drawn",
    [
        torch.tensor([True, False, True]),
        torch.tensor([0.0, 0.25, 1.0]),
        torch.tensor([0, 1, 1]),
        torch.tensor([2, 5, 9]),
        torch.tensor([0, 5, 9]),
    ],
    ids=["mask", "uniform", "coins", "indices", "indices from 0"],
)
def test_other_numbers_in_place_of_drawn_ones_keep_their_range(drawn):
    other = _mirrored(drawn)
    assert other.dtype == drawn.dtype
    assert (other != drawn).any()
    if drawn.dtype != torch.bool:
        assert other.min() >= min(drawn.min().item(), 0)
        assert other.max() <= max(drawn.max().item(), 1)


def test_of_all_that_an_operation_draws_only_a_rows_own_part_stays():
    """Whatever else it returns, before or after."""
    numbers = torch.rand(6, 2)

    class Operation:
        tags = (torch.Tag.nondeterministic_seeded,)

        def __call__(self):
            return torch.tensor(7), None, numbers.clone(), numbers.clone()

    count, nothing, *drawn = _OthersDraw(1, 3).ran(Operation(), (), {})
    assert (count.item(), nothing) == (7, None)
    for one in drawn:
        assert torch.equal(one[2:4], numbers[2:4])
        assert (one[:2] != numbers[:2]).any()
        assert (one[4:] != numbers[4:]).any()


def test_a_row_does_not_stand_alone_where_others_decide_how_much_is_drawn():
    """Its own loss does not show it here; what is drawn for it in a later layer would."""
    rows = Units.from_rows([[[1, 2, 3, 4]], [[5, 6, 7, 8]], [[9, 10, 11, 12]]])

    def loss(model, input_ids, lengths, *, by_others):
        if by_others and input_ids[0, 0] == 1:
            torch.rand(3)
        return causal_lm_loss(model, input_ids, lengths)

    model = build_model("gpt2", rate=0.0)
    assert _row_stands_alone(model, partial(loss, by_others=False), rows, 2)
    assert not _row_stands_alone(model, partial(loss, by_others=True), rows, 2)


def test_a_loss_that_is_no_number_on_made_up_rows_is_no_change_from_pass_to_pass():
    def loss(model, input_ids, lengths):
        return causal_lm_loss(model, input_ids, lengths) * float("nan")

    assert draws_of(build_model("gpt2", rate=0.3), loss, UNITS) is Draws.PER_ROW
