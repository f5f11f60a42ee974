"""Every mutant of a module that cosmic-ray's operators find, less those that mean nothing.

A mutant is left out by rule, whatever the tests say of it, where it lies in

- an annotation, the condition ``TYPE_CHECKING``, or what follows ``raise``: types and words change
  nothing that runs right;
- a decorator's options (``@dataclass(frozen=True)``), or is a decorator that changes no result
  (`_HARMLESS`);
- a function that only steers a certified search, or the definition of a constant that only tunes
  (``tuning.toml`` lists both, each with the reason);

and where it only puts ``is`` for ``==`` or the reverse, puts a bitwise operator for an arithmetic
one (on floats that fails by itself, and would flatter the score), puts ``+x`` for ``-x`` beside
``x``, or leaves a program that Python does not read or that is the same one.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from benchmarks.faults.drawn.operators import CallLeftOut, ExtremeExchanged

_HARMLESS = re.compile(
    r"(functools\.)?(lru_cache|cache|override|final|abstractmethod|overload|runtime_checkable)\b"
)
_BITWISE = {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"}
_BINARY = {"arith_expr", "term", "expr", "and_expr", "xor_expr", "shift_expr", "power"}
_BARE = {"newline", "string", "endmarker", "trailer", "arglist", "parameters", "param", "suite"}
_TUNING = Path(__file__).parent / "tuning.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One change of one module.

    Args:
        file: below ``src/userdp``.
        function: in which it lies, with its classes; empty for the module itself.
        operator: cosmic-ray's name of it, or that of a class of `operators`.
        block: which of the module's own statements (functions, classes, others) it lies in.
        occurrence: which of the operator's places in that statement.
        lines: first and last line of the place.
        old: what stands there: the lines, stripped.
        new: what is put in their place.
    """

    file: str
    function: str
    operator: str
    block: int
    occurrence: int
    lines: tuple[int, int]
    old: str
    new: str

    @property
    def name(self) -> str:
        """The same as long as the function and the lines are: other changes do not rename it."""
        told = "\n".join((self.file, self.function, self.old, self.new))
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def planted(self, source: str) -> str:
        """``source`` with the mutant in it."""
        blocks = list(_blocks(source))
        blocks[self.block] = _mutated(blocks[self.block], self.operator, self.occurrence)
        return "".join(blocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A piece of a module that can be changed, in one or several ways.

    Args:
        file: below ``src/userdp``.
        function: in which it lies.
        number: among the places of the function.
        block: which of the module's own statements it lies in.
        ways: operator, occurrence of it in the block, first and last line.
    """

    file: str
    function: str
    number: int
    block: int
    ways: tuple[tuple[str, int, tuple[int, int]], ...]

    @property
    def key(self) -> str:
        """Its name in the draw."""
        return f"{self.file} {self.function} {self.number}"


def places(file: str, source: str) -> list[Place]:
    """All places of a module, in its order.

    Args:
        file: below ``src/userdp``.
        source: its text.
    """
    ways: dict[tuple[Any, Any], list[tuple[str, int, tuple[int, int]]]] = {}
    functions: dict[tuple[Any, Any], tuple[str, int]] = {}
    tuned = {name for one, name in tuning("constants") if one == file}
    steering = tuple(name for one, name in tuning("steering") if one == file)
    for block, statement in enumerate(parso.parse(source).children):
        seen: Counter[str] = Counter()
        for node in ast_nodes(statement):
            for name, operator in _operators_of(node):
                for start, end in operator.mutation_positions(node):
                    way = (name, seen[name], (start[0], end[0]))
                    seen[name] += 1
                    if not _means_nothing(name, node, tuned):
                        ways.setdefault((start, end), []).append(way)
                        functions.setdefault((start, end), (_function(node), block))
    numbers: Counter[str] = Counter()
    found = []
    for position in sorted(ways):
        function, block = functions[position]
        if any(name in ("", *_around(function)) for name in steering):
            continue
        number = numbers[function]
        numbers[function] += 1
        kept = tuple(ways[position])
        one = Place(file=file, function=function, number=number, block=block, ways=kept)
        found.append(one)
    return found


def mutant(place: Place, way: int, source: str) -> Mutant | None:
    """One of the mutants of a place; None where its program is none, or the same one."""
    operator, occurrence, lines = place.ways[way]
    sound = _blocks(source)[place.block]
    text = _mutated(sound, operator, occurrence)
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(sound))
    except SyntaxError:
        return None
    if same:
        return None
    old, new = _differing(sound, text)
    return Mutant(
        file=place.file,
        function=place.function,
        operator=operator,
        block=place.block,
        occurrence=occurrence,
        lines=lines,
        old=old,
        new=new,
    )


@cache
def tuning(kind: str) -> dict[tuple[str, str], str]:
    """Functions that only steer or constants that only tune: file and name, and why.

    Args:
        kind: ``steering`` or ``constants``.
    """
    entries = tomllib.loads(_TUNING.read_text("utf-8"))[kind]
    names = {"steering": "functions", "constants": "names"}[kind]
    return {(one["file"], name): one["why"] for one in entries for name in one[names]}


@cache
def _operators() -> dict[str, Any]:
    """The operators that change one place in one way, by name."""
    found: dict[str, Any] = {}
    for name in operator_names():
        short = name.partition("/")[2]
        if not short.startswith("Variable") and not _left_out(short):  # these draw numbers
            found[short] = get_operator(name)()
    for own in (CallLeftOut, ExtremeExchanged):
        found[own.__name__] = own()
    return found


@cache
def _blocks(source: str) -> tuple[str, ...]:
    """The module's own statements, one after another: to parse one of them takes a tenth."""
    return tuple(statement.get_code() for statement in parso.parse(source).children)


def _mutated(block: str, operator: str, occurrence: int) -> str:
    text = mutate_code(block, _operators()[operator], occurrence)
    if text is None:
        raise ValueError(f"there is no place {occurrence} for {operator} in {block!r}")
    return str(text)


def _operators_of(node: Any) -> Iterable[tuple[str, Any]]:
    """Those that may have a place at ``node``: most nodes are names and commas, and have none."""
    if node.type == "name":
        return [(ExtremeExchanged.__name__, _operators()[ExtremeExchanged.__name__])]
    if node.type == "operator" and node.parent.type not in _BINARY:
        return []
    return [] if node.type in _BARE else _operators().items()


def _left_out(operator: str) -> bool:
    if operator.startswith("ReplaceBinaryOperator"):
        old, new = operator.split("_")[1:]
        return (old in _BITWISE) != (new in _BITWISE)
    if operator.startswith("ReplaceUnaryOperator"):
        return "_Delete_" not in operator
    if operator.startswith("ReplaceComparisonOperator"):
        return set(operator.split("_")[1:]) in ({"Eq", "Is"}, {"NotEq", "IsNot"})
    return False


def _means_nothing(operator: str, node: Any, tuned: set[str]) -> bool:
    if operator == "RemoveDecorator":
        return _HARMLESS.match(node.children[1].get_code().strip()) is not None
    if node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING":
        return True
    return any(_is_nothing(one, above, tuned) for one, above in _upwards(node))


def _is_nothing(node: Any, above: Any, tuned: set[str]) -> bool:
    """Whether all that lies in ``node``, a child of ``above``, means nothing."""
    if above.type in ("raise_stmt", "decorator"):
        return True
    if above.type == "annassign":
        return node is above.children[1]
    if above.type == "tfpdef":
        return node is above.children[-1]
    if above.type == "funcdef":
        return node is above.annotation
    if above.type == "expr_stmt" and above.search_ancestor("funcdef", "lambdef") is None:
        return any(name.value in tuned for name in above.get_defined_names())
    return False


def _upwards(node: Any) -> Iterator[tuple[Any, Any]]:
    while node.parent is not None:
        yield node, node.parent
        node = node.parent


def _function(node: Any) -> str:
    """The qualified name of the function or class around ``node``."""
    names = []
    above = node.parent if node.type in ("funcdef", "classdef") else node
    while above is not None:
        if above.type in ("funcdef", "classdef"):
            names.append(above.name.value)
        above = above.parent
    return ".".join(reversed(names))


def _around(function: str) -> list[str]:
    """The function itself and those that it lies in."""
    names = function.split(".")
    return [".".join(names[:end]) for end in range(1, len(names) + 1)]


def _differing(source: str, text: str) -> tuple[str, str]:
    """The lines in which two texts differ, without those that they have in common."""
    old, new = source.splitlines(), text.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return _joined(old), _joined(new)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)
