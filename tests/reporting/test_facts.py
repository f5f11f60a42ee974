"""Reading runs: the ledger decides, and what is no run is refused; the assumptions fit the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ledgers import reserve
from tests.plans import changed_plan, uls_plan
from tests.reporting.conftest import SECOND, MakeRun, examples_plan, users_plan
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.core.vocabulary import round_up
from userdp.ledger import StoreLedger
from userdp.noise.clip_forms import AdaptiveClipping
from userdp.noise.gaussian import FLOATING_POINT_ASSUMPTION, NoiseSampler
from userdp.plans.provenance import Origin, Provenance
from userdp.reporting.assumptions import Grade, assumptions_of
from userdp.reporting.card import base_model_on_hub
from userdp.reporting.facts import read_run, read_runs, read_store_total
from userdp.reporting.page import MOST_TOLD, render_report

SHAPE = {"kind": "gpt2", "layers": 4, "width": 192, "heads": 6, "vocabulary": 4096}
HOST, DEVICE = NoiseSampler.HOST, NoiseSampler.DEVICE


def test_only_allowed_settings_are_read_and_names_are_told_apart(make_run: MakeRun) -> None:
    told = {"users": 1642, "note": "x", "epsilon": 0.0432, "seq_len": 64}
    runs = read_runs([make_run("a/run", facts=told), make_run("b/run")])
    assert dict(runs[0].settings) == {"seq_len": "64", "learning_rate": "0.001"}
    assert [run.name for run in runs] == ["a/run", "b/run"]


BASES = [
    ({"origin": "bundled"}, "the model that comes with userdp", None),
    ({"origin": "new"}, "none: training began with random weights", None),
    ({"origin": "hub", "name": "org/gpt2"}, "“org/gpt2” of the Hugging Face hub", "org/gpt2"),
    ({"origin": "folder", "name": "gpt2"}, "a local folder called “gpt2”", None),
    ({"origin": "memory", "name": "gpt2"}, "a model in memory that calls itself “gpt2”", None),
    ({"origin": "memory", "name": "a/b"}, "a model in memory that calls itself “a/b”", "a/b"),
    ({"origin": "memory"}, "a model in memory", None),
    ({}, "not recorded", None),
]


@pytest.mark.parametrize(("noted", "words", "on_hub"), BASES)
def test_a_name_of_a_base_model_says_what_it_is_worth(make_run, noted, words, on_hub) -> None:
    run = read_run(make_run(facts={"base_model": {**noted, **SHAPE}}))
    base = run.base
    assert (base.called, base_model_on_hub(run)) == (words, on_hub)
    assert base.architecture == "gpt2, 4 layers, width 192, 6 heads, 4,096 tokens in its vocabulary"


@pytest.mark.parametrize("source", [None, Provenance.DP_RELEASE, Provenance.NON_PRIVATE])
def test_only_a_number_of_the_operators_own_is_called_declared(make_run, source) -> None:
    origins = {"population": Origin(source=source, statistic="users")} if source else {}
    run = read_run(make_run(plan=replace(users_plan(), origins=origins)))
    (row,) = [row for row in run.constants.rows if "population" in row[0]]
    assert ("declared" in row[0]) is not bool(origins)


@pytest.mark.pitfall(number=10)
@pytest.mark.parametrize(
    ("delta", "said"),
    [(1e-5, "at most n⁻¹·¹"), (4e-4, "above n⁻¹·¹"), (1e-3, "Careful: δ = 0.001 is not below 1/n")],
)
def test_delta_stands_beside_the_population(make_run: MakeRun, delta, said) -> None:
    found = read_run(make_run(plan=users_plan(target_delta=delta))).delta_beside_population
    assert said in found
    assert "2,000 users" in found


@pytest.mark.parametrize("known", [True, False])
def test_accountants_are_named_with_what_the_second_says(make_run, monkeypatch, known) -> None:
    if not known:
        monkeypatch.setattr("userdp.reporting.facts.second_opinion", lambda *_, **__: None)
    run = read_run(make_run())
    second = round_up(run.guarantee.epsilon * SECOND)
    said = f"dp-accounting, by other mathematics and other code, says ε ≤ {second}"
    assert (said in run.accountants, "dp-accounting" in run.accountants) == (known, known)


def test_the_stores_total_is_of_the_store_of_these_runs(make_run: MakeRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for run_id in ("c0ffee-run", "c0ffee-other"):
        reserve(StoreLedger(store), run_id, users_plan())
    run = read_run(make_run())
    total = read_store_total(store, [run])
    assert total.guarantee == claim(store).guarantee
    words = " ".join(render_report([run], store=total).replace("\u00a0", " ").split())
    assert f"(ε ≤ {round_up(total.guarantee.epsilon)}, δ = 2e-5)-DP per user" in words
    assert "spent so far" in words
    assert "All that was charged" not in render_report([run])
    with pytest.raises(UseError, match="knows no run 'stranger'"):
        read_store_total(store, [read_run(make_run("stranger"))])


# --------------------------------------------------------------------------------- assumptions


def keys(*runs: Path) -> list[str]:
    return [one.key for one in assumptions_of(read_runs(runs))]


def test_assumptions_are_graded_and_fit_the_runs(make_run: MakeRun) -> None:
    users = assumptions_of(read_runs([make_run("a")]))
    assert {one.grade for one in users} == set(Grade)
    assert all(one.grade is Grade.CRITICAL for one in users[:MOST_TOLD])
    assert not {"cap", "owners", "public-scores"} & {one.key for one in users}
    assert "cap" in keys(make_run("c", examples_plan()))
    told = {"store_facts": {"owners": "a record with several owners was given to `the first`"}}
    assert keys(make_run("o", facts=told))[0] == "owners"
    assert keys(make_run("s", facts={"selection": "highest-perplexity"}))[0] == "public-scores"
    assert keys(make_run("g", examples_plan(fixed_graph=True)))[0] == "public-graph"


def noise(*runs: Path) -> str:
    rests = {one.key: one for one in assumptions_of(read_runs(runs))}
    return f"{rests['floating-point'].statement} {rests['randomness'].ensured}"


ADAPTIVE = changed_plan(
    uls_plan(), adaptive=AdaptiveClipping(count_noise_std=5.0, learning_rate=0.2)
)


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        ([{"noise_sampler": HOST}], {HOST}),
        ([{"noise_sampler": DEVICE}], {DEVICE}),
        ([{"noise_sampler": HOST}, {"noise_sampler": DEVICE}], {HOST, DEVICE}),
        # The count of adaptive clipping is drawn on the CPU everywhere.
        ([{"plan": ADAPTIVE, "noise_sampler": DEVICE}], {HOST, DEVICE}),
    ],
)
def test_the_noise_is_told_as_the_ledgers_say_it_was_drawn(make_run, runs, named) -> None:
    said = noise(*(make_run(str(number), **options) for number, options in enumerate(runs)))
    assert FLOATING_POINT_ASSUMPTION in said
    for sampler in (HOST, DEVICE):
        assert (sampler.in_words in said) is (sampler.seeding in said) is (sampler in named)
