r"""Text that comes from data or files, put into Markdown as words.

Run names, model names, descriptions of stores and settings are chosen by people, or read from files
that others wrote. In a model card they must not become headings, links, table cells or HTML. So the
card's template escapes whatever it is given, and what it may not escape is marked by name.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_MARKUP = re.compile(r"([\\`*_\[\]{}<>|#~!&$])")
_LINES = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
_JOINERS = "\u200c\u200d"  # letters of some scripts, and emoji, are joined or parted by these


def visible(text: str) -> str:
    r"""``text`` on one line, without characters that act on others: controls, direction marks.

    Line ends become spaces. Surrogates, which no file can hold, and the rest become U+FFFD.

    >>> visible("run\n# heading")
    'run # heading'
    >>> visible("a\u202eb\x1b")
    'a\ufffdb\ufffd'
    """
    return "".join(
        "\ufffd" if unicodedata.category(c)[0] == "C" and c not in _JOINERS else c
        for c in _LINES.sub(" ", text)
    )


def markdown(text: str) -> str:
    """``text`` as words: what Markdown or HTML would take for markup is escaped.

    Guarantee: in a paragraph, a heading or a table's cell the result is text, with no line end and
    no cell's end in it (CommonMark 0.31, Section 2.4: a backslash before punctuation).

    >>> markdown("run_1|<b>")
    'run\\\\_1\\\\|\\\\<b\\\\>'
    """
    return _MARKUP.sub(r"\\\1", visible(text))


class Ready(str):
    """Finished Markdown: the template leaves it as it is."""

    __slots__ = ()


def escaped(value: Any) -> Any:
    """What a template prints for ``value``: words are escaped, `Ready` ones are not."""
    return value if isinstance(value, Ready) or not isinstance(value, str) else markdown(value)


def prose(text: str) -> Ready:
    """Sentences of ours: words between backticks as code, everything else escaped.

    >>> prose("see `userdp plan`, a|b")
    'see `userdp plan`, a\\\\|b'
    """
    parts = visible(text).split("`")
    return Ready(
        "".join(
            "`" + part.replace("|", r"\|") + "`" if number % 2 and part else markdown(part)
            for number, part in enumerate(parts)
        )
    )


def fenced(text: str, language: str) -> Ready:
    """``text`` as a block of code, its fence longer than any backticks in it.

    >>> print(fenced("echo ```", "console"))
    ````console
    echo ```
    ````
    """
    lines = "\n".join(visible(line) for line in text.split("\n"))
    longest = max((len(ticks) for ticks in re.findall("`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return Ready(f"{fence}{language}\n{lines}\n{fence}")
