"""`Command`: one command of ``userdp``, whose help reads as prose."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Parameter, Token
from cyclopts.argument import Argument, ArgumentCollection

from userdp.hints import in_shell


class Command(App):
    """One command; its function, in a module of its own, is imported when the command is called."""

    @property
    def help(self) -> str:
        """The line in the list of commands, then what the function's docstring says besides."""
        return "\n\n".join([super().help, *_besides(self.default_command)])

    @help.setter
    def help(self, line: str) -> None:
        self._help = line

    def assemble_argument_collection(
        self, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        """The options; with their help (``parse_docstring``) as a reader should find them.

        For help and shell completion what every command takes stands with them; when a line is
        parsed, `userdp.cli.app` has taken those off before.
        """
        found = super().assemble_argument_collection(
            default_parameter=default_parameter, parse_docstring=parse_docstring
        )
        for argument in found:
            if int in (argument.hint, *get_args(argument.hint)):
                whole = Parameter(converter=_whole)
                argument.parameter = Parameter.combine(argument.parameter, whole)
        if not parse_docstring:
            return found
        everywhere = App(default_command=_everywhere, default_parameter=Parameter(negative=()))
        found.extend(everywhere.assemble_argument_collection(parse_docstring=True))
        options = options_of(found)
        for argument in found:
            told = Parameter(help=in_shell(flowing(argument.parameter.help or ""), options))
            default = argument.field_info.default
            if isinstance(default, bool) or default == ():
                told = Parameter.combine(told, Parameter(show_default=False))
            argument.parameter = Parameter.combine(argument.parameter, told)
        return found


def for_a_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `userdp.commands` as the command-line library is to read it.

    The first argument has no name on a line. A path is text there, whatever else a program may
    give; a dataclass is a group of options; and what only a program has (whom to tell how far it
    is, further keywords) is no option.
    """

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    hints = get_type_hints(function, include_extras=True)
    parameters = []
    for place, one in enumerate(inspect.signature(function).parameters.values()):
        several = get_origin(hints[one.name]) in (Union, types.UnionType)
        kinds = get_args(hints[one.name]) if several else (hints[one.name],)
        if one.name == "progress" or one.kind is one.VAR_KEYWORD:
            continue
        hint = hints[one.name]
        if any(get_origin(kind) is os.PathLike or kind is Path for kind in kinds):
            hint = Path | None if type(None) in kinds else Path
        elif any(dataclasses.is_dataclass(kind) for kind in kinds):
            hint = Annotated[hint, Parameter(name="*", group="Settings")]
        elif one.default is True:  # only leaving out is an option
            hint = Annotated[hint, Parameter(negative=f"--no-{one.name.replace('_', '-')}")]
        if one.name == "user":  # it may be "-", which the library would take for an option
            hint = Annotated[hint, Parameter(allow_leading_hyphen=True)]
        kind = one.KEYWORD_ONLY if place else one.POSITIONAL_ONLY
        parameters.append(one.replace(annotation=hint, kind=kind))
    signature = inspect.Signature(parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]  # which typeshed does not list
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    del command.__wrapped__
    return command


def options_of(found: Iterable[Argument]) -> dict[str, str]:
    """Name of a field to the option that fills it."""
    return {one.field_info.name: one.name for one in found if one.name.startswith("--")}


def _besides(function: Any) -> list[str]:
    """The paragraphs of a function's docstring between its first line and its arguments."""
    doc = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
    return [flowing(part) for part in doc.split("\n\n")[1:] if part.strip()]


def flowing(text: str) -> str:
    """Text without the line breaks of the source, so that only the terminal's width breaks it.

    >>> flowing("one sentence\\n    goes on")
    'one sentence goes on'
    """
    return re.sub(r"\s*\n\s*", " ", text).strip()


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """A whole number, as 1000 or 1e3; the library would round 1.5, and nobody would know."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise ValueError(f"{text} is no whole number") from None
        return int(value)


_Anywhere = Parameter(group="With every command")


def _everywhere(
    *,
    config: Annotated[Path | None, _Anywhere] = None,
    json: Annotated[bool, _Anywhere] = False,
) -> None:
    """What every command takes.

    Args:
        config: a TOML file with a section for each command, as [train]; options override it.
        json: one JSON object on stdout, errors too; progress goes to stderr.
    """
