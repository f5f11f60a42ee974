"""A reviewer without the data: what `userdp verify` finds in an export, and what it believes."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

import userdp
from tests.claims.lives import PLAN
from tests.exports import make_key, make_runs
from userdp.claims import verify as verify_module
from userdp.claims.claims import run_claim
from userdp.claims.released_files import STATEMENT
from userdp.claims.signed_statement import (
    ENVELOPE,
    encoded,
    envelope_of,
    private_key,
    public_key,
    statement_of,
    why_unsigned,
)
from userdp.claims.verify import verify
from userdp.core.errors import UseError
from userdp.ledger import RunRecord, journal

pytest.importorskip("securesystemslib", reason="the extra sign is not installed")
PRICE = PLAN.guarantee().epsilon


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """``shared``: an export with adapters, signed by the key in ``key.pem``."""
    folder = make_runs(tmp_path_factory.mktemp("runs"))
    private, _ = make_key(folder)
    make_key(folder, "other")
    userdp.export(folder / "adapted", out=folder / "shared", sign=private)
    return folder


@pytest.fixture
def shared(made, tmp_path) -> Path:
    return shutil.copytree(made / "shared", tmp_path / "shared")


@pytest.fixture
def key(made) -> Path:
    return made / "key.pub"


def statement_in(shared: Path) -> dict:
    return json.loads((shared / STATEMENT).read_text())


def state_anew(shared: Path, **claim: object) -> None:
    """What anybody can do: all files as they are, in a new statement, with another claim."""
    anew = statement_of(shared, run_claim(RunRecord.read(shared)))
    anew["predicate"]["claim"].update(claim)
    (shared / STATEMENT).write_bytes(encoded(anew))


def problems(shared: Path, key: Path | None = None) -> str:
    return "; ".join(verify(shared, key=key).problems)


def test_an_honest_export_passes_and_two_accountants_recompute_its_claim(shared, key):
    found = verify(shared, key=key)
    assert found.problems == ()
    assert found.claim is not None
    assert found.second is not None
    assert found.claim.guarantee.epsilon == pytest.approx(PRICE, rel=1e-12)
    assert found.second.accountant != found.claim.guarantee.accountant
    assert found.second.epsilon > PRICE
    assert found.signed_by is not None
    without = verify(shared)
    assert (without.problems, without.signed_by) == ((), None)
    assert "Nobody vouches" in without.notes[1]


def test_a_command_reads_each_ledger_once(made, tmp_path, monkeypatch):
    """The run's and its store's; an export's own is written, and read by its check."""
    parsed, parse = [], journal._parse
    monkeypatch.setattr(
        journal, "_parse", lambda path, *of: parsed.append(path) or parse(path, *of)
    )

    def read_by(command) -> list[str]:
        parsed.clear()
        command()
        return sorted(
            place.relative_to(made).as_posix()
            for place in map(Path.resolve, parsed)
            if made in place.parents
        )

    run, store = made / "adapted", made / "adapted-people" / "store"
    both = ["adapted-people/store/ledger.jsonl", "adapted/ledger.jsonl"]
    assert read_by(lambda: userdp.verify(store)) == ["adapted-people/store/ledger.jsonl"]
    assert read_by(lambda: userdp.verify(run)) == both
    assert read_by(lambda: userdp.claim(run)) == both
    assert read_by(lambda: userdp.export(run, out=tmp_path / "out")) == both
    assert read_by(lambda: userdp.verify(made / "shared")) == ["shared/ledger.jsonl"]


@pytest.mark.parametrize("to", ["folder", "nothing"])
def test_a_link_that_an_export_did_not_write_is_named(shared, tmp_path, to):
    """`cp -rL` would take along what it leads to."""
    (tmp_path / "folder").mkdir()
    (shared / "data").symlink_to(tmp_path / to)
    assert "data" in problems(shared)


FILES = [
    "README.md", "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    "adapter/userdp.json", "config.json", "generation_config.json", "ledger.jsonl",
    "model.safetensors", "plan.json", "report.html", "tokenizer.json", "tokenizer_config.json",
    "userdp.json",
]  # fmt: skip


def test_the_statement_is_in_totos_and_its_subject_is_every_file(shared):
    values = statement_in(shared)
    assert values["_type"] == "https://in-toto.io/Statement/v1"
    assert [one["name"] for one in values["subject"]] == FILES
    assert values["predicate"]["claim"]["epsilon"] == pytest.approx(PRICE, abs=1e-4)
    envelope = json.loads((shared / ENVELOPE).read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == (shared / STATEMENT).read_bytes()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"  ")


@pytest.mark.parametrize("name", [*FILES, STATEMENT])
@pytest.mark.parametrize("how", [cut, Path.unlink])
def test_a_file_that_was_changed_or_removed_is_named(shared, key, name, how):
    how(shared / name)
    assert name in problems(shared)
    assert name in problems(shared, key)


