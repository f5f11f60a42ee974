"""Docstrings of installed packages: one user per module, one record per docstring.

Real heavy-tailed text that is on every machine. ``PATH`` names distributions or packages
(``numpy``, ``scikit-learn``, ``transformers``), or ``stdlib`` for Python's own library together
with the topics of ``pydoc`` (``pydoc_data.topics``). Nothing is imported: files are parsed.

Left out: vendored copies (``_vendor``, ``vendored``, ``extern``, ``_distributor``...), test
modules. The text is public, so the source may compare users with each other: ``max_users``
keeps modules by hash order, and `userdp.data.ownership` removes what repeats across the split.
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError
from userdp.data.hashing import user_hash
from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import Entry, Source, SourceOptions
from userdp.data.sources.rows import record_of

_STDLIB = "stdlib"
_NOT_STDLIB = {"site-packages", "dist-packages", "lib2to3", "ensurepip", "lib-dynload"}
"""What lies beside Python's own library, or is a copy of other text."""
_DEFAULT_PACKAGES = ("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib")
"""Packages that userdp depends on anyway."""

_COPIES = re.compile(r"_?vendor(ed)?|_?extern(al|als)?|third_party|_distutils_hack|__pycache__")
_TESTS = re.compile(r"_?test.*|.*_tests?|conftest")
_TOPICS = "pydoc_data.topics"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def open_packages(paths: list[str], options: SourceOptions) -> Docstrings:
    """The source for packages ``paths``; none: `_DEFAULT_PACKAGES`."""
    most = options.max_users
    if most is not None and not most >= 1:
        raise UseError(f"max_users must be at least 1, got {most}")
    return Docstrings(packages=tuple(paths) or _DEFAULT_PACKAGES, max_users=most)


@dataclass(frozen=True, kw_only=True)
class Docstrings(Source):
    """Records from the docstrings of installed packages; public text.

    Args:
        packages: names of distributions or top-level packages, or "stdlib".
        max_users: at most this many modules, those with the least hashes; None: all.
    """

    packages: tuple[str, ...] = _DEFAULT_PACKAGES
    max_users: int | None = None

    kind = "docstrings"
    public = True

    @property
    def size(self) -> int:
        """Files to parse."""
        return len(self._files())

    def facts(self) -> dict[str, Any]:
        """The packages with their versions, and Python's."""
        versions = {name: _version(name) for name in self.packages}
        return {"packages": versions, "max_users": self.max_users}

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """The docstrings of modules that have any; see `Source.entries`.

        Modules are read in the order of their hashes, so that ``max_users`` reads no more than
        it needs; each one left unread counts as one dropped record.
        """
        files = sorted(self._files().items(), key=lambda item: user_hash(item[0].encode()))
        users = 0
        for number, (module, file) in enumerate(files):
            progress.at(number + 1)
            if users == self.max_users:
                yield Drop.OVER_MAX_USERS
                continue
            texts = _texts(module, file)
            if texts is None:
                yield Drop.UNREADABLE_MODULE
                continue
            users += any(text.strip() for text in texts)
            yield from (record_of(module, text) for text in texts)

    def _files(self) -> dict[str, Path]:
        """Dotted module name to file, of all packages."""
        files: dict[str, Path] = {}
        for package in self.packages:
            modules = _files_of(package)
            if not modules:
                raise UseError(
                    f"no installed package is named {package!r}, or it has no Python files",
                    hint="name distributions as `pip list` does, or stdlib",
                )
            files.update(modules)
        return dict(sorted(files.items()))


def _texts(module: str, file: Path) -> list[str] | None:
    """The docstrings of a file in the order of its lines; None if it cannot be parsed."""
    try:
        with tokenize.open(file) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if module == _TOPICS:
        return _topics(tree)
    return [text for node in _documented(tree) if (text := ast.get_docstring(node)) is not None]


def _documented(node: ast.AST) -> Iterator[_Documented]:
    """Modules, classes and functions from ``node`` on; expressions are not descended into."""
    if isinstance(node, _DOCUMENTED):
        yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield from _documented(child)


def _topics(tree: ast.Module) -> list[str]:
    """The values of the one dictionary in `pydoc_data.topics`."""
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    values = [value for table in tables for value in table.values]
    return [
        inspect.cleandoc(value.value)
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def _files_of(package: str) -> dict[str, Path]:
    """Module to file: by a distribution's record of files, else of a top-level package."""
    if package == _STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        return _modules(root, [top for top in root.iterdir() if top.name not in _NOT_STDLIB])
    try:
        listed = metadata.files(package) or []
    except (metadata.PackageNotFoundError, ValueError):
        listed = []
    files = {Path(*one.parts): Path(str(one.locate())) for one in listed if one.suffix == ".py"}
    modules = {name: file for path, file in files.items() if (name := _module_name(path))}
    if modules:
        return {name: file for name, file in modules.items() if file.is_file()}
    spec = PathFinder.find_spec(package, sys.path) if package.isidentifier() else None
    for folder in (spec and spec.submodule_search_locations) or []:
        modules |= _modules(Path(folder).parent, [Path(folder)])
    return modules


def _modules(root: Path, tops: list[Path]) -> dict[str, Path]:
    """The modules of files and folders that lie in ``root``."""
    files = [file for top in tops for file in ([top] if top.suffix == ".py" else top.rglob("*.py"))]
    return {name: file for file in files if (name := _module_name(file.relative_to(root)))}


def _module_name(path: Path) -> str | None:
    """Dotted name of a file relative to its root; None for copies, tests and scripts.

    >>> _module_name(Path("numpy/linalg/__init__.py")), _module_name(Path("x/_vendor/six.py"))
    ('numpy.linalg', None)
    """
    parts = list(path.with_suffix("").parts)
    if not all(part.isidentifier() for part in parts):
        return None
    if any(_COPIES.fullmatch(part) or _TESTS.fullmatch(part) for part in parts):
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _version(name: str) -> str | None:
    if name == _STDLIB:
        return platform.python_version()
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None
