"""Text elsewhere that a store's text has too: in a public corpus, and in what a model wrote.

**A public pre-training corpus** is left without what overlaps with private data (C4 to C4--). Two
stages, as in Charles et al. 2024, Appendix D, with the counts of their Table 2:

1. Near-duplicates: documents whose word n-grams have a Jaccard similarity of at least 0.8 with
   those of a private record (Lee et al. 2022, "NearDup", Appendix A). They propose candidates by
   MinHash, as they compare a corpus with itself; here an index of the private n-grams gives the
   similarity with each private record exactly.
2. Sites: documents whose URL lies on a listed domain, or is itself listed.

**What is left depends on the private data**, and so does a base model trained on it: the bound that
fine-tuning claims does not cover that. The filtered file comes with ``FILE.provenance.json``; the
JSON Lines source copies it into the store, and whoever trains on it must name it in the report.

Memory is that of the private side's n-grams, 12 bytes each; the public corpus streams through.

**Verbatim copies** (`longest_copies`): a differentially private model may still write a sentence
that a person wrote, because many people write it, or by chance. The check tells the operator before
synthetic text is handed on; it is exact, so operator-only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE, whole_file, write_json
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count
from userdp.data.records import Drop
from userdp.data.selection import mix64
from userdp.data.sources import SourceOptions
from userdp.data.sources.input_files import provenance_of
from userdp.data.sources.paper_datasets import domain_of
from userdp.data.sources.tables import open_tables
from userdp.data.store_contents import ends_of, members_of, pieces
from userdp.data.user_store import StoreSplit

_Document = dict[str, Any]
_BLOCK_EXAMPLES = 2**14
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapRules:
    """What counts as overlap.

    Args:
        similarity: least Jaccard similarity of the sets of n-grams; in (0, 1]. 0.8 is Lee et al.'s.
        words: of an n-gram, at least 1. A text of fewer words is one n-gram.
    """

    similarity: float = 0.8
    words: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise UseError(f"similarity must be in (0, 1], got {self.similarity!r}")
        require_count("words", self.words)


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
        after_duplicates: left once near-duplicates were removed.
        after_sites: left once listed domains and URLs were removed too.
    """

    documents: int = 0
    without_text: int = 0
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
    """An index of the n-grams of the private records, to ask for near-duplicates.

    Args:
        texts: of all private records.
        rules: what counts as overlap.
    """

    def __init__(self, texts: Iterable[str], rules: OverlapRules) -> None:
        self.rules = rules
        held = [ngrams(text, rules.words) for text in texts]
        self._sizes = np.array([len(grams) for grams in held], dtype=np.int64)
        grams = np.concatenate([*held, np.zeros(0, "<u8")])
        order = np.argsort(grams, kind="stable")
        self._grams = grams[order]
        self._records = np.repeat(np.arange(len(held), dtype=np.int32), self._sizes)[order]

    def __len__(self) -> int:
        return len(self._sizes)

    def likeness(self, text: str) -> float:
        """The greatest Jaccard similarity, |intersection| / |union|, of a record's n-grams."""
        grams = ngrams(text, self.rules.words)
        begins, ends = (np.searchsorted(self._grams, grams, side) for side in ("left", "right"))
        sharing = pieces(self._records, begins, ends - begins)
        records, both = np.unique(sharing, return_counts=True)
        either = len(grams) + self._sizes[records] - both
        return float((both / either).max(initial=0.0))


def ngrams(text: str, words: int) -> NDArray[np.uint64]:
    """Hashes of the distinct word n-grams of a text, in lower case, in rising order.

    >>> len(ngrams("a b c d", 3)), ngrams("A  b", 3) == ngrams("a B", 3)
    (2, array([ True]))
    """
    tokens = text.lower().split()
    grams = (tokens[at : at + words] for at in range(max(1, len(tokens) - words + 1)))
    content = (" ".join(gram).encode("utf-8", "replace") for gram in grams)
    digests = b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in content)
    return np.unique(np.frombuffer(digests, "<u8"))


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
        if private.likeness(text) >= private.rules.similarity:
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
            documents = _lines(source, progress or Progress())
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


def longest_copies(
    split: StoreSplit,
    texts: Sequence[Sequence[int]],
    *,
    least: int,
    progress: Callable[[int], None] = lambda _: None,
) -> NDArray[np.int64]:
    """How long a stretch of each text stands in the split: int64 (texts,), in tokens.

    A stretch counts where each window of ``least`` tokens in it stands in some example, token by
    token; windows are found by a hash and compared in full, so there are no false ones.
    0 where no window does. Memory follows the texts; time the split's tokens times ``least``.

    Args:
        split: what is searched.
        texts: token ids, of the split's own tokenizer.
        least: tokens of the shortest stretch that counts, at least 2.
        progress: is called with the number of examples searched.
    """
    require_count("least", least, at_least=2)
    flat = np.fromiter(chain.from_iterable(texts), dtype=np.uint64)
    offsets = ends_of(np.array([len(text) for text in texts], dtype=np.int64))
    places = _window_places(offsets, least)
    if not len(places):
        return np.zeros(len(texts), dtype=np.int64)
    hashes = np.unique(_window_hashes(flat, least)[places])
    found: set[bytes] = set()
    for tokens, starts in _blocks(split, least, progress):
        hits = starts[np.isin(_window_hashes(tokens, least)[starts], hashes)]
        found |= {tokens[hit : hit + least].tobytes() for hit in hits}
    repeated = np.zeros(len(flat), dtype=bool)
    repeated[places] = [flat[at : at + least].tobytes() in found for at in places]
    return np.array(
        [_longest_run(repeated[a:b], least) for a, b in pairwise(offsets)],
        dtype=np.int64,
    )


def _blocks(
    split: StoreSplit, least: int, progress: Callable[[int], None]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Tokens of some examples, and where windows begin in them."""
    users, examples = members_of(split.counts)
    for begin in range(0, len(users), _BLOCK_EXAMPLES):
        here = slice(begin, begin + _BLOCK_EXAMPLES)
        rows = split.gather(users[here], examples[here])
        yield rows.tokens.astype(np.uint64), _window_places(rows.offsets, least)
        progress(min(begin + _BLOCK_EXAMPLES, len(users)))


def _window_places(offsets: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Where windows of ``least`` tokens begin that lie within one row."""
    row, place = members_of(np.maximum(np.diff(offsets) - least + 1, 0))
    return offsets[row] + place


def _window_hashes(tokens: NDArray[np.uint64], least: int) -> NDArray[np.uint64]:
    """Of each window of ``least`` consecutive tokens: Σ h(t_{i+j}) b^(least-1-j) modulo 2**64."""
    count = max(len(tokens) - least + 1, 0)
    mixed, hashes = mix64(tokens + np.uint64(1)), np.zeros(count, dtype=np.uint64)
    for place in range(least):
        hashes = hashes * _BASE + mixed[place : place + count]
    return hashes


def _longest_run(repeated: NDArray[np.bool_], least: int) -> int:
    """The longest stretch of tokens of which each window was found."""
    if not repeated.any():
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], repeated, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max()) + least - 1
