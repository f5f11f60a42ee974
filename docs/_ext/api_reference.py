"""The API reference: a page for each public package, made from `__all__` and docstrings.

A name is public if the package that users import says so in ``__all__``. A name that two packages
offer is described where it comes first in `PACKAGES`. The pages lie in ``docs/reference/api``,
which git ignores.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PACKAGES = (
    "userdp",
    "userdp.noise.clip_forms",
    "userdp.noise",
    "userdp.sampling",
    "userdp.plans",
    "userdp.accounting",
    "userdp.claims",
    "userdp.ledger",
    "userdp.data",
    "userdp.data.records",
    "userdp.data.pipeline",
    "userdp.data.user_store",
    "userdp.data.writer",
    "userdp.data.store_tokenizer",
    "userdp.data.selection_strategies",
    "userdp.data.sources",
    "userdp.gradients",
    "userdp.gradients.engines.layer",
    "userdp.training",
    "userdp.plans.planner",
    "userdp.queries",
    "userdp.sweeping",
    "userdp.federated",
    "userdp.reporting.page",
    "userdp.reporting.card",
    "userdp.reporting.meaning",
    "userdp.core.vocabulary",
    "userdp.core.errors",
)


def _names(module: Any) -> list[str]:
    """What a module offers: ``__all__``, or what it defines itself without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    own = (
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )
    return list(own)


def _directive(package: str, name: str, value: Any) -> str:
    kind = "data"
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
    elif inspect.isroutine(value):
        kind = "function"
    if kind == "data" and getattr(value, "__doc__", None) == type(value).__doc__:
        return f".. py:data:: {package}.{name}\n"  # autodoc would describe its type
    return f".. auto{kind}:: {package}.{name}\n"


def _page(package: str, seen: set[int]) -> str:
    module = import_module(package)
    parts, elsewhere = [], []
    for name in sorted(_names(module), key=str.lower):
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        if id(value) in seen:
            elsewhere.append(name)
            continue
        seen.add(id(value))
        parts.append(_directive(package, name, value))
    title = f"{package}\n{'=' * len(package)}\n"
    note = f"Also here, and described elsewhere: {', '.join(elsewhere)}.\n" if elsewhere else ""
    # The module itself without its members: those follow, by their public names.
    head = f".. automodule:: {package}\n   :no-members:\n   :no-index:\n"
    return "\n".join([title, head, note, *parts])


def _generate(sphinx: Sphinx) -> None:
    """All pages, before Sphinx looks for sources."""
    folder = Path(sphinx.srcdir) / "reference" / "api"
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    pages = {package: _page(package, seen) for package in PACKAGES}
    pages["index"] = (
        "Python\n======\n\nThe functions of ``userdp`` are what most programs need. The packages "
        "below it are for\nthose who :doc:`extend it </extending/index>`, or want one part "
        "alone.\n\n.. toctree::\n   :maxdepth: 1\n\n"
        + "".join(f"   {package}\n" for package in PACKAGES)
    )
    for old in folder.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", _generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
