"""A silo's round: what it adds up, what it draws, what it charges; and broken silos are caught."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.lattice import candidates, float32_release, lattice_gain
from tests.federated.plans import FACTS, PRIVATE
from tests.federated.plans import plan as any_plan
from tests.federated.toys import TOY, WIDTH, ZERO, items, silo, store_of
from tests.speed import fast_then_slow
from userdp.claims import claim
from userdp.data.records import Record
from userdp.data.selection import fixed_selection
from userdp.data.splits import Split
from userdp.errors import FailureError, UseError
from userdp.federated import silo as silo_module
from userdp.federated.claim import federation_claim
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import STORE, LanguageModel
from userdp.federated.silo import Silo
from userdp.gradients import coupling, draws
from userdp.gradients.engines import agreement, choice
from userdp.ledger import StoreLedger
from userdp.ledger.journal import read_entries
from userdp.sampling.coins import secret_generator


def plan(*given, **changes):
    return any_plan(*given, **({"model": TOY} | changes))


COUNTS = [3, 1, 2, 3, 3]
C, RATE = 0.5, 0.1


def clip(x):
    norm = np.linalg.norm(x)
    return x if norm <= C else x * C / norm


def oracle_sum(algorithm, data):
    """The clipped sum over all items, in plain NumPy."""
    rows = data.rows.astype(float)
    if algorithm == "user-ldp":
        return clip(rows.mean(0))
    if algorithm == "higradavg-dp":
        return sum(
            np.mean([clip(x) for x in rows[data.subjects == a]], axis=0)
            for a in np.unique(data.subjects)
        )
    return sum(clip(x) for x in rows)


@pytest.mark.parametrize("algorithm", PRIVATE)
@pytest.mark.pitfall(number=19)
def test_a_round_adds_the_clipped_sums_over_the_public_denominator(tmp_path, algorithm):
    data = items(COUNTS)
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0, local_steps=3)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    expected = -RATE * 3 * oracle_sum(algorithm, data) / made.local.denominator
    assert update == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_fedavg_takes_plain_steps(tmp_path):
    data = items(COUNTS)
    made = plan(algorithm="fedavg", items_per_silo=len(data.rows), sampling_probability=1.0)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    assert update == pytest.approx(-RATE * 2 * data.rows.mean(0), rel=1e-4)


def test_invariant_5_the_noise_of_a_silo_tells_nothing_by_its_lattice(tmp_path):
    """`benchmarks.lattice`: within 4 standard errors; its twin is float32 noise, 12 and more."""
    member, std = silo(tmp_path, plan(), items(COUNTS), seed=3), 1.5
    truth, other = candidates(100_000)
    total = {"w": torch.from_numpy(truth.copy())}
    member._open(1)._noise.add_(total, std)
    release, narrow = total["w"].numpy(), float32_release(truth, std, seed=3)
    assert abs(lattice_gain(release, truth=truth, other=other, std=std).errors) < 4
    assert lattice_gain(narrow, truth=truth, other=other, std=std).errors > 12


def allowed(made):
    """How far a subject may move the update, by Propositions 1 to 3 of docs/federated.md."""
    group_size = made.local.sampling.group_size
    most = {
        "local-item-dp": group_size,
        "local-group-dp": group_size,
        "higradavg-dp": 1,
        "user-ldp": 2,
    }[made.algorithm]
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
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made) <= allowed(made) * (1 + 1e-6)


class DoesNotClip(Silo):
    def _open(self, number):
        run = super()._open(number)
        clip = run._clip

        def without(units):
            means = [rows.double().sub(5).mean(0) for rows, *_ in units]
            return replace(clip(units), value={"w": sum(means, torch.zeros(WIDTH).double())})

        run._clip = without
        return run


@pytest.mark.parametrize("algorithm", fast_then_slow(PRIVATE))
def test_broken_twin_of_invariant_3_a_silo_that_does_not_clip_is_caught(tmp_path, algorithm):
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made, DoesNotClip) > 1.2 * allowed(made)


def test_a_subjects_items_over_the_cap_never_train(tmp_path):
    data = items([5, 1, 3])
    made = plan(1e-9, sampling_probability=1.0)
    here = silo(tmp_path, made, data)
    split = here.store.split(Split.TRAIN)
    counts, kept = fixed_selection(split, 3)
    users = np.repeat(np.arange(3), counts)
    chosen = kept.map(users, np.concatenate([np.arange(count) for count in counts]))
    rows = split.gather(users, chosen).tokens.reshape(-1, WIDTH).astype(float) - 5
    expected = -RATE * 2 * sum(clip(x) for x in rows) / made.local.denominator
    assert len(rows) == 7
    assert here.run_round(1, ZERO)["w"] == pytest.approx(expected, rel=1e-4, abs=1e-7)


class HidesTheCap(Silo):
    """Draws from all items, and lets the ledger find out."""

    def _open(self, number):
        run = super()._open(number)
        wider = replace(self.plan.local.sampling, group_size=9)
        run._sampler = wider.sampler(self.store.split(Split.TRAIN).counts, secret_generator())
        return run


def test_broken_twin_a_subject_over_the_cap_is_caught_by_the_ledger_before_its_step(tmp_path):
    twin = silo(tmp_path, plan(), items([4, 1]), kind=HidesTheCap)
    with pytest.raises(FailureError, match="ledger and sampler disagree"):
        twin.run_round(1, ZERO)
    assert twin.run.done == 0


def noise_of_rounds(folder, made, kind=Silo):
    """Updates of a silo whose items have no gradient: pure noise, by what it should be."""
    nobody = items([1], scale=0)
    here = silo(folder, made, nobody, kind=kind)
    updates = [here.run_round(r, ZERO)["w"] for r in range(1, made.rounds + 1)]
    scale = (
        RATE
        * made.local.noise.multiplier
        * C
        / made.local.denominator
        * math.sqrt(made.local.steps)
    )
    return np.concatenate(updates) / scale


def p_value_of_variance(noise):
    """Two-sided chi-square test that the noise has variance 1; mean 0 is known."""
    square = (noise**2).sum()
    return 2 * min(stats.chi2.cdf(square, len(noise)), stats.chi2.sf(square, len(noise)))


@pytest.mark.parametrize("algorithm", ["local-group-dp", "higradavg-dp"])
def test_invariant_5_noise_is_added_at_every_step_and_with_the_planned_variance(
    tmp_path, algorithm
):
    made = plan(3.0, algorithm=algorithm, rounds=25, local_steps=3)
    noise = noise_of_rounds(tmp_path, made)
    assert stats.kstest(noise, "norm").pvalue > 1e-5
    assert p_value_of_variance(noise) > 1e-5


class NoiseOncePerRound(Silo):
    def _open(self, number):
        run, calls = super()._open(number), []
        add = run._noise.add_

        def once(value, noise_std):
            if len(calls) % self.plan.local.steps == 0:
                add(value, noise_std)
            calls.append(noise_std)

        run._noise.add_ = once
        return run


def test_broken_twin_of_invariant_5_noise_once_per_round_is_caught(tmp_path):
    made = plan(3.0, rounds=25, local_steps=3)
    assert p_value_of_variance(noise_of_rounds(tmp_path, made, NoiseOncePerRound)) < 1e-5


class HalfTheNoise(Silo):
    def _open(self, number):
        run = super()._open(number)
        run._noise_std /= 2
        return run


def test_broken_twin_of_invariant_1_half_the_noise_is_refused_by_the_silos_ledger(tmp_path):
    with pytest.raises(FailureError, match="ledger and sampler disagree"):
        silo(tmp_path, plan(), items(COUNTS), kind=HalfTheNoise).run_round(1, ZERO)


def test_invariant_2_every_item_is_drawn_with_the_plans_probability(tmp_path):
    data = items([1] * 40)
    made = plan(sampling_probability=0.3)
    here = silo(tmp_path, made, data, seed=3)
    sampler = here._open(1)._sampler
    sizes = [sampler.draw().rows for _ in range(2000)]
    assert abs(np.mean(sizes) - 12) < 4 * math.sqrt(40 * 0.21 / 2000)
    assert np.var(sizes) == pytest.approx(40 * 0.21, rel=0.15)


class FixedBatches(Silo):
    def _open(self, number):
        run = super()._open(number)
        run._sampler._draws = itertools.repeat(np.arange(12))
        return run


def test_broken_twin_of_invariant_2_fixed_batches_are_caught_by_their_variance(tmp_path):
    sampler = silo(tmp_path, plan(), items([1] * 40), kind=FixedBatches)._open(1)._sampler
    assert np.var([sampler.draw().rows for _ in range(100)]) == 0


class FailsInTheMiddle(Silo):
    def _open(self, number):
        run = super()._open(number)
        draw = run._sampler.draw

        def fails():
            if run.done == 3:
                raise RuntimeError("the machine went away")
            return draw()

        run._sampler.draw = fails
        return run


def test_invariant_7_a_step_is_charged_before_its_data_and_a_cut_round_is_not_taken_up(tmp_path):
    made = plan(local_steps=4)
    twin = silo(tmp_path, made, items(COUNTS), kind=FailsInTheMiddle)
    with pytest.raises(RuntimeError):
        twin.run_round(1, ZERO)
    twin.close()
    again = silo(tmp_path, made, items(COUNTS))
    with pytest.raises(FailureError, match="began round 1 before"):
        again.run_round(1, ZERO)
    again.run_round(2, ZERO)
    assert again.run.done == 7
    again.close()
    kinds = [line["kind"] for line in read_entries(tmp_path / "run" / "ledger.jsonl")]
    # An opening by each process, and no end: its whole plan stays reserved.
    assert kinds == ["run", "open", *["attempt"] * 3, "open", *["attempt"] * 4]
    (charge,) = StoreLedger(tmp_path / "store").charges()
    assert (charge.steps, charge.settled) == (8, False)


def test_invariant_12_a_silos_store_is_charged_with_its_whole_plan_before_its_first_step(tmp_path):
    made = plan(silos=6, silos_per_round=2, rounds=9)
    index = max(range(6), key=made.rounds_of_silos.__getitem__)
    numbers = [number for number in range(1, 10) if index in made.schedule(number)]
    here = silo(tmp_path, made, items(COUNTS), index=index)
    here.run_round(numbers[0], ZERO)
    (charge,) = StoreLedger(tmp_path / "store").charges()
    assert charge.plan == made.of_silo(index)
    assert charge.steps == 2 * len(numbers)
    for number in numbers[1:]:
        here.run_round(number, ZERO)
    (charge,) = StoreLedger(tmp_path / "store").charges()
    assert (charge.steps, charge.settled) == (2 * len(numbers), True)


def test_a_server_that_asks_for_more_rounds_than_the_plan_is_refused(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    for number in (1, 2):
        here.run_round(number, ZERO)
    for number in (0, 3, 10**9):
        with pytest.raises(FailureError, match=r"the server asks for round|the plan has 2"):
            here.run_round(number, ZERO)
    assert here.run.done == 4


def test_a_server_that_asks_a_silo_out_of_turn_is_refused(tmp_path):
    made = plan(silos=6, silos_per_round=2, rounds=9)
    number = next(r for r in range(1, 10) if 0 not in made.schedule(r))
    here = silo(tmp_path, made, items(COUNTS))
    with pytest.raises(FailureError, match="does not run by"):
        here.run_round(number, ZERO)


def test_a_server_that_restarts_gets_the_same_update_again_and_nothing_is_charged(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    first = here.run_round(1, ZERO)["w"]
    other = {"w": np.ones(WIDTH, dtype=np.float32)}
    assert (here.run_round(1, other)["w"] == first).all()
    assert here.run.done == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"v": ZERO["w"]},
        {"w": np.zeros(WIDTH + 1, dtype=np.float32)},
        {"w": np.full(WIDTH, np.nan, dtype=np.float32)},
        {"w": np.zeros(WIDTH)},
    ],
)
def test_another_models_weights_are_refused_and_cost_nothing(tmp_path, bad):
    here = silo(tmp_path, plan(), items(COUNTS))
    with pytest.raises(UseError):
        here.run_round(1, bad)
    assert not (tmp_path / "store" / "ledger.jsonl").exists()


def test_a_run_of_another_federation_is_refused_at_the_start(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    here.run_round(1, ZERO)
    here.close()
    for other, index in ((plan(rounds=3), 0), (plan(), 1)):
        with pytest.raises(UseError, match="another federation or of another silo"):
            silo(tmp_path, other, items(COUNTS), index=index)
    with pytest.raises(UseError, match="no silo 3"):
        silo(tmp_path / "b", plan(), items(COUNTS), index=3)


def test_a_silo_works_in_one_process_at_a_time(tmp_path):
    here, other = (silo(tmp_path, plan(), items(COUNTS)) for _ in range(2))
    here.run_round(1, ZERO)
    with pytest.raises(FailureError, match="in use by another process"):
        other.run_round(2, ZERO)


def test_invariant_8_a_federations_claim_is_its_whole_plans_whatever_ran(tmp_path):
    made = plan(silos_per_subject=2, rounds=3)
    for index, rounds in enumerate((3, 1, 2)):
        here = silo(tmp_path / f"{index}", made, items(COUNTS), index=index)
        for number in range(1, rounds + 1):
            here.run_round(number, ZERO)
    runs = [tmp_path / f"{index}" / "run" for index in range(3)]
    found = federation_claim(made, runs)
    assert (found.steps, found.subject_steps, found.complete) == ({0: 6, 1: 2, 2: 4}, 12, False)
    assert found.guarantee == made.guarantee()
    # A ledger that is missing is charged in full.
    assert federation_claim(made, runs[:2]).guarantee == made.guarantee()
    assert [part.in_words for part in found.claim.parts] == ["all rounds of local-group-dp"]
    with pytest.raises(UseError, match="second ledger"):
        federation_claim(made, [runs[0], runs[0]])
    with pytest.raises(UseError, match="another federation"):
        federation_claim(plan(rounds=3), runs)


def test_what_the_stores_were_charged_besides_is_told_beside_the_claim(tmp_path):
    """Somebody took the run's folder away, and all began anew in the same store."""
    made = plan()
    for number in range(2):
        silo(tmp_path, made, items(COUNTS)).run_round(1, ZERO)
        (tmp_path / "run").rename(tmp_path / f"run {number}")
        for name in ("begun.json", "released.safetensors"):
            (tmp_path / name).unlink()
    held = set(StoreLedger(tmp_path / "store").history().charges)
    (tmp_path / "run 1").rename(tmp_path / "run")
    told = federation_claim(made, [tmp_path / "run"])
    (first,) = [part for part in told.claim.parts if part.id in held]
    both = made.guarantee().epsilon + first.guarantee().epsilon
    assert told.guarantee.epsilon == pytest.approx(both)