def test_a_file_too_many_is_named_and_those_of_the_hubs_client_are_left_alone(shared):
    (shared / ".gitattributes").write_text("*.safetensors filter=lfs")
    (shared / ".cache" / "huggingface").mkdir(parents=True)
    (shared / ".cache" / "huggingface" / "x.metadata").write_text("")
    assert problems(shared) == ""
    for name in ("pytorch_model.bin", ".gitattributes2", "adapter/modeling.py"):
        (shared / name).write_text("x")
        assert name in problems(shared)


def test_a_download_whose_files_are_links_into_a_cache_is_checked_by_their_content(shared):
    for path in [one for one in shared.rglob("*") if one.is_file()]:
        blob = shared.parent / f"blob-{path.name}-{path.parent.name}"
        path.rename(blob)
        path.symlink_to(blob)
    assert problems(shared) == ""
    cut(shared / "config.json")
    assert "config.json" in problems(shared)


@pytest.mark.parametrize(
    "claim",
    [{"epsilon": 0.1}, {"delta": 1e-9}, {"unit": "example"}, {"complete": False}, {"steps": 1},
     {"conditions": [{"kind": "exact-looks", "told": "x"}]}, {"parts": []}, {"epsilon": "0.1"},
     {"standing": "spent so far"}, {"more": 1}],
)  # fmt: skip
def test_a_statement_that_claims_something_else_than_the_ledger_is_refused(shared, key, claim):
    """Its digests are right: only the claim was written anew."""
    state_anew(shared, **claim)
    assert next(iter(claim)) in problems(shared)
    assert ENVELOPE in problems(shared, key)
    found = verify(shared)
    assert found.claim is not None
    assert found.claim.guarantee.epsilon == pytest.approx(PRICE), "computed, not read"


def write_a_word(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": "a word"}))


SMALL = [name for name in FILES if "config" in name or name == "tokenizer.json"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("how", [write_a_word, Path.unlink])
def test_files_that_were_stated_anew_are_held_against_the_ledger(shared, name, how):
    """Whoever has no key may write the statement anew; the ledger speaks of other files."""
    how(shared / name)
    state_anew(shared)
    assert name in problems(shared)


@pytest.mark.parametrize("check", ["differences", "statement_differs"])
def test_broken_twin_a_check_that_believes_the_statement_would_pass_it(shared, monkeypatch, check):
    if check == "differences":
        write_a_word(shared / "config.json")
    state_anew(shared, **({"epsilon": 0.1} if check == "statement_differs" else {}))
    assert problems(shared) != ""
    monkeypatch.setattr(verify_module, check, lambda *_: [])
    assert problems(shared) == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", "{" * 5000, '{"_type": NaN}', "\x00",
                                  '{"subject": [], "subject": [], "predicate": {"claim": {}}}',
                                  '{"subject": [1], "predicate": {"claim": {}}}'])  # fmt: skip
def test_what_is_no_statement_is_a_problem_and_no_crash(shared, key, text):
    (shared / STATEMENT).write_text(text)
    assert STATEMENT in problems(shared)
    shutil.copyfile(shared / STATEMENT, shared / ENVELOPE)
    assert why_unsigned(shared, public_key(key)) != ""
    (shared / STATEMENT).unlink()
    assert STATEMENT in problems(shared)


def test_a_signature_is_held_against_the_key_and_missed_where_one_is_given(made, shared, key):
    assert "not signed by the key" in problems(shared, made / "other.pub")
    envelope = (shared / ENVELOPE).read_bytes()
    (shared / ENVELOPE).unlink()
    assert "nobody signed" in problems(shared, key)
    changed = json.loads(envelope)
    changed["payload"] = base64.b64encode(b'{"a": 1}').decode()
    (shared / ENVELOPE).write_text(json.dumps(changed))
    assert "not signed by the key" in problems(shared, key)


def test_everything_written_anew_is_found_by_the_signature_alone(made, shared, key):
    """Another run's export in the place of the signed one, with the signed one's envelope."""
    forged = shared.parent / "forged"
    userdp.export(made / "run", out=forged)
    assert problems(forged) == ""
    shutil.copyfile(shared / ENVELOPE, forged / ENVELOPE)
    assert "another statement" in problems(forged, key)
    signer = private_key(made / "other.pem")
    (forged / ENVELOPE).write_bytes(envelope_of((forged / STATEMENT).read_bytes(), signer))
    assert "not signed by the key" in problems(forged, key)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601, 0o610])
def test_a_private_key_that_others_may_read_is_refused(tmp_path, mode):
    private, _ = make_key(tmp_path)
    private.chmod(mode)
    with pytest.raises(UseError, match="other people") as refused:
        private_key(private)
    assert "chmod 600" in (refused.value.hint or "")


def test_what_is_no_key_is_refused_with_a_way_to_make_one(tmp_path):
    private, public = make_key(tmp_path)
    (tmp_path / "hello.pem").write_text("hello")
    for load, other, way in ((private_key, public, "genpkey"), (public_key, private, "-pubout")):
        for name in ("nothing.pem", "hello.pem", other.name):
            with pytest.raises(UseError, match=name) as refused:
                load(tmp_path / name)
            assert way in (refused.value.hint or "")
