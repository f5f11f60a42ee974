"""Docstrings of installed packages: one user per module, one record per docstring.

Real heavy-tailed text that is on every machine. ``PATH`` names distributions, as ``pip list`` does
(``numpy``, ``scikit-learn``, ``transformers``), or ``stdlib`` for Python's own library together
with the topics of ``pydoc`` (``pydoc_data.topics``). Nothing is imported: files are parsed.

Left out: vendored copies (``_vendor``, ``vendored``, ``extern``, ``_distributor``...), test
modules. The text is public, so this source may compare users with each other, which invariant 11
forbids for private text: a docstring that several modules share, as copied ones do, is kept in the
first of them. Else a text could stand in training modules and in held-out ones, and make the
held-out loss look better than it is.
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.rows_to_records import record_of
from userdp.data.sources.source import At, Entry, Source, SourceOptions

_STDLIB = "stdlib"
_NOT_STDLIB = {"site-packages", "dist-packages", "lib2to3", "ensurepip", "lib-dynload"}
"""What lies beside Python's own library, or is a copy of other text."""
_DEFAULT_PACKAGES = ("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib")
"""Packages that userdp depends on anyway."""

_COPIES = re.compile(r"_?vendor(ed)?|_?extern(al|als)?|third_party|_distutils_hack|__pycache__")
_TESTS = re.compile(r"_?test.*|.*_tests?|conftest")
_TOPICS = "pydoc_data.topics"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def open_packages(paths: list[str], options: SourceOptions) -> Source:
    """The source for packages ``paths``; none: `_DEFAULT_PACKAGES`."""
    packages = tuple(paths) or _DEFAULT_PACKAGES
    modules = {name: file for package in packages for name, file in _files_of(package).items()}
    versions = {name: _version(name) for name in packages}
    return Source(kind="docstrings", places=(modules,), read=_read, facts={"packages": versions})


def _read(modules: dict[str, Path], at: At) -> Iterator[Entry]:
    """The docstrings of modules; each text is kept in the first module that has it."""
    seen = set[str]()
    for module, file in sorted(modules.items()):
        texts = _texts(module, file)
        if texts is None:
            yield Drop.UNREADABLE_MODULE
            continue
        yield from (Drop.REPEATED if one in seen else record_of(module, one) for one in texts)
        seen.update(texts)


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
    documented = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    documented.sort(key=lambda node: getattr(node, "lineno", 0))  # a module has no line
    return [text for text in map(ast.get_docstring, documented) if text is not None]


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
    """Module to file, by a distribution's record of files."""
    if package == _STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        tops = [top for top in root.iterdir() if top.name not in _NOT_STDLIB]
        found = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*.py"))]
        files = {file.relative_to(root): file for file in found if file.suffix == ".py"}
    else:
        try:
            listed = metadata.files(package) or []
        except (metadata.PackageNotFoundError, ValueError):
            listed = []
        files = {Path(*one.parts): Path(str(one.locate())) for one in listed if one.suffix == ".py"}
    named = {_module_name(path): file for path, file in files.items()}
    modules = {name: file for name, file in named.items() if name and file.is_file()}
    if not modules:
        raise UseError(
            f"no installed package is named {package!r}, or it has no Python files",
            hint="name distributions as `pip list` does, or stdlib",
        )
    return modules


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


def _version(name: str) -> str:
    return platform.python_version() if name == _STDLIB else metadata.version(name)
