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
from tests.training.conftest import _one_thread
from userdp.claims import verify as verify_module
from userdp.claims.signing import ENVELOPE, STATEMENT, Signer, digests_of
from userdp.claims.verify import verify
from userdp.cli.app import run as command
from userdp.core.errors import UseError
from userdp.ledger import journal

__all__ = ["_one_thread"]

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


def statement_of(shared: Path) -> dict:
    return json.loads((shared / STATEMENT).read_text())


def state(shared: Path, values: dict) -> None:
    (shared / STATEMENT).write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def state_anew(shared: Path, **claim: object) -> None:
    """What anybody can do: all files as they are, in a new statement, with another claim."""
    values, (digests, _) = statement_of(shared), digests_of(shared)
    predicate = values["predicate"]
    predicate["claim"].update(claim)
    values["subject"] = [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in digests.items()
        if name.endswith(".safetensors")
    ]
    predicate["others"] = {
        name: digest for name, digest in digests.items() if not name.endswith(".safetensors")
    }
    state(shared, values)


def problems(shared: Path, key: Path | None = None) -> str:
    found = verify(shared, key=key)
    if found.problems:
        assert found.signed_by is None or key is not None
    return "; ".join(found.problems)


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
    assert without.problems == ()
    assert without.signed_by is None
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


def test_the_statement_is_in_totos_and_its_subject_are_the_weights(shared):
    values = statement_of(shared)
    assert values["_type"] == "https://in-toto.io/Statement/v1"
    assert {one["name"] for one in values["subject"]} == {
        "model.safetensors", "adapter/adapter_model.safetensors",
    }  # fmt: skip
    assert values["predicate"]["claim"]["epsilon"] == pytest.approx(PRICE)
    envelope = json.loads((shared / ENVELOPE).read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == (shared / STATEMENT).read_bytes()


FILES = [
    "README.md", "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    "adapter/userdp.json", "config.json", "generation_config.json", "ledger.jsonl",
    "model.safetensors", "plan.json", "report.html", "tokenizer.json", "tokenizer_config.json",
    "userdp.json",
]  # fmt: skip


def test_every_file_is_in_the_statement(shared):
    assert sorted(digests_of(shared)[0]) == FILES


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"  ")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", [cut, Path.unlink])
def test_a_file_that_was_changed_or_removed_is_named(shared, key, name, how):
    how(shared / name)
    assert name in problems(shared)
    assert name in problems(shared, key)


def test_a_file_too_many_is_named_and_one_of_the_hubs_client_is_only_told(shared):
    (shared / ".gitattributes").write_text("*.safetensors filter=lfs")
    (shared / ".cache" / "huggingface").mkdir(parents=True)
    (shared / ".cache" / "huggingface" / "x.metadata").write_text("")
    found = verify(shared)
    assert found.problems == ()
    assert ".gitattributes" in " ".join(found.notes) or ".cache" in " ".join(found.notes)
    for name in ("pytorch_model.bin", ".gitattributes2", "adapter/modeling.py"):
        (shared / name).write_text("x")
        assert name in problems(shared)


@pytest.mark.parametrize("name", ["config.json", STATEMENT, ENVELOPE, "ledger.jsonl", "new"])
def test_a_link_is_named_and_not_followed(shared, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    if (shared / name).exists():
        shutil.move(shared / name, elsewhere)
    else:
        elsewhere.write_text("x")
    (shared / name).symlink_to(elsewhere)
    assert "link" in problems(shared)


def test_a_signature_is_held_against_the_key_and_missed_where_one_is_given(made, shared, key):
    assert "not signed by the key" in problems(shared, made / "other.pub")
    with pytest.raises(UseError, match="private key"):
        verify(shared, key=made / "key.pem")
    envelope = (shared / ENVELOPE).read_bytes()
    (shared / ENVELOPE).unlink()
    assert "nobody signed" in problems(shared, key)
    (shared / ENVELOPE).write_bytes(envelope)
    (shared / STATEMENT).unlink()
    assert STATEMENT in problems(shared)
    for words in (["--key", str(key)], []):
        assert command(["verify", str(shared), *words]) == 1


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
    """Into a file that is there, or as a file more."""
    if path.suffix == ".safetensors":
        shutil.copyfile(path.with_name("model.safetensors"), path)
    else:
        held = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**held, "note": "a word"}))


