"""`userdp generate`: post-processing with the run's own claim, and what its operator is told."""

import json
import stat

import pytest

from tests.cli.test_train import MODEL
from userdp.claims import claim
from userdp.training.sampled_texts import GenerateConfig, sampled_texts


@pytest.fixture
def trained(store, tmp_path, userdp):
    """Trains a run of this name."""

    def run(name, *options):
        assert userdp("train", store.path, "--out", tmp_path / name, *options, *MODEL)[0] == 0
        return tmp_path / name

    return run


def plain(steps):
    return ("--set", f"plain.steps={steps}", "--set", "plain.batch_size=8")


def test_a_synthetic_data_set_has_the_runs_claim_and_charges_nothing(place, userdp, tmp_path):
    run, out = place / "run", tmp_path / "synthetic.jsonl"
    before = claim(run / "ledger.jsonl").guarantee
    few = ("--records", 5, "--micro-batch", 2, "--max-tokens", 4, "--prompt", "w1", "--json")
    said = json.loads(userdp("generate", run, "--out", out, *few)[1])
    texts = [json.loads(one) for one in out.read_text().splitlines()]
    assert len(texts) == said["records"] == 5
    assert all(one["text"].startswith("w1") for one in texts)
    assert (said["epsilon"], said["delta"]) == (before.epsilon, before.delta)
    assert said["headline"] == claim(run).headline
    assert not said["operator_only"]
    assert stat.S_IMODE(out.stat().st_mode) & 0o044
    assert claim(run / "ledger.jsonl").guarantee == before
    assert userdp("prepare", out, "--user", "text", "--out", tmp_path / "s")[0] == 0


@pytest.mark.slow
def test_the_operator_is_told_of_copies_and_nobody_else(trained, place, store, userdp):
    learned, private = trained("a", *plain(300), "--learning-rate", 0.02), place / "run"
    asked = ("--records", 20, "--max-tokens", 6, "--check", store.path, "--check-tokens", 5)
    copies = []
    for run in (learned, private):
        said = json.loads(userdp("generate", run, *asked, "--prompt", "w3", "--json")[1])
        assert said["operator_only"]
        copies.append(said["check"]["train"]["texts_with_a_copy"])
    assert copies[0] > copies[1]
    assert "verbatim check" in (private / "operator.jsonl").read_text()
    assert "verbatim" not in (private / "ledger.jsonl").read_text()


def test_texts_of_a_run_without_a_claim_are_the_operators(trained, userdp, tmp_path):
    run, out = trained("plain", *plain(2)), tmp_path / "texts.jsonl"
    few = ("--records", 1, "--max-tokens", 2, "--out", out)
    said = json.loads(userdp("generate", run, *few, "--json")[1])
    assert (said["operator_only"], said["epsilon"]) == (True, "inf")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    _, told, _ = userdp("generate", run, *few, "--overwrite")
    assert "Operator-only" in told
    assert "no ε is claimed: people's text was trained on without privacy" in told


def test_a_seed_gives_the_same_texts_again(place):
    first, again, other = (
        list(sampled_texts(place / "run", GenerateConfig(max_tokens=6, seed=seed), 4))
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_prompts_of_unequal_length_share_a_batch_and_nothing_else(place):
    run, prompts = place / "run", ("w1", "w2 w3 w4", "w5 w6")

    def sampled(*texts):  # always the likeliest token
        how = GenerateConfig(prompt=texts, max_tokens=4, top_p=1e-9)
        return list(sampled_texts(run, how, len(texts)))

    assert sampled(*prompts) == [*sampled(prompts[0]), *sampled(prompts[1]), *sampled(prompts[2])]
