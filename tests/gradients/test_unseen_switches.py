"""Masks that rows share, or know, once a switch is thrown that no setting of a module tells of.

Each pass is held to what made-up rows told: whose coins are whose is followed, pass for pass.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.errors import FailureError
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.draws import Draws, draws_of

UNITS = Units.from_rows([[[2, 3, 4, 5]]] * 8)


class Paths(nn.Module):
    """Drops whole rows; switched, one coin decides for all rows, or everybody knows the coins."""

    shared = known = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids: Tensor, **rest: object) -> SimpleNamespace:
        hidden = self.table(input_ids)
        coins = F.dropout(torch.ones(len(hidden), 1, 1), 0.5, self.training)
        return SimpleNamespace(logits=self.head(hidden * (coins[:1] if self.shared else coins)))


class Seeded(Paths):
    """Draws nothing; switched, it drops by coins that everybody knows, and puts states back."""

    def forward(self, input_ids: Tensor, **rest: object) -> SimpleNamespace:
        hidden = self.table(input_ids)
        if self.known:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                hidden = F.dropout(hidden, 0.5, self.training)
        return SimpleNamespace(logits=self.head(hidden))


@pytest.fixture(autouse=True)
def switched_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paths, "shared", False)
    monkeypatch.setattr(Seeded, "known", False)


def norms_once_switched(model: nn.Module, switch: str) -> Tensor:
    """Of alike users, after a step before the switch."""
    engine = get_engine("bookkeeping")
    engine(model, causal_lm_loss, UNITS, l2_clip_norm=1.0)
    setattr(type(model), switch, True)
    return engine(model, causal_lm_loss, UNITS, l2_clip_norm=1.0).norms


def test_invariant_14_one_coin_for_all_rows_of_a_pass_is_stopped() -> None:
    assert draws_of(Paths(), causal_lm_loss, UNITS) is Draws.PER_ROW
    with pytest.raises(FailureError, match="users of one pass may share them"):
        norms_once_switched(Paths(), "shared")


def test_invariant_14_twin_alone_under_the_masks_of_the_pass_users_share_a_coin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "userdp.gradients.engines.one_pass.require_no_draws", lambda kind, names: None
    )
    norms = norms_once_switched(Paths(), "shared")
    torch.testing.assert_close(norms, norms[:1].expand(8))  # independent coins: once in 128


def test_invariant_14_coins_that_are_thrown_behind_the_states_are_stopped() -> None:
    assert draws_of(Seeded(), causal_lm_loss, UNITS) is Draws.NONE
    with pytest.raises(FailureError, match="as it had not before"):
        norms_once_switched(Seeded(), "known")


def test_invariant_14_twin_states_alone_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike users differ by their place in the pass: their masks hang on who else is there."""
    monkeypatch.setattr("userdp.gradients.engines.one_pass.require_drawn", lambda kind, drew: None)
    norms = norms_once_switched(Seeded(), "known")
    assert float(norms.max() / norms.min()) > 1.01