SMALL = [name for name in FILES if "config" in name or name == "tokenizer.json"]
MORE = ["chat_template.jinja", "modeling.py", "adapter/README.md", "other.safetensors"]


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, write_a_word) for name in (*SMALL, *MORE)] + [(name, Path.unlink) for name in SMALL],
)
def test_files_that_were_stated_anew_are_held_against_the_ledger(shared, name, how):
    """Whoever has no key may write the statement anew; the ledger speaks of other files."""
    how(shared / name)
    state_anew(shared)
    assert name in problems(shared)


@pytest.mark.parametrize("check", ["_unreleased", "other_claims"])
def test_broken_twin_a_check_that_believes_the_statement_would_pass_it(shared, monkeypatch, check):
    if check == "_unreleased":
        write_a_word(shared / "chat_template.jinja")
    state_anew(shared, **({"epsilon": 0.1} if check == "other_claims" else {}))
    (shared / ENVELOPE).unlink()
    assert problems(shared) != ""
    monkeypatch.setattr(verify_module, check, lambda *_: [])
    assert problems(shared) == ""


def set_in(*place: str, to: object):
    """Sets one value of a statement's predicate."""

    def change(predicate: dict) -> None:
        for name in place[:-1]:
            predicate = predicate[name]
        predicate[place[-1]] = to

    return change


STATED = [
    (set_in("lineage", "parts", to=[]), ""),
    *((set_in("others", name, to="0" * 64), f"{name} is not there")
      for name in ("../ledger.jsonl", "/etc/passwd", "a/../b", "", "./config.json")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), STATED)
def test_a_statement_of_another_origin_or_of_a_file_elsewhere_is_refused(shared, change, words):
    values = statement_of(shared)
    change(values["predicate"])
    state(shared, values)
    said = problems(shared)
    assert said
    assert words in said


@pytest.mark.parametrize(("file", "name"), [(STATEMENT, "_type"), (ENVELOPE, "payloadType")])
def test_a_key_that_stands_twice_is_refused(shared, key, file, name):
    """Of two equal keys one reader takes the first and another the last."""
    path = shared / file
    path.write_text(path.read_text().replace(f'"{name}"', f'"{name}": "x", "{name}"', 1))
    assert "twice" in problems(shared, key)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{" * 5000, '{"_type": NaN}', "\x00"])
def test_what_is_no_statement_is_a_problem_and_no_crash(shared, text):
    (shared / STATEMENT).write_text(text)
    assert STATEMENT in problems(shared)
    shutil.copyfile(shared / STATEMENT, shared / ENVELOPE)
    assert problems(shared) != ""


def test_everything_written_anew_is_found_by_the_signature_alone(made, shared, key):
    """Another run's export in the place of the signed one, with the signed one's envelope."""
    forged = shared.parent / "forged"
    userdp.export(made / "run", out=forged)
    assert problems(forged) == ""
    shutil.copyfile(shared / ENVELOPE, forged / ENVELOPE)
    assert "another statement" in problems(forged, key)
    signed = Signer(made / "other.pem").sign((forged / STATEMENT).read_bytes())
    (forged / ENVELOPE).write_bytes(signed)
    assert "not signed by the key" in problems(forged, key)


def test_the_command_says_all_of_it(shared, key, capsys):
    assert command(["verify", str(shared)]) == 0
    said = capsys.readouterr().out
    for words in ("Nobody vouches", "check by whom with --key", "ε ≤ 2.46", "another accountant"):
        assert words in said
    (shared / "extra").write_text("x")
    assert command(["verify", str(shared), "--key", str(key)]) == 1
    assert "extra is there" in capsys.readouterr().out
    assert command(["verify", str(shared.parent), "--key", str(key)]) == 2
    assert "no export" in capsys.readouterr().err
