"""The user store on disk, in words, and its constants.

A store is a folder::

    STORE/
      meta.json               `StoreMeta`: version, totals, drops, hashes, checksums, sources;
                              it names the generation of the index that counts
      tokenizer.json          the tokenizer, byte for byte as it was given
      index/00000/            one folder per generation; the last two are kept
        users.arrow           hash: fixed-size binary(16); records: int64, stored records;
                              chains: fixed-size binary(96), see `userdp.data.content`.
                              Row u is user u, in order of id bytes
        user-ids.arrow        id: binary; row u is user u. Apart, mode 0600: a store works without
        blocks.arrow          digest: fixed-size binary(16), of every 256 KiB of every other file,
                              see `userdp.data.blocks`; stores of before it have none
        spans.arrow           the span index: split uint8, user int64, segment int32, start int64,
                              length int64
      segments/00000/tokens.arrow    token: uint16 (vocabulary up to 65,536) or uint32, flat
      segments/00000/offsets.arrow   offset: int64, (examples + 1,); example e of the segment is
                                     tokens[offset[e]:offset[e + 1]]
      segments/00000/targets.arrow   target: uint8, parallel to the tokens: 1 where the loss counts
                                     that token. Only where ``meta.loss_mask`` is true; without it
                                     every token but an example's first is a target
      ledger.jsonl            the privacy ledger of the people whose data it is, once there is one;
                              written by `userdp.ledger`, kept when the store is overwritten
      ledger.json             0600: where that ledger is, how far it was written, and when
      places.jsonl            0600: folders of runs and files of scores, see `userdp.data.places`
      erasure.json            0600: what is left to do of an erasure, see `userdp.data.erasure`
      runs/                   0700: of each run, its attempts and a lock

All tables are Arrow IPC files of one record batch, uncompressed, so that each column is one
array of the memory map: reading copies nothing.

**Spans.** A user's examples in one split are the concatenation of that user's spans in that
split; a span is examples ``start`` to ``start + length`` of a segment. Rows of ``spans.arrow``
are ordered by (split, user, order within the user). Appending writes new segments and a new
generation of the index (small next to what is there), then swaps ``meta.json`` in one rename:
token files are not rewritten, and who has the store open goes on reading the old generation.

**Erasure.** A person who is erased leaves the index first, in a new generation: no reader finds
them from then on. Their examples stay behind in the segments as *holes*, examples that no span
names; compaction rewrites each segment that has some (``segments/00003.1`` in place of
``segments/00003``; `StoreMeta.revisions`). The store is then, to its content hash, the one that
would have been prepared without them.

**Order.** Users by the bytes of their ids; a user's records as in the source; a user's held-out
examples lie after the training ones.

**Atomicity.** A new store is an append to an empty one, in a hidden folder beside its place, which
is synced and then renamed. A kill at any moment leaves no store or the old one. What ``meta.json``
does not name is what a killed run left; the next one goes on with it (`checkpoints`) or removes it.

**What is private.** All of it except ``tokenizer.json`` and ``store_id``: token data, ids, counts
and also ``content_sha256``, which is an exact function of everybody's text (whoever holds all of
it but one user's could test that user's presence). It belongs in operator-only files. The
public name of a store is ``store_id``, a random number. The folder has mode 0700.
"""

from __future__ import annotations

from userdp.data.splits import Split

FORMAT_NAME = "userdp-store"
FORMAT_VERSION = 3

META = "meta.json"
TOKENIZER = "tokenizer.json"
USERS = "users.arrow"
USER_IDS = "user-ids.arrow"
SPANS = "spans.arrow"
BLOCKS = "blocks.arrow"
INDEX = "index"
SEGMENTS = "segments"
TOKENS = "tokens.arrow"
OFFSETS = "offsets.arrow"
TARGETS = "targets.arrow"
LEDGER, LEDGER_PLACE, LEDGER_RUNS = "ledger.jsonl", "ledger.json", "runs"
PLACES = "places.jsonl"
ERASURE = "erasure.json"

SPLIT_CODES = {Split.TRAIN: 0, Split.HELD_OUT_USERS: 1, Split.HELD_OUT_EXAMPLES: 2}

SEGMENT_TOKENS = 2**28
"""A new segment begins once one holds this many tokens (0.5 or 1 GB)."""

MOST_SEGMENTS = 10**6
"""Of a store, and generations of its index: a greater number is damage."""

MIN_SEQ_LEN = 2
MAX_SEQ_LEN = 2**20


def segment_name(segment: int, revision: int = 0) -> str:
    """The folder of a segment under ``segments/``, or of a generation under ``index/``.

    >>> segment_name(3), segment_name(3, 1)
    ('00003', '00003.1')
    """
    return f"{segment:05d}.{revision}" if revision else f"{segment:05d}"


def token_dtype(vocab_size: int) -> str:
    """The narrowest of the store's two token types that holds every id below ``vocab_size``.

    >>> token_dtype(4096), token_dtype(65536), token_dtype(128256)
    ('uint16', 'uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"
