"""Remove from a public pre-training corpus what overlaps with private data (C4 to C4--).

Two stages, as in Charles et al. 2024, Appendix D, with the counts of their Table 2:

1. Near-duplicates: MinHash signatures of word n-grams, candidates by locality-sensitive hashing,
   and each candidate verified by the exact Jaccard similarity of the n-grams (Lee et al. 2022,
   "NearDup", Appendix A). The library is `datasketch` (extra ``dedup``).
2. Sites: documents whose URL lies on a listed domain, or is itself listed.

**What is left depends on the private data**, and so does a base model trained on it: the bound that
fine-tuning claims does not cover that. The filtered file comes with ``FILE.provenance.json``; the
JSON Lines source copies it into the store, and whoever trains on it must name it in the report.

Memory is that of the private side's signatures (about 1 kB per record) and their n-grams (8 bytes
each); the public corpus streams through.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE, whole_file, write_json
from userdp.core.stages import NoProgress, Progress
from userdp.core.vocabulary import require_count
from userdp.data.records import Drop
from userdp.data.sources import SourceOptions
from userdp.data.sources.input_files import provenance_of
from userdp.data.sources.tables import open_tables
from userdp.data.sources.web import domain_of

_Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapRules:
    """What counts as overlap.

    Args:
        similarity: least Jaccard similarity of the sets of n-grams; in (0, 1]. 0.8 is Lee et al.'s.
        words: of an n-gram, at least 1. A text of fewer words is one n-gram.
        permutations: of a MinHash signature, at least 16.
    """

    similarity: float = 0.8
    words: int = 5
    permutations: int = 128

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise UseError(f"similarity must be in (0, 1], got {self.similarity!r}")
        require_count("words", self.words)
        require_count("permutations", self.permutations, at_least=16, at_most=4096)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicCorpus:
    """How documents of the public corpus are read, and which sites are removed.

    Args:
        text: the field of a public document's text.
        url: the field of its URL.
        domains: registered domains to remove, as b"stackoverflow.com".
        urls: URLs to remove.
    """

    text: str = "text"
    url: str = "url"
    domains: frozenset[bytes] = frozenset()
    urls: frozenset[str] = frozenset()


@dataclass(kw_only=True, slots=True)
class OverlapCounts:
    """Documents after each stage: Charles et al. 2024, Table 2. Operator-only.

    Args:
        documents: read.
        without_text: of them, left out because they have no text or could not be read.
        candidates: that the hashing proposed as near-duplicates.
        after_duplicates: left once the verified ones were removed.
        after_sites: left once listed domains and URLs were removed too.
    """

    documents: int = 0
    without_text: int = 0
    candidates: int = 0
    after_duplicates: int = 0
    after_sites: int = 0

    @property
    def near_duplicates(self) -> int:
        """Removed because a private record is nearly the same."""
        return self.documents - self.without_text - self.after_duplicates

    @property
    def on_sites(self) -> int:
        """Removed because their site or URL is listed."""
        return self.after_duplicates - self.after_sites


class PrivateTexts:
    """Signatures of the private records, to ask for near-duplicates.

    Args:
        texts: of all private records.
        rules: what counts as overlap.
    """

    def __init__(self, texts: Iterable[str], rules: OverlapRules) -> None:
        self.rules = rules
        sketch = library("datasketch", extra="dedup", what="finding near-duplicates")
        self._signature = partial(sketch.MinHash, num_perm=rules.permutations, seed=1)
        # Below the threshold, so that the verifying stage decides and few are missed.
        threshold = 0.9 * rules.similarity
        self._index = sketch.MinHashLSH(threshold=threshold, num_perm=rules.permutations)
        self._grams: list[frozenset[bytes]] = []
        for text in texts:
            grams, signature = self._signed(text)
            self._index.insert(len(self._grams), signature)
            self._grams.append(grams)

    def __len__(self) -> int:
        return len(self._grams)

    def ask(self, text: str) -> tuple[bool, bool]:
        """Whether ``text`` is a candidate, and whether it is a near-duplicate indeed."""
        grams, signature = self._signed(text)
        likeness = [jaccard(grams, self._grams[one]) for one in self._index.query(signature)]
        return bool(likeness), max(likeness, default=0.0) >= self.rules.similarity

    def _signed(self, text: str) -> tuple[frozenset[bytes], Any]:
        grams, signature = ngrams(text, self.rules.words), self._signature()
        signature.update_batch(list(grams))
        return grams, signature


def ngrams(text: str, words: int) -> frozenset[bytes]:
    """Hashes (8 bytes) of the word n-grams of a text, in lower case.

    >>> len(ngrams("a b c d", 3)), ngrams("A  b", 3) == ngrams("a B", 3)
    (2, True)
    """
    tokens = text.lower().split()
    grams = (tokens[at : at + words] for at in range(max(1, len(tokens) - words + 1)))
    content = (" ".join(gram).encode("utf-8", "replace") for gram in grams)
    return frozenset(hashlib.blake2b(one, digest_size=8).digest() for one in content)


def jaccard(one: frozenset[bytes], other: frozenset[bytes]) -> float:
    """|intersection| / |union|.

    >>> jaccard(frozenset([b"a", b"b"]), frozenset([b"b", b"c"]))
    0.3333333333333333
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both)


