"""The templates of pages, summaries and cards, and how what they print is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from userdp.reporting.markdown import escaped, fenced, visible

if TYPE_CHECKING:
    from jinja2 import Environment

_BOUND = re.compile(r"[εδ] [≤=<>] (?=\d)|(?<=\d) [≤<] (?=[εδ])")


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
    environment.filters["code"] = code
    return environment


def _unbroken(text: str) -> str:
    """``text`` whose bounds stay on one line: the blanks around their signs are no-break spaces."""
    return _BOUND.sub(lambda found: found.group().replace(" ", "\u00a0"), text)


def render_text(template: str, values: Mapping[str, Any]) -> str:
    """A template of Markdown: all that it prints is escaped, unless it is `Ready`."""
    plain = environment().overlay(autoescape=False, finalize=escaped)
    plain.filters = {**plain.filters, "fenced": fenced}
    return plain.get_template(template).render(**values)


def code(text: str) -> Any:
    """Markup of words between backticks as code; everything else escaped."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )
