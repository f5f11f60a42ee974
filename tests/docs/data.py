"""The small data that stands behind the pages: one mailbox of made-up people, in every format."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

WORDS = ["the", "mail", "of", "you", "we", "to", "plan", "at", "noon", "ship", "data", "team"]
PEOPLE, RECORDS = 200, 8


def write_all(folder: Path) -> None:
    """Everything that a page may name."""
    draw = random.Random(0)

    def text(words: int = 30) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    mails = [
        {"sender": f"u{person}", "body": text(), "date": f"2024-0{1 + number % 9}-11"}
        for number in range(RECORDS)
        for person in range(PEOPLE)
    ]
    _lines(folder / "mail.jsonl", mails)
    _lines(folder / "mail.jsonl.gz", mails)
    _lines(
        folder / "chat.jsonl",  # the same people elsewhere, by the fields that are the default
        [{"user": f"u{n % PEOPLE}", "text": text(20)} for n in range(PEOPLE * 4)],
    )
    table = pd.DataFrame(mails)
    table.to_csv(folder / "mail.csv", index=False)
    commits = table.rename(columns={"sender": "author", "body": "message"})
    commits.to_csv(folder / "commits.csv", index=False, columns=["author", "message"])
    _mbox(folder / "list.mbox", mails)
    _maildir(folder / "maildir", mails[: PEOPLE * 4])
    roles = ("user", "assistant")
    chats = [
        {"user": f"u{n % PEOPLE}", "messages": [{"role": r, "content": text(12)} for r in roles]}
        for n in range(PEOPLE * 6)
    ]
    _lines(folder / "chats.jsonl", chats)
    _repository(folder / "repository", draw)
    public = [{"text": text(), "url": f"https://e{n}.org/"} for n in range(30)]
    _lines(folder / "public.jsonl", public)


def _message(mail: dict[str, str]) -> str:
    return (
        f"Date: Mon, 14 May 2001 16:39:00 +0000\nFrom: {mail['sender']}@example.org\n"
        f"To: all@example.org\nSubject: plan\n\n{mail['body']}\n"
    )


def _mbox(path: Path, mails: list[dict[str, str]]) -> None:
    begin = "From a@example.org Mon May 14 16:39:00 2001\n"
    path.write_text("".join(begin + _message(mail) + "\n" for mail in mails))


def _maildir(folder: Path, mails: list[dict[str, str]]) -> None:
    """As of the Enron corpus: a folder a person, a folder a mailbox, a file a message."""
    for number, mail in enumerate(mails):
        place = folder / mail["sender"] / "sent"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.").write_text(_message(mail))


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """In JSON; packed if the file's name says so."""
    pd.DataFrame(rows).to_json(path, orient="records", lines=True)


def _repository(folder: Path, draw: random.Random) -> None:
    """Forty authors with some commits each, by one import: a process each would take minutes."""
    stream = []
    for number in range(40 * 8):
        author = f"A{number % 40} <a{number % 40}@example.org> {1_600_000_000 + number} +0000"
        message = " ".join(draw.choices(WORDS, k=20))
        stream.append(
            f"commit refs/heads/main\nauthor {author}\ncommitter {author}\n"
            f"data {len(message)}\n{message}\n"
            f"M 100644 inline notes.txt\ndata {len(message)}\n{message}\n"
        )
    folder.mkdir()
    quiet = {"cwd": folder, "check": True, "capture_output": True}
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "-q", "-b", "main"], env=environment, **quiet)
    subprocess.run(
        ["git", "fast-import", "--quiet"],
        input="\n".join(stream).encode(),
        env=environment,
        **quiet,
    )


def write_llama(folder: Path) -> None:
    """A tiny Llama-style model with a tokenizer, in the format of `transformers`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.huggingface.toy import toy_tokenizer

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    toy_tokenizer(folder).save_pretrained(folder)
