"""Command-line options, made from the descriptions that each sampling gives of its constants.

No sampling is named here, so that a new one needs no change of the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Parameter

from userdp.errors import UseError
from userdp.sampling import SAMPLINGS, Sampling


class Options:
    """What `options_class` makes, for those who read the code: any field may be there."""

    def __init__(self, **values: Any) -> None: ...

    def __getattr__(self, name: str) -> Any: ...


def options_class(
    name: str,
    *,
    without: Collection[str] = (),
    bases: tuple[type, ...] = (),
    also: Mapping[str, tuple[str, ...]] | None = None,
    priced: bool = False,
) -> Any:
    """A dataclass of ``--sampling`` and every constant that a sampling has, each None by default.

    Args:
        name: of the class.
        without: constants that are given in another way.
        bases: dataclasses of further options.
        also: further flags of an option, by its name.
        priced: only samplings that have a price.
    """
    chosen = {kind: one for kind, one in SAMPLINGS.items() if one.covered or not priced}
    draws: dict[str, list[str]] = {}
    for kind, one in chosen.items():
        draws.setdefault(one.words.draw, []).append(kind)
    kinds = "; ".join(f"{', '.join(who)}: {draw}" for draw, who in draws.items())
    told: dict[str, dict[str, list[str]]] = {}
    types: dict[str, Any] = {}
    for kind, sampling in chosen.items():
        types |= get_type_hints(sampling)
        for option, what in sampling.words.options.items():
            if option not in without:
                told.setdefault(option, {}).setdefault(what, []).append(kind)
    # The help tells each of the choices already.
    made = [_option("sampling", Literal[tuple(chosen)], kinds, (), show_choices=False)]
    for option, whats in told.items():
        words = "; ".join(f"{what} ({', '.join(who)})" for what, who in whats.items())
        made.append(_option(option, types[option], words, (also or {}).get(option, ())))
    options: Any = make_dataclass(name, made, bases=bases, frozen=True, kw_only=True)
    # The command-line library takes a class of no module for a builtin, and reads hints off
    # ``__init__``, where those of the bases are still the text that their own modules know.
    options.__module__ = __name__
    options.__init__.__annotations__ = get_type_hints(options, include_extras=True)
    return options


def chosen_sampling(options: Any, *, missing: str) -> type[Sampling]:
    """The class that ``--sampling`` names; `UseError` says ``missing`` where it is not given."""
    if options.sampling is None:
        raise UseError(missing, hint=f"use --sampling {', '.join(SAMPLINGS)}")
    return SAMPLINGS[options.sampling]


def constants_of(
    options: Any, sampling: type[Sampling], *, without: Collection[str] = ()
) -> dict[str, Any]:
    """What the options say of the constants of a sampling.

    Raises:
        UseError: one that has no default is missing, or one was given that the sampling has not.
    """
    known = {one.name: one for one in fields(sampling) if one.name not in without}
    names = dict.fromkeys(one.name for any_one in SAMPLINGS.values() for one in fields(any_one))
    given = {
        name: getattr(options, name)
        for name in names
        if name not in without and getattr(options, name, None) is not None
    }
    require_options(
        {
            name: given.get(name, one.default if one.default is not MISSING else None)
            for name, one in known.items()
        },
        why=f"--sampling {sampling.kind} needs it",
    )
    stray = [flag(name) for name in given if name not in known]
    if stray:
        raise UseError(f"{', '.join(stray)} has no meaning with --sampling {sampling.kind}")
    return given


def require_options(values: Mapping[str, Any], *, why: str) -> None:
    """`UseError` that names each option whose value is None."""
    missing = [flag(name) for name, value in values.items() if value is None]
    if missing:
        raise UseError(f"missing {', '.join(missing)}: {why}", hint="see --help")


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def _option(
    name: str, kind: Any, words: str, also: tuple[str, ...], *, show_choices: bool = True
) -> tuple[str, Any, Any]:
    names = (flag(name), *also) if also else None
    parameter = Parameter(name=names, help=words, show_choices=show_choices)
    return name, Annotated[kind | None, parameter], field(default=None)
