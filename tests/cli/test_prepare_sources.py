"""The documented command line of each data set, on a fixture in its own format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import userdp
from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import (
    mail,
    write_enron,
    write_stackoverflow,
)
from tests.speed import fast_then_slow
from userdp.cli.app import run
from userdp.data.store import UserStore


def stack_overflow(folder):
    rows = [
        (split, f"{user}", f"question {n} of {user}".encode())
        for user in range(9)
        for split in ("train", "test")
        for n in range(3)
    ]
    return [write_stackoverflow(folder / "stackoverflow.sqlite", rows), "--held-out-users", "0"]


def web(folder, name, kind):
    pytest.importorskip("tldextract", reason="the extra web is not installed")
    rows = [
        {"url": f"https://www.site{n % 3}.co.uk/{n}", "text": f"article {n}"} for n in range(60)
    ] + [{"url": "https://only.one.org/", "text": "alone"}]
    write_jsonl(folder / name, rows)
    return [folder / name, "--source", kind, "--held-out-users", "0"]


def ccnews(folder):
    return web(folder, "cc_news.jsonl", "ccnews")


def enron(folder):
    messages = [
        mail(sender=f"p{n % 5}@enron.com", to="a@x, b@x", body=f"mail {n}") for n in range(40)
    ]
    return [write_enron(folder, messages), "--source", "maildir", "--set", "input.receivers=true",
            "--set", "input.drop_forwarded=true", "--set", "input.drop_repeats=true"]  # fmt: skip


DATA_SETS = [stack_overflow, ccnews, enron]


@pytest.mark.parametrize(
    "data_set", fast_then_slow(DATA_SETS, fast=2), ids=lambda function: function.__name__
)
def test_the_documented_command_line_makes_a_store(tmp_path, capsys, data_set):
    line = ["prepare", *map(str, data_set(tmp_path)), "--out", str(tmp_path / "store"), "--json"]
    assert run(line) == 0
    meta = json.loads(capsys.readouterr().out)
    assert meta["totals"]["splits"]["train"]["examples"] > 0
    held_out = meta["totals"]["splits"]["held-out-examples"]
    if data_set is stack_overflow:
        assert held_out["examples"] == meta["totals"]["splits"]["train"]["examples"] == 27
    if data_set is ccnews:
        assert held_out["examples"] == 3 * 2
        assert meta["drops"] == {"only record of its user": 1}
    if data_set is enron:
        assert meta["ownership"]["rule"] == "first-owner"
        assert meta["totals"]["records_read"] == 80


CHAT = {"user": "ana", "conversations": [{"from": "human", "value": "When?"},
                                         {"from": "gpt", "value": "At noon."}]}  # fmt: skip


def test_a_missing_chat_template_is_said_before_anything_is_written(tmp_path, capsys, monkeypatch):
    """Said even where writing then fails: so it was said before."""
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT])
    line = ["prepare", str(path), "--out", str(tmp_path / "s"), "--held-out-users", "0"]
    with monkeypatch.context() as patched:
        patched.setattr("userdp.commands.prepare.prepare_store", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(line)
    assert not (tmp_path / "s").exists()
    warning = capsys.readouterr().err.replace("\n", " ")
    assert "the tokenizer has no chat template" in warning
    assert "--tokenizer" in warning
    assert run(line) == 0
    assert "Read as conversations" in capsys.readouterr().out
    assert UserStore.open(tmp_path / "s").meta.loss_mask


def test_a_tokenizer_with_a_template_is_used_and_nothing_is_said(tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    bundled = Path(userdp.__file__).parent / "assets" / "base-model" / "tokenizer.json"
    shutil.copy(bundled, folder)
    template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT])
    line = ["prepare", str(path), "--out", str(tmp_path / "s"), "--held-out-users", "0"]
    assert run([*line, "--tokenizer", str(folder)]) == 0
    assert "template" not in capsys.readouterr().err
    assert run([*line, "--append", "--tokenizer", str(folder)]) == 0
    assert "template" not in capsys.readouterr().err
    assert run([*line, "--append"]) == 0, "the store keeps no template"
    assert "template" in capsys.readouterr().err
