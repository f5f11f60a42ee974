"""A silo's round: the sum it adds up, the noise on it, and the questions it asks of the model.

The steps are those of a private run, whose own tests hold draws, ledger and engines.
"""

import math

import numpy as np
import pytest
from scipy import stats

from tests.federated.toys import COUNTS, FACTS, ZERO, items, plan, silo, store_of
from userdp.data.records import Record
from userdp.federated import silo as silo_module
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.federation_plan import STORE, LanguageModel
from userdp.federated.silo import build_model, weights_of
from userdp.gradients.certificate import coupling
from userdp.gradients.engines import choice

C, RATE = 0.5, 0.1


def clip(x):
    norm = np.linalg.norm(x)
    return x if norm <= C else x * C / norm


def oracle_sum(algorithm, data):
    """What the local steps add up over all items, in plain NumPy."""
    rows = data.rows.astype(float)
    if algorithm == "fedavg":
        return rows.mean(0)
    if algorithm == "user-ldp":
        return clip(rows.mean(0))
    if algorithm == "higradavg-dp":
        return sum(
            np.mean([clip(x) for x in rows[data.subjects == a]], axis=0)
            for a in np.unique(data.subjects)
        )
    return sum(clip(x) for x in rows)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.pitfall(number=19)
def test_invariant_3_a_round_adds_the_clipped_sums_over_the_public_denominator(tmp_path, algorithm):
    data = items(COUNTS)
    counted = {"items_per_silo": 12, "sampling_probability": 1.0, "local_steps": 3}
    made = plan(1e-9, algorithm=algorithm, **counted)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    denominator = 1.0 if algorithm == "fedavg" else made.local.denominator
    expected = -RATE * 3 * oracle_sum(algorithm, data) / denominator
    assert update == pytest.approx(expected, rel=1e-4, abs=1e-7)


def noise_of_rounds(folder, made):
    """Updates of a silo whose items have no gradient: pure noise, by what it should be."""
    here = silo(folder, made, items([1], scale=0))
    updates = [here.run_round(r, ZERO)["w"] for r in range(1, made.rounds + 1)]
    planned = made.local.noise.multiplier * C * math.sqrt(made.local.steps)
    scale = RATE * planned / made.local.denominator
    return np.concatenate(updates) / scale


def p_value_of_variance(noise):
    """Two-sided chi-square test that the noise has variance 1; mean 0 is known."""
    square = (noise**2).sum()
    return 2 * min(stats.chi2.cdf(square, len(noise)), stats.chi2.sf(square, len(noise)))


@pytest.mark.parametrize("algorithm", ["local-group-dp", "higradavg-dp"])
def test_invariant_5_every_step_of_a_round_has_the_planned_noise_and_less_is_caught(
    tmp_path, algorithm
):
    noise = noise_of_rounds(tmp_path, plan(3.0, algorithm=algorithm, rounds=25, local_steps=3))
    assert stats.kstest(noise, "norm").pvalue > 1e-5
    assert p_value_of_variance(noise) > 1e-5
    assert p_value_of_variance(noise / math.sqrt(3)) < 1e-5, "the twin: noise once a round"


def test_invariant_3_a_silo_asks_nothing_of_a_model_after_its_first_round(tmp_path, monkeypatch):
    """A server may send weights at which a question fails; whom the silo drew must not ask one.

    Nor does it compute users together: at such weights one would move what all the others add.
    """
    words = LanguageModel(model="new", layers=1, width=8, heads=2, seq_len=32, **FACTS)
    made = plan(model=words, sampling_probability=0.5, rounds=12, items_per_silo=6)
    records = [Record(b"u%d" % n, b"1 2 3 4") for n in range(5)]
    store_of([*records, Record(b"alice", b"5 " * 30)], tmp_path / STORE, seq_len=32)
    member = silo(tmp_path, made, None, seed=1)
    weights = weights_of(build_model(words)[0])
    member.run_round(1, weights)
    for name in ("attn.c_attn.weight", "mlp.c_fc.weight"):
        weights[f"transformer.h.0.{name}"] *= 1e4
    for module, name in [(coupling, "_Question"), (choice, "_disagreement")]:
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("asked, or together"))
    monkeypatch.setattr(choice, "sum_of_passes", lambda *_, **__: pytest.fail("asked, or together"))
    for number in range(2, 13):
        assert np.isfinite(member.run_round(number, weights)["transformer.wte.weight"]).all()


def test_invariant_3_twin_a_silo_whose_engine_asks_of_each_longer_row_is_caught(
    tmp_path, monkeypatch
):
    honest = silo_module.PrivateOptions
    monkeypatch.setattr(
        silo_module, "PrivateOptions", lambda **k: honest(**{**k, "engine": "auto"})
    )
    with pytest.raises(pytest.fail.Exception, match="asked, or together"):
        test_invariant_3_a_silo_asks_nothing_of_a_model_after_its_first_round(tmp_path, monkeypatch)
