"""First stage of the bundled base model: its tokenizer, from the standard library's docstrings.

Run ``python scripts/make_tokenizer.py``. Public text only (pitfall 29): docstrings of Python's
own library and `pydoc_data.topics`, nothing else. `scripts/make_base_model.py` goes on from here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from userdp.data.progress import NoProgress
from userdp.data.records import Tally
from userdp.data.sources import open_source
from userdp.data.tokenize import BUNDLED_TOKENIZER
from userdp.data.vocabulary import train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED_TOKENIZER)
    parser.add_argument("--vocab-size", type=int, default=4096)
    options = parser.parse_args()
    source = open_source(["stdlib"], kind="docstrings")
    texts = sorted(record.text.decode() for record in source.records(Tally(), NoProgress()))
    tokenizer = train_tokenizer(texts, vocab_size=options.vocab_size)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.out.with_suffix(".partial")
    temporary.write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    temporary.replace(options.out)
    print(f"{options.out}: {tokenizer.get_vocab_size()} pieces from {len(texts)} docstrings")


if __name__ == "__main__":
    main()
