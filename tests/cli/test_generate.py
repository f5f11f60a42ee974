"""`userdp generate`: post-processing with the run's own claim, and what its operator is told."""

import json
import shlex
import stat

import pytest

from tests.cli.test_train import MODEL, changed, prepared, store, train  # noqa: F401
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.training.generation import GenerateConfig, sampled_texts


@pytest.fixture
def run(store, tmp_path, capsys):  # noqa: F811
    assert train(store, tmp_path / "run", *changed(), *MODEL) == 0
    capsys.readouterr()
    return tmp_path / "run"


def generate(capsys, *arguments) -> tuple[int, dict, str]:
    status = userdp(["generate", *map(str, arguments)])
    said = capsys.readouterr()
    return status, json.loads(said.out) if said.out.startswith("{") else {}, said.out + said.err


def test_a_synthetic_data_set_has_the_runs_claim_and_charges_nothing(run, capsys, tmp_path):
    before = claim(run / "ledger.jsonl").guarantee
    out = tmp_path / "synthetic.jsonl"
    options = shlex.split("--records 5 --micro-batch 2 --max-tokens 4 --prompt w1 --json")
    status, said, _ = generate(capsys, run, "--out", out, *options)
    assert status == 0
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert len(texts) == said["records"] == 5
    assert all(text.startswith("w1") for text in texts)
    assert (said["epsilon"], said["delta"]) == (before.epsilon, before.delta)
    assert said["headline"] == claim(run).headline
    assert not said["operator_only"]
    assert stat.S_IMODE(out.stat().st_mode) & 0o044
    assert claim(run / "ledger.jsonl").guarantee == before
    status, said, _ = generate(capsys, run, "--out", out, *options)
    assert status == 2
    assert "--overwrite" in said["hint"]
    assert userdp(["prepare", str(out), "--user", "text", "--out", str(tmp_path / "s")]) == 0


@pytest.mark.slow
def test_the_operator_is_told_of_copies_and_nobody_else(run, store, capsys, tmp_path):  # noqa: F811
    plain = tmp_path / "plain"
    options = ["--set", "plain.steps=300", "--set", "plain.batch_size=8"]
    assert train(store, plain, *options, "--learning-rate", "0.02", *MODEL) == 0
    capsys.readouterr()
    asked = ["--records", 20, "--max-tokens", 6, "--check", store.path, "--check-tokens", 5]
    status, said, _ = generate(capsys, plain, *asked, "--prompt", "w3", "--json")
    assert status == 0
    assert said["epsilon"] == "inf"
    learned = said["check"]["train"]["texts_with_a_copy"]
    assert said["operator_only"]
    _, said, _ = generate(capsys, run, *asked, "--prompt", "w3", "--json")
    assert learned > said["check"]["train"]["texts_with_a_copy"]
    assert said["operator_only"]
    assert "verbatim check" in (run / "operator.jsonl").read_text()
    assert "verbatim" not in (run / "ledger.jsonl").read_text()


def test_texts_of_a_run_without_a_claim_are_the_operators(store, capsys, tmp_path):  # noqa: F811
    plain, out = tmp_path / "plain", tmp_path / "texts.jsonl"
    options = ["--set", "plain.steps=2", "--set", "plain.batch_size=4"]
    assert train(store, plain, *options, *MODEL) == 0
    capsys.readouterr()
    few = ["--records", 1, "--max-tokens", 2, "--out", out]
    status, said, _ = generate(capsys, plain, *few, "--json")
    assert (status, said["operator_only"], said["epsilon"]) == (0, True, "inf")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    _, _, note = generate(capsys, plain, *few, "--overwrite")
    assert "Operator-only" in note
    assert "no ε is claimed: it was trained without privacy" in note


def test_prompts_of_unequal_length_share_a_batch_and_nothing_else(run):
    prompts = ("w1", "w2 w3 w4", "w5 w6")
    one = {"max_tokens": 4, "top_p": 1e-9}  # always the likeliest token
    together = list(sampled_texts(run, GenerateConfig(prompt=prompts, **one), 3))
    alone = [
        next(sampled_texts(run, GenerateConfig(prompt=(prompt,), **one), 1)) for prompt in prompts
    ]
    assert together == alone


@pytest.mark.slow
def test_a_seed_repeats_and_its_absence_does_not(run):
    def sampled(seed):
        how = GenerateConfig(prompt=("w1",), max_tokens=6, seed=seed)
        return [text.tokens for text in sampled_texts(run, how, 8)]

    assert sampled(3) == sampled(3) != sampled(4)
    assert sampled(None) != sampled(None)
