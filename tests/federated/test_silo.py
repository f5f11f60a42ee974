"""A silo's round: what it adds up, what it draws, what it charges; and broken silos are caught."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.lattice import candidates, float32_release, lattice_gain
from tests.federated.plans import plan
from tests.federated.toys import WIDTH, ZERO, items, silo, without
from userdp.errors import FailureError, UseError
from userdp.federated.accounting import AccountingName, Algorithm
from userdp.federated.data import SubjectItems
from userdp.federated.ledger import federation_claim
from userdp.federated.plan import FederationPlan
from userdp.federated.silo import Silo
from userdp.ledger.journal import read_entries

PRIVATE = [a for a in Algorithm if a.private]
COUNTS = [3, 1, 2, 3, 3]
C, RATE = 0.5, 0.1


def clip(x):
    norm = np.linalg.norm(x)
    return x if norm <= C else x * C / norm


def oracle_sum(algorithm, data):
    """The clipped sum over all items, in plain NumPy."""
    rows = data.rows.astype(float)
    if algorithm is Algorithm.USER_LDP:
        return clip(rows.mean(0))
    if algorithm is Algorithm.HIGRADAVG:
        return sum(
            np.mean([clip(x) for x in rows[data.subjects == a]], axis=0)
            for a in np.unique(data.subjects)
        )
    return sum(clip(x) for x in rows)


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_a_round_adds_the_clipped_sums_over_the_public_denominator(tmp_path, algorithm):
    data = items(COUNTS)
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0, local_steps=3)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    expected = -RATE * 3 * oracle_sum(algorithm, data) / made.denominator
    assert update == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_fedavg_takes_plain_steps(tmp_path):
    data = items(COUNTS)
    made = plan(algorithm=Algorithm.FEDAVG, sampling_probability=1.0)
    update = silo(tmp_path, made, data).run_round(1, ZERO)["w"]
    assert update == pytest.approx(-RATE * 2 * data.rows.mean(0), rel=1e-4)


def test_invariant_5_the_noise_of_a_silo_tells_nothing_by_its_lattice(tmp_path):
    """`benchmarks.lattice`: within 4 standard errors; its twin is float32 noise, 12 and more."""
    member, std = silo(tmp_path, plan(), items(COUNTS), seed=3), 1.5
    truth, other = candidates(100_000)
    total = {"w": torch.from_numpy(truth.copy())}
    member._add_noise(total, std)
    release, narrow = total["w"].numpy(), float32_release(truth, std, seed=3)
    assert abs(lattice_gain(release, truth=truth, other=other, std=std).errors) < 4
    assert lattice_gain(narrow, truth=truth, other=other, std=std).errors > 12


def allowed(made):
    """How far a subject may move the update, by the table of `federated.accounting`."""
    most = {
        Algorithm.LOCAL_ITEM: made.group_size,
        Algorithm.LOCAL_GROUP: made.group_size,
        Algorithm.HIGRADAVG: 1,
        Algorithm.USER_LDP: 2,
    }[made.algorithm]
    return RATE * made.local_steps * most * C / made.denominator


def moved(folder, made, kind=Silo):
    """The largest move of the update over subjects taken away, with every item drawn."""
    full = items(COUNTS)
    here = silo(folder / "all", made, full, kind=kind).run_round(1, ZERO)["w"]
    return max(
        np.linalg.norm(
            here - silo(folder / f"{a}", made, without(full, a), kind=kind).run_round(1, ZERO)["w"]
        )
        for a in range(len(COUNTS))
    )


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_invariant_3_a_subject_moves_a_round_by_at_most_its_sensitivity(tmp_path, algorithm):
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made) <= allowed(made) * (1 + 1e-6)


class DoesNotClip(Silo):
    def _clipped(self, drawn, offsets):
        found = super()._clipped(drawn, offsets)
        rows = self._rows[drawn].double()
        return {"w": rows.sum(0) if len(offsets) > 2 else rows.mean(0)} if len(drawn) else found


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_broken_twin_of_invariant_3_a_silo_that_does_not_clip_is_caught(tmp_path, algorithm):
    made = plan(1e-9, algorithm=algorithm, sampling_probability=1.0)
    assert moved(tmp_path, made, DoesNotClip) > 1.2 * allowed(made)


def test_a_subjects_items_over_the_cap_count_as_absent(tmp_path):
    data = items([5, 1, 3])
    capped = data.take(np.array([0, 1, 2, 5, 6, 7, 8]))
    made = plan(1e-9, sampling_probability=1.0)
    here = silo(tmp_path / "a", made, data)
    assert here.absent.to_dict() == {"unreadable": 0, "over_the_cap": 2}
    kept = silo(tmp_path / "b", made, capped).run_round(1, ZERO)["w"]
    assert here.run_round(1, ZERO)["w"] == pytest.approx(kept, rel=1e-6)


class HidesTheCap(Silo):
    """Takes what it is given, and lets the ledger find out."""

    def __init__(self, *args, data, **options):
        super().__init__(*args, data=data.take(np.arange(1)), **options)
        self._data = data


def test_broken_twin_a_subject_over_the_cap_is_caught_by_the_ledger_before_its_step(tmp_path):
    twin = silo(tmp_path, plan(), items([4, 1]), kind=HidesTheCap)
    with pytest.raises(FailureError, match="ledger and silo disagree"):
        twin.run_round(1, ZERO)
    assert twin.ledger.attempts == 0


def noise_of_rounds(folder, made, kind=Silo):
    """Updates of a silo whose subjects all left: pure noise, by what it should be."""
    nobody = items([1]).take(np.arange(0))
    here = silo(folder, made, nobody, kind=kind)
    updates = [here.run_round(r, ZERO)["w"] for r in range(1, made.rounds + 1)]
    scale = RATE * made.noise_multiplier * C / made.denominator * math.sqrt(made.local_steps)
    return np.concatenate(updates) / scale


def p_value_of_variance(noise):
    """Two-sided chi-square test that the noise has variance 1; mean 0 is known."""
    square = (noise**2).sum()
    return 2 * min(stats.chi2.cdf(square, len(noise)), stats.chi2.sf(square, len(noise)))


@pytest.mark.parametrize("algorithm", [Algorithm.LOCAL_GROUP, Algorithm.HIGRADAVG])
def test_invariant_5_noise_is_added_at_every_step_and_with_the_planned_variance(
    tmp_path, algorithm
):
    made = plan(3.0, algorithm=algorithm, rounds=25, local_steps=3)
    noise = noise_of_rounds(tmp_path, made)
    assert stats.kstest(noise, "norm").pvalue > 1e-5
    assert p_value_of_variance(noise) > 1e-5


class NoiseOncePerRound(Silo):
    def _add_noise(self, total, noise_std):
        first = self._noised % self.plan.local_steps == 0
        if first:
            self._noise.add_(total, noise_std)
        self._noised += 1  # and lies about it


class NoiseOncePerRoundHonestly(Silo):
    def _add_noise(self, total, noise_std):
        if self._noised % self.plan.local_steps == 0:
            super()._add_noise(total, noise_std)


def test_broken_twin_of_invariant_5_noise_once_per_round_is_caught(tmp_path):
    made = plan(3.0, rounds=25, local_steps=3)
    assert p_value_of_variance(noise_of_rounds(tmp_path / "a", made, NoiseOncePerRound)) < 1e-5
    with pytest.raises(FailureError, match="noise was drawn 1 times in 3 steps"):
        noise_of_rounds(tmp_path / "b", made, NoiseOncePerRoundHonestly)


class HalfTheNoise(Silo):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._noise_std /= 2


def test_broken_twin_of_invariant_1_half_the_noise_is_refused_by_the_silos_ledger(tmp_path):
    with pytest.raises(FailureError, match="ledger and silo disagree"):
        silo(tmp_path, plan(), items(COUNTS), kind=HalfTheNoise).run_round(1, ZERO)


def test_invariant_2_every_item_is_drawn_with_the_plans_probability(tmp_path):
    data = items([1] * 40)
    made = plan(sampling_probability=0.3)
    here = silo(tmp_path, made, data, seed=3)
    sizes = [len(here._draw()) for _ in range(2000)]
    assert abs(np.mean(sizes) - 12) < 4 * math.sqrt(40 * 0.21 / 2000)
    assert np.var(sizes) == pytest.approx(40 * 0.21, rel=0.15)


class FixedBatches(Silo):
    def _draw(self):
        return np.arange(12)


def test_broken_twin_of_invariant_2_fixed_batches_are_caught_by_their_variance(tmp_path):
    here = silo(tmp_path, plan(), items([1] * 40), kind=FixedBatches)
    assert np.var([len(here._draw()) for _ in range(100)]) == 0


class FailsInTheMiddle(Silo):
    def _step(self):
        if self.ledger.attempts == 2:
            raise RuntimeError("the machine went away")
        super()._step()


def test_invariant_7_a_step_is_charged_before_its_data_and_a_cut_round_is_not_taken_up(tmp_path):
    made = plan(local_steps=4)
    twin = silo(tmp_path, made, items(COUNTS), kind=FailsInTheMiddle)
    with pytest.raises(RuntimeError):
        twin.run_round(1, ZERO)
    twin.close()
    again = silo(tmp_path, made, items(COUNTS))
    assert again.ledger.attempts == 2
    with pytest.raises(FailureError, match="began round 1 before"):
        again.run_round(1, ZERO)
    again.run_round(2, ZERO)
    assert again.ledger.attempts == 6
    lines = read_entries(tmp_path / "ledger.jsonl")
    assert [line["kind"] for line in lines].count("release") == 1


def test_a_server_that_asks_for_more_rounds_than_the_plan_is_refused(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    for number in (1, 2):
        here.run_round(number, ZERO)
    for number in (0, 3, 10**9):
        with pytest.raises(FailureError, match=r"the server asks for round|the plan has 2"):
            here.run_round(number, ZERO)
    assert here.ledger.attempts == 4


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
    assert here.ledger.attempts == 2


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
    assert here.ledger.attempts == 0


def test_a_ledger_of_another_federation_is_refused_at_the_start(tmp_path):
    silo(tmp_path, plan(), items(COUNTS)).close()
    for other, index in ((plan(rounds=3), 0), (plan(), 1)):
        with pytest.raises(UseError, match="another federation or of another silo"):
            silo(tmp_path, other, items(COUNTS), index=index)
    with pytest.raises(UseError, match="no silo 3"):
        silo(tmp_path / "b", plan(), items(COUNTS), index=3)


def test_invariant_8_a_federations_claim_comes_from_its_ledgers(tmp_path):
    made = plan(silos_per_subject=2, rounds=3)
    for index, rounds in enumerate((3, 1, 2)):
        here = silo(tmp_path / f"{index}", made, items(COUNTS), index=index)
        for number in range(1, rounds + 1):
            here.run_round(number, ZERO)
    paths = [tmp_path / f"{index}" / "ledger.jsonl" for index in range(3)]
    found = federation_claim(paths)
    assert (found.steps, found.subject_steps, found.complete) == ({0: 6, 1: 2, 2: 4}, 10, False)
    assert found.guarantee == made.guarantee(subject_steps=10)
    # A ledger that is missing is charged in full.
    assert federation_claim(paths[:2]).subject_steps == 12
    with pytest.raises(UseError, match="second ledger"):
        federation_claim([paths[0], paths[0]])


def test_an_edited_silo_ledger_is_refused(tmp_path):
    silo(tmp_path, plan(), items(COUNTS)).run_round(1, ZERO)
    path = tmp_path / "ledger.jsonl"
    path.write_text(path.read_text().replace('"noise_std":0.5', '"noise_std":0.9'))
    with pytest.raises(UseError, match="edited"):
        federation_claim([path])


def paper(algorithm, **changes):
    return FederationPlan.calibrated(
        target_epsilon=4.0,
        **plan_constants(algorithm=algorithm, accounting=AccountingName.PAPER, **changes),
    )


def plan_constants(**changes):
    from tests.federated.plans import constants

    return constants(**changes)


def test_paper_reads_its_noise_off_the_mini_batch_and_claims_nothing(tmp_path):
    made = paper(Algorithm.LOCAL_GROUP, items_per_silo=12, rounds=4, local_steps=1)
    here = silo(tmp_path, made, items(COUNTS))
    here.run_round(1, ZERO)
    assert [len(here._draw()) for _ in range(5)] == [3] * 5
    assert made.paper_noise_of_group(3) > made.paper_noise_of_group(2) > made.noise_multiplier
    claim = federation_claim([tmp_path / "ledger.jsonl"])
    assert claim.guarantee.epsilon == math.inf
    assert "a" in claim.flaws


def test_items_without_subjects_are_refused_when_a_silo_is_made(tmp_path):
    with pytest.raises(UseError, match="no subjects"):
        items([1]).take(np.arange(0)).save(tmp_path / "items.npz")
    data = items(COUNTS)
    data.save(tmp_path / "items.npz")
    assert (tmp_path / "items.npz").stat().st_mode & 0o777 == 0o600
    assert (SubjectItems.load(tmp_path / "items.npz").rows == data.rows).all()
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(UseError, match="cannot read"):
        SubjectItems.load(tmp_path / "bad.npz")
