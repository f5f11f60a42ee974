"""A silo's round: what it adds up, what it draws, what it asks; and broken silos are caught."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.federated.plans import FACTS, PRIVATE
from tests.federated.toys import COUNTS, WIDTH, ZERO, broken, items, silo, store_of, toy_plan
from tests.speed import fast_then_slow
from userdp.core.errors import FailureError
from userdp.data.records import Record
from userdp.data.selection import select_once
from userdp.data.splits import Split
from userdp.federated import silo as silo_module
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.federation_models import build_model, weights_of
from userdp.federated.federation_plan import STORE, LanguageModel
from userdp.federated.silo import Silo
from userdp.gradients.certificate import coupling
from userdp.gradients.engines import choice
from userdp.sampling.cohort import Sampler
from userdp.sampling.coins import secret_generator

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
def test_a_round_adds_the_clipped_sums_over_the_public_denominator(tmp_path, algorithm):
    data = items(COUNTS)
    counted = {"items_per_silo": 12, "sampling_probability": 1.0, "local_steps": 3}
    made = toy_plan(1e-9, algorithm=algorithm, **counted)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    denominator = 1.0 if algorithm == "fedavg" else made.local.denominator
    expected = -RATE * 3 * oracle_sum(algorithm, data) / denominator
    assert update == pytest.approx(expected, rel=1e-4, abs=1e-7)


def allowed(made):
    """How far a subject may move the update, by Propositions 1 to 3 of docs/federated.md."""
    group_size = made.local.sampling.group_size
    most = {"higradavg-dp": 1, "user-ldp": 2}.get(made.algorithm, group_size)
    return RATE * made.local.steps * most * C / made.local.denominator


def moved(folder, made, kind=Silo):
    """The largest move of the update over subjects taken away, with every item drawn."""
    full = items(COUNTS)
    here = silo(folder / "all", made, full, kind=kind).run_round(1, ZERO)["w"]
    return max(
        np.linalg.norm(
            here - silo(folder / f"{a}", made, full.without(a), kind=kind).run_round(1, ZERO)["w"]
        )
        for a in range(len(COUNTS))
    )


@pytest.mark.parametrize("algorithm", fast_then_slow(PRIVATE))
def test_invariant_3_a_subject_moves_a_round_by_at_most_its_sensitivity(tmp_path, algorithm):
    made = toy_plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made) <= allowed(made) * (1 + 1e-6)


@broken
def does_not_clip(run):
    engine = run.mechanism.engine

    def without(model, loss, units, **options):
        alone = [units.select(n, n + 1).cut()[0] for n in range(len(units))]
        means = [rows.double().sub(5).mean(0) for rows in alone]
        found = engine(model, loss, units, **options)
        return replace(found, value={"w": sum(means, torch.zeros(WIDTH).double())})

    run.mechanism.engine = without


@pytest.mark.parametrize("algorithm", fast_then_slow(PRIVATE))
def test_broken_twin_of_invariant_3_a_silo_that_does_not_clip_is_caught(tmp_path, algorithm):
    made = toy_plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made, does_not_clip) > 1.2 * allowed(made)


def test_a_subjects_items_over_the_cap_never_train(tmp_path):
    data = items([5, 1, 3])
    made = toy_plan(1e-9, sampling_probability=1.0)
    here = silo(tmp_path, made, data)
    split = here.store.split(Split.TRAIN)
    counts, kept = select_once(split, 3)
    users = np.repeat(np.arange(3), counts)
    chosen = kept.map(users, np.concatenate([np.arange(count) for count in counts]))
    rows = split.gather(users, chosen).tokens.reshape(-1, WIDTH).astype(float) - 5
    expected = -RATE * 2 * sum(clip(x) for x in rows) / made.local.denominator
    assert len(rows) == 7
    assert here.run_round(1, ZERO)["w"] == pytest.approx(expected, rel=1e-4, abs=1e-7)


@broken
def hides_the_cap(run):
    """Draws from all items, and lets the ledger find out."""
    wider = replace(run.plan.sampling, group_size=9)
    run.mechanism.sampler = Sampler(wider, run.mechanism.collator.counts, secret_generator())


def test_broken_twin_a_subject_over_the_cap_is_caught_by_the_ledger_before_its_step(tmp_path):
    twin = silo(tmp_path, toy_plan(), items([4, 1]), kind=hides_the_cap)
    with pytest.raises(FailureError, match="ledger and sampler disagree"):
        twin.run_round(1, ZERO)
    assert twin.run.done == 0


def noise_of_rounds(folder, made, kind=Silo):
    """Updates of a silo whose items have no gradient: pure noise, by what it should be."""
    nobody = items([1], scale=0)
    here = silo(folder, made, nobody, kind=kind)
    updates = [here.run_round(r, ZERO)["w"] for r in range(1, made.rounds + 1)]
    planned = made.local.noise.multiplier * C * math.sqrt(made.local.steps)
    scale = RATE * planned / made.local.denominator
    return np.concatenate(updates) / scale


def p_value_of_variance(noise):
    """Two-sided chi-square test that the noise has variance 1; mean 0 is known."""
    square = (noise**2).sum()
    return 2 * min(stats.chi2.cdf(square, len(noise)), stats.chi2.sf(square, len(noise)))


@pytest.mark.parametrize("algorithm", ["local-group-dp", "higradavg-dp"])
def test_invariant_5_noise_is_added_at_every_step_and_with_the_planned_variance(
    tmp_path, algorithm
):
    made = toy_plan(3.0, algorithm=algorithm, rounds=25, local_steps=3)
    noise = noise_of_rounds(tmp_path, made)
    assert stats.kstest(noise, "norm").pvalue > 1e-5
    assert p_value_of_variance(noise) > 1e-5


@broken
def noise_once_per_round(run):
    add, calls = run.mechanism.noise.add_, itertools.count()

    def once(value, noise_std):
        if next(calls) % 3 == 0:
            add(value, noise_std)

    run.mechanism.noise.add_ = once


def test_broken_twin_of_invariant_5_noise_once_per_round_is_caught(tmp_path):
    made = toy_plan(3.0, rounds=25, local_steps=3)
    assert p_value_of_variance(noise_of_rounds(tmp_path, made, noise_once_per_round)) < 1e-5


def test_invariant_3_a_silo_asks_nothing_of_a_model_after_its_first_round(tmp_path, monkeypatch):
    """A server may send weights at which a question fails; whom the silo drew must not ask one.

    Nor does it compute users together: at such weights one would move what all the others add.
    """
    words = LanguageModel(model="new", layers=1, width=8, heads=2, seq_len=32, **FACTS)
    made = toy_plan(model=words, sampling_probability=0.5, rounds=12, items_per_silo=6)
    records = [Record(b"u%d" % n, b"1 2 3 4", n) for n in range(5)]
    store_of([*records, Record(b"alice", b"5 " * 30, 9)], tmp_path / STORE, seq_len=32)
    member = silo(tmp_path, made, None, seed=1)
    weights = weights_of(build_model(words)[0])
    member.run_round(1, weights)
    for name in ("attn.c_attn.weight", "mlp.c_fc.weight"):
        weights[f"transformer.h.0.{name}"] *= 1e4
    questions = [(coupling, "_Question"), (choice, "_disagreement")]
    for module, name in questions:
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


@broken
def half_the_noise(run):
    run.mechanism.noise_std /= 2


def test_broken_twin_of_invariant_1_half_the_noise_is_refused_by_the_silos_ledger(tmp_path):
    with pytest.raises(FailureError, match="ledger and sampler disagree"):
        silo(tmp_path, toy_plan(), items(COUNTS), kind=half_the_noise).run_round(1, ZERO)


@broken
def fixed_batches(run):
    run.mechanism.sampler._draws = itertools.repeat(np.arange(12))


@pytest.mark.parametrize("kind", [Silo, fixed_batches])
def test_invariant_2_every_item_is_drawn_by_a_coin_and_the_broken_twin_is_caught(tmp_path, kind):
    """The twin's batches of a fixed size have the right mean, and no variance."""
    here = silo(tmp_path, toy_plan(sampling_probability=0.3), items([1] * 40), kind=kind, seed=3)
    sampler = here._open(1).mechanism.sampler
    sizes = [len(sampler.draw().users) for _ in range(2000)]
    assert abs(np.mean(sizes) - 12) < 4 * math.sqrt(40 * 0.21 / 2000)
    assert (abs(np.var(sizes) - 40 * 0.21) < 1.3) == (kind is Silo)
