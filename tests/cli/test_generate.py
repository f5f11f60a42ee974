"""`userdp generate`: post-processing with the run's own claim, and what its operator is told."""

import json
import stat
from shutil import copytree

from tests.claims.lives import PLAIN, SHAPE
from userdp.claims import claim
from userdp.training.sampled_texts import GenerateConfig, sampled_texts


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


def test_the_operator_is_told_of_copies_and_nobody_else(place, userdp):
    """That every copy is found is asked in tests/data/test_verbatim.py."""
    asked = ("--records", 20, "--max-tokens", 6, "--check-tokens", 2)
    line = ("generate", place / "run", *asked, "--check", place / "store", "--json")
    said = json.loads(userdp(*line)[1])
    assert (said["operator_only"], said["check"]["texts"]) == (True, 20)
    assert {"train", "held-out-users"} <= said["check"].keys()
    assert "verbatim check" in (place / "run" / "operator.jsonl").read_text()
    assert "verbatim" not in (place / "run" / "ledger.jsonl").read_text()


def test_texts_of_a_run_without_a_claim_are_the_operators(store, userdp, tmp_path):
    run, out = tmp_path / "plain", tmp_path / "texts.jsonl"
    assert userdp("train", store.path, "--out", run, *PLAIN, *SHAPE)[0] == 0
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


def test_penalties_that_a_base_model_brings_do_not_change_the_law_of_the_texts(place, tmp_path):
    """transformers applies what ``generation_config.json`` says."""
    run, how = copytree(place / "run", tmp_path / "run"), GenerateConfig(max_tokens=40, seed=1)
    (run / "model" / "generation_config.json").write_text('{"repetition_penalty": 30.0}')
    assert list(sampled_texts(run, how, 2)) == list(sampled_texts(place / "run", how, 2))


def test_prompts_of_unequal_length_share_a_batch_and_nothing_else(place):
    run, prompts = place / "run", ("w1", "w2 w3 w4", "w5 w6")

    def sampled(*texts):  # always the likeliest token
        how = GenerateConfig(prompt=texts, max_tokens=4, top_p=1e-9)
        return list(sampled_texts(run, how, len(texts)))

    assert sampled(*prompts) == [*sampled(prompts[0]), *sampled(prompts[1]), *sampled(prompts[2])]
