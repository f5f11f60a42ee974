"""The scripts in examples/: at most four lines apart, and each of them runs."""

import difflib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.huggingface.toy import rows, toy_model, toy_tokenizer
from tests.plans import uls_plan
from userdp.claims import claim

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
KINDS = ("trainer", "sft", "loop")
PLAN = uls_plan(steps=20)


def code(path: Path) -> list[str]:
    """A script's lines, without its docstring and its imports."""
    _, text = path.read_text().split('"""\n', 1)
    text = re.sub(r"^(from .* import \((.|\n)*?\n\)|(from|import) .*)\n", "", text, flags=re.M)
    return [line for line in text.splitlines() if line.strip()]


def changed(before: list[str], after: list[str]) -> int:
    """Lines that were changed, added or removed; a line in place of another counts once."""
    edits = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in edits if kind != "equal")


@pytest.mark.parametrize("kind", KINDS)
def test_privacy_takes_at_most_four_changed_lines(kind):
    plain, private = (code(EXAMPLES / f"{kind}_{how}.py") for how in ("plain", "private"))
    assert len(plain) > 8
    assert 1 <= changed(plain, private) <= 4


def row_of(kind: str, row: dict[str, str]) -> dict[str, object]:
    text = row["text"]
    if kind != "sft":
        return {"author": row["author"], "text": text}
    turns = [{"role": role, "content": text} for role in ("user", "assistant")]
    return {"author": row["author"], "messages": turns}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "private"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_script_runs_and_the_ledgers_epsilon_is_the_plans(tmp_path, monkeypatch, kind, how):
    model, data, released = tmp_path / "model", tmp_path / "data.jsonl", tmp_path / "out"
    toy_model().save_pretrained(model)
    toy_tokenizer(tmp_path / "t").save_pretrained(model)
    data.write_text("\n".join(json.dumps(row_of(kind, row)) for row in rows()))
    PLAN.save(tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    script = [str(one) for one in (EXAMPLES / f"{kind}_{how}.py", model, data, released)]
    monkeypatch.setattr(sys, "argv", script)
    runpy.run_path(script[0], run_name="__main__")
    if how == "private":
        released = released / "model"
        for place in ("out", "people"):
            found = claim(tmp_path / place)
            assert found.guarantee == PLAN.guarantee()
            assert found.complete
        assert (released / "userdp.json").exists()
    assert (released / "model.safetensors").exists()
    assert (tmp_path / "people").exists() == (how == "private")