def remove_overlap(
    documents: Iterable[_Document],
    private: PrivateTexts,
    public: PublicCorpus = PublicCorpus(),
    *,
    counts: OverlapCounts | None = None,
) -> Iterator[_Document]:
    """The documents that do not overlap, in their order.

    Args:
        documents: of the public corpus. One without a text is left out and counted.
        private: the private records.
        public: see there.
        counts: are counted on as documents are read.
    """
    counts = counts or OverlapCounts()
    for document in documents:
        counts.documents += 1
        text, url = document.get(public.text), document.get(public.url)
        if not isinstance(text, str):
            counts.without_text += 1
            continue
        candidate, duplicate = private.ask(text)
        counts.candidates += candidate
        if duplicate:
            continue
        counts.after_duplicates += 1
        if isinstance(url, str) and _is_listed(url, public):
            continue
        counts.after_sites += 1
        yield document


def filter_file(
    source: Path,
    out: Path,
    private: PrivateTexts,
    public: PublicCorpus = PublicCorpus(),
    *,
    private_content: str,
    progress: Progress | None = None,
) -> OverlapCounts:
    """`remove_overlap` from JSON Lines to JSON Lines (gzip if named so), with its provenance.

    Args:
        source: the corpus.
        out: the filtered one, mode 0600; written whole or not at all, its provenance first.
        private: the private records.
        public: see `remove_overlap`.
        private_content: a name for them, such as the ``store_id`` of their store; is published.
        progress: shows how many bytes are read.
    """
    counts = OverlapCounts()
    # Which documents are left is an exact function of the private text: the operator's alone.
    with whole_file(out, mode=OPERATOR_FILE) as file:
        with gzip.open(file, "wb") if out.name.endswith(".gz") else nullcontext(file) as sink:
            documents = _lines(source, progress or NoProgress())
            for document in remove_overlap(documents, private, public, counts=counts):
                sink.write(json.dumps(document, ensure_ascii=True).encode() + b"\n")
        provenance = {
            "private_data": private_content,
            "rules": asdict(private.rules),
            "domains_removed": len(public.domains),
            "urls_removed": len(public.urls),
            "warning": "which documents are left depends on the private data: a base model trained "
            "on them depends on it too, and no epsilon of a fine-tuning run covers that",
        }
        write_json(provenance_of(out), provenance)
    return counts


def _lines(path: Path, progress: Progress) -> Iterator[_Document]:
    table = open_tables([str(path)], SourceOptions(), form="jsonl")
    progress.stage("filtering", table.size)
    for row in table.rows(progress, None):
        yield {} if isinstance(row, Drop) else row


def _is_listed(url: str, public: PublicCorpus) -> bool:
    return url in public.urls or bool(public.domains and domain_of(url) in public.domains)
