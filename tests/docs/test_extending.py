"""The examples of "Extending userdp": each runs, is short, and keeps what it promises."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import userdp
from tests.accounting.oracles import gaussian_delta
from tests.gradients.batches import reason_alone
from tests.plans import changed_plan, uls_plan
from tests.training.toy import run_all, toy_model, toy_store
from userdp.data.records import Drop, Tally
from userdp.gradients import Units
from userdp.gradients.clip_factors import ClipRule
from userdp.plans import Plan
from userdp.sampling.draws import Sampler

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "extending"


sys.path.append(str(EXAMPLES))


@pytest.fixture
def store(tmp_path):
    return toy_store(tmp_path)


def test_a_form_of_ones_own_scales_a_units_gradient_as_it_says():
    import_module("own_clip")  # registers its form
    smooth = ClipRule(form="smooth")
    squares = torch.tensor([0.0, 1.0, 9.0, math.inf, math.nan]).double()
    factors = smooth.factors({"w": squares}, {"w": 1}, l2_clip_norm=2.0)["w"]
    expected = [1.0, 2 / math.hypot(2, 1), 2 / math.hypot(2, 3), 0.0, 0.0]
    assert factors.tolist() == pytest.approx(expected, rel=1e-9)


class TestOwnSampling:
    def plan(self) -> Plan:
        sampling = import_module("own_sampling").EveryUser(group_size=2)
        return changed_plan(uls_plan(noise_multiplier=4.0, steps=3), sampling=sampling)

    def test_its_price_is_that_of_gaussian_mechanisms_by_the_closed_form(self):
        plan = self.plan()
        epsilon, mu = plan.guarantee().epsilon, math.sqrt(3) / 4.0
        assert plan.guarantee().delta == pytest.approx(float(gaussian_delta(mu, epsilon)), rel=1e-3)

    def test_everybody_is_in_every_cohort_and_the_ledger_prices_it(self, store, tmp_path):
        plan = self.plan()
        sampler = Sampler(plan.sampling, np.array([1, 5, 2]), np.random.default_rng(0))
        assert sampler.draw().units == sampler.draw().units == 3
        run_all(toy_model(store), store.path, plan, tmp_path / "run")
        from userdp.claims import claim

        assert claim(tmp_path / "run").guarantee == plan.guarantee()
        assert Plan.load(tmp_path / "run" / "plan.json") == plan


class TestOwnSource:
    LOG = (
        "[12:30] <ana> good morning\n[12:31] <ben> hello ana\n*** ben has left\n[12:32] <ana> \n"
        "[12:33] <> who am I\n[12:34] <ana> bye\n"
    )

    def test_every_line_is_a_record_or_a_counted_drop(self, tmp_path):
        (tmp_path / "day.irc").write_text(self.LOG)
        import_module("own_source")
        from userdp.core.stages import Progress
        from userdp.data.sources import open_source

        source, tally = open_source([str(tmp_path)]), Tally()
        assert [(one.user, one.text) for one in list(source.records(tally, Progress()))] == [
            (b"ana", b"good morning"), (b"ben", b"hello ana"), (b"ana", b"bye"),
        ]  # fmt: skip
        assert tally.records_read == 6
        assert tally.drops == {Drop.UNREADABLE: 1, Drop.NO_USER: 1, Drop.EMPTY_TEXT: 1}


class Gated(nn.Module):
    """PReLU between two linear layers, with one slope or with one a channel."""

    def __init__(self, slopes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 8)
        self.into, self.gate, self.out = nn.Linear(8, 12), nn.PReLU(slopes), nn.Linear(12, 32)

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.out(self.gate((self.into(self.words(ids)) * real[..., None].float()).sum(1)))


def gated_loss(model, input_ids, lengths):
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    ids = torch.where(real, input_ids, 0)
    return nn.functional.cross_entropy(model(ids, real), ids[:, 0], reduction="none")


class TestOwnLayerRule:
    def task(self, slopes: int) -> tuple[nn.Module, Units]:
        torch.manual_seed(0)
        ids = torch.randint(0, 32, (12, 6), generator=torch.Generator().manual_seed(1))
        lengths, offsets = torch.full((12,), 6), torch.arange(0, 13, 2)
        return Gated(slopes), Units(input_ids=ids, lengths=lengths, offsets=offsets)

    @pytest.mark.parametrize("slopes", [1, 12])
    def test_the_comparison_with_one_unit_at_a_time_lets_it_pass(self, slopes):
        import_module("own_layer_rule")
        model, units = self.task(slopes)
        assert reason_alone(model, gated_loss, units) is None

    def test_twin_a_rule_with_half_the_gradient_is_not_used(self, monkeypatch):
        module = import_module("own_layer_rule")
        kept = module.wide
        monkeypatch.setattr(module, "wide", lambda gradient: kept(gradient) / 2)
        model, units = self.task(1)
        assert reason_alone(model, gated_loss, units) is not None


class TestModelsOfAnyKind:
    def test_a_gru_trains_and_its_claim_is_the_plans(self, store, tmp_path):
        plan = uls_plan(steps=2)
        import_module("gru_language_model").train(store, plan, str(tmp_path / "run"))
        assert userdp.claim(tmp_path / "run").guarantee == plan.guarantee()
