"""Names of fields in messages: only usual ones, and those that resemble what was asked for.

A table without a header has somebody's record in its place, and an object may have people's ids for
keys. So a name is told only where it cannot be news about anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

_WORDS: Final = """
    account address author author_id authors body category chat comment comments content
    contributor conversation conversation_id conversations created created_at customer
    customer_id date datetime description doc document email from handle id ids label language
    letter lines mail message message_id messages name names nick note notes number owner
    owner_id owners page patient patient_id person person_id post posts prompt question answer
    recipient record response review role score sender sender_id sent source speaker speaker_id
    split subject summary tag tags text texts thread time timestamp title to topic transcript
    tweet type url user user_id user_name userid username users value words writer
    """
USUAL: Final = frozenset(_WORDS.split())
"""What fields of users, texts and their surroundings are called in many files."""

_MOST = 20


def told(names: Iterable[str], wanted: Sequence[str]) -> str:
    """Those of ``names`` that may be told, and that there are others.

    Args:
        names: of a file's fields.
        wanted: what was asked for.

    >>> told(["user", "body", "Dear Ann"], ["text"])
    "'user', 'body', and others whose names are not usual ones"
    >>> told(["writer_nmae"], ["writer_name"])
    "'writer_nmae'"
    """
    known = [str(name) for name in names]
    near = {one for word in wanted for one in get_close_matches(word, known, cutoff=0.8)}
    shown = [name for name in known if name.lower() in USUAL or name in near]
    words = [repr(name) for name in shown[:_MOST]]
    if len(words) < len(known):
        words.append("and others whose names are not usual ones" if words else "no usual ones")
    return ", ".join(words) or "none"
