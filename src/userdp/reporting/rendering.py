r"""How words and numbers become a page or a card: whatever a template prints is escaped.

Run names, model names, descriptions of stores and settings are chosen by people, or read from files
that others wrote. They must not become headings, links, table cells or HTML. So templates escape
what they are given, and finished markup is marked as such (`Ready`, or MarkupSafe's ``Markup``).
All sentences stand in the templates and in ``templates/report_sentences.toml``.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.core.vocabulary import delta_up

if TYPE_CHECKING:
    from jinja2 import Environment

_MARKUP = re.compile(r"([\\`*_\[\]{}<>|#~!&$])")
_LINES = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
_JOINERS = "\u200c\u200d"  # letters of some scripts, and emoji, are joined or parted by these
_EXPONENT = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)e(?:\+|(-))?0*(\d+)(?![\w.]*\w)")
_BOUND = re.compile(r"[εδ] [≤=<>] (?=\d)|(?<=\d) [≤<] (?=[εδ])")


class Ready(str):
    """Finished Markdown: the template leaves it as it is."""

    __slots__ = ()


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


def escaped(value: Any) -> Any:
    """The text that a template of Markdown prints for ``value``."""
    return value if isinstance(value, Ready) or not isinstance(value, str) else markdown(value)


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


def code(text: str) -> Any:
    """HTML of words between backticks as code; everything else escaped."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def short(text: str) -> str:
    """``text`` with exponents as people write them.

    >>> short("δ = 1.9e-05, up to 1.00e+9."), short("run-1e-05, 0x1e5, abc1e4")
    ('δ = 1.9e-5, up to 1.00e9.', 'run-1e-05, 0x1e5, abc1e4')
    """
    return _EXPONENT.sub(lambda found: f"{found[1]}e{found[2] or ''}{found[3]}", text)


def delta_text(delta: float, digits: int = 2) -> str:
    """A δ, rounded up.

    >>> delta_text(1e-05), delta_text(1.8000001e-5), delta_text(0.001)
    ('1e-5', '1.9e-5', '0.001')
    """
    return short(delta_up(delta, digits))


def number_text(value: float, digits: int = 6) -> str:
    """Any other number, with at most so many significant digits.

    >>> number_text(3800), number_text(1 / 30), number_text(1e-05)
    ('3,800', '0.0333333', '1e-5')
    """
    return f"{value:,}" if isinstance(value, int) else short(f"{value:.{digits}g}")


@cache
def words() -> Mapping[str, Any]:
    """The sentences of ``templates/report_sentences.toml``."""
    path = Path(__file__).parent / "templates" / "report_sentences.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def environment() -> Environment:
    """Of HTML: all that a template prints is escaped, unless it is markup already."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("userdp.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _unbroken(visible(value)) if type(value) is str else value,
    )
    environment.filters["lower_first"] = lambda text: text[:1].lower() + text[1:]
    environment.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    environment.filters |= {"code": code, "fenced": fenced, "short": short}
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """A template of HTML with its values."""
    return environment().get_template(template).render(**values)


def render_markdown(template: str, values: Mapping[str, Any]) -> str:
    """A template of Markdown: all that it prints is escaped, unless it is `Ready`."""
    plain = environment().overlay(autoescape=False, finalize=escaped)
    return plain.get_template(template).render(**values)


def _unbroken(text: str) -> str:
    """``text`` whose bounds stay on one line: the blanks around their signs are no-break spaces."""
    return _BOUND.sub(lambda found: found.group().replace(" ", "\u00a0"), text)