def test_known_seeds_void_the_claim_of_a_federation(tmp_path):
    made = plan()
    silo(tmp_path, made, items(COUNTS), seed=3).run_round(1, ZERO)
    assert federation_claim(made, [tmp_path / "run"]).guarantee.epsilon == math.inf


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_the_core_reads_the_ledgers_of_silos_like_any_others(tmp_path, algorithm):
    made = plan(algorithm=algorithm)
    here = silo(tmp_path, made, items(COUNTS))
    for number in (1, 2):
        here.run_round(number, ZERO)
    own = claim(tmp_path / "run" / "ledger.jsonl")
    assert own.complete
    assert own.guarantee == claim(tmp_path / "store").guarantee == made.of_silo(0).guarantee()


def test_an_edited_silo_ledger_is_refused(tmp_path):
    silo(tmp_path, plan(), items(COUNTS)).run_round(1, ZERO)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"noise_std":0.5', '"noise_std":0.9'))
    with pytest.raises(UseError, match="edited"):
        federation_claim(plan(), [tmp_path / "run"])


def test_invariant_3_a_silo_asks_nothing_of_a_model_after_its_first_round(tmp_path, monkeypatch):
    """A server may send weights at which a question fails; whom the silo drew must not ask one.

    Nor does it compute users together: at such weights one would move what all the others add.
    """
    words = LanguageModel(model="new", layers=1, width=8, heads=2, seq_len=32, **FACTS)
    made = plan(model=words, sampling_probability=0.5, rounds=12, items_per_silo=6)
    records = [Record(b"u%d" % n, b"1 2 3 4", n) for n in range(5)]
    store_of([*records, Record(b"alice", b"5 " * 30, 9)], tmp_path / STORE, seq_len=32)
    member = silo(tmp_path, made, None, seed=1)
    weights = weights_of(build_model(words)[0])
    member.run_round(1, weights)
    for name in ("attn.c_attn.weight", "mlp.c_fc.weight"):
        weights[f"transformer.h.0.{name}"] *= 1e4
    questions = [(coupling, "_coupling"), (draws, "_watched"), (agreement, "_agrees")]
    for module, name in questions:
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("asked, or together"))
    for name in choice._BATCHED:
        monkeypatch.setitem(choice._BATCHED, name, lambda _: pytest.fail("asked, or together"))
    for number in range(2, 13):
        assert np.isfinite(member.run_round(number, weights)["transformer.wte.weight"]).all()


def test_invariant_3_twin_a_silo_whose_engine_asks_of_each_longer_row_is_caught(
    tmp_path, monkeypatch
):
    honest = silo_module.make_private
    monkeypatch.setattr(
        silo_module, "make_private", lambda *a, **k: honest(*a, **k | {"engine": "bookkeeping"})
    )
    with pytest.raises(pytest.fail.Exception, match="asked, or together"):
        test_invariant_3_a_silo_asks_nothing_of_a_model_after_its_first_round(tmp_path, monkeypatch)
