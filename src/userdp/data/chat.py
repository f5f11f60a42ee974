"""Conversations to text: a chat template, and which of the text the loss counts.

The template is applied to place-holders in place of the messages' contents, and these are put in
afterwards. So nobody's text can open a role or end a turn: what the template wrote is markup, in
which special tokens are such; what people wrote is plain text throughout (also where it spells
``<|im_end|>``). The loss counts the assistant's contents and what ends the assistant's turn.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from userdp.data.records import MARKUP, TARGET, Drop
from userdp.errors import UseError

_DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] }}\n\n{% endfor %}"
)
"""``User: …``, a blank line, ``Assistant: …``, a blank line; used where a tokenizer has none."""

_ASSISTANT = ("assistant", "model", "gpt", "bot")
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(?=\s*[-+]?%\})")
Message = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text.

    Args:
        text: of the whole.
        pieces: as `Record.pieces`.
    """

    text: str
    pieces: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A tokenizer's chat template, or the default.

    Args:
        source: Jinja text; None: `_DEFAULT_TEMPLATE`. Rendered in a sandbox.
        special_tokens: variables of the template, as ``("eos_token", "</s>")``.
    """

    def __init__(
        self, source: str | None = None, special_tokens: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._made_of = (source, tuple(special_tokens))
        sandbox = importlib.import_module("jinja2.sandbox")
        self._errors: type[Exception] = importlib.import_module("jinja2").TemplateError
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = lambda form: ""
        self._variables: dict[str, Any] = dict(special_tokens)
        self._specials = sorted((token for _, token in special_tokens if token), key=len)[::-1]
        try:
            # `transformers` marks the assistant's turns by tags of its own, which write nothing.
            plain = _GENERATION.sub(_without_meaning, source or _DEFAULT_TEMPLATE)
            self._template = environment.from_string(plain)
        except self._errors as error:
            raise UseError(f"the chat template cannot be read: {error}") from error

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[Any, ...]]:
        """Pickled as what it is made of: what Jinja compiles cannot be."""
        return ChatTemplate, self._made_of

    def _refuse(self, message: str) -> None:
        raise importlib.import_module("jinja2").TemplateRuntimeError(message)

    def render(self, messages: Sequence[Message]) -> Rendered | Drop:
        """The text of a conversation of (role, content), and its pieces.

        A conversation that the template refuses (say, two turns of one role), or of which it
        leaves a message out, is a drop; one without an assistant's turn also.
        """
        if not any(role in _ASSISTANT for role, _ in messages):
            return Drop.NO_ANSWER
        held = [
            {"role": role, "content": f"{_OPEN}{number}{_CLOSE}"}
            for number, (role, _) in enumerate(messages)
        ]
        try:
            text = self._template.render(
                messages=held, add_generation_prompt=False, tools=None, **self._variables
            )
        except (self._errors, TypeError, ValueError, KeyError, AttributeError):
            return Drop.BAD_TEMPLATE
        markup = _PLACE.split(text)  # markup, number, markup, number, ..., markup
        order = [int(number) for number in markup[1::2]]  # a template may move the system's message
        if sorted(order) != list(range(len(messages))):
            return Drop.BAD_TEMPLATE
        return self._join(markup, [messages[number] for number in order])

    def _join(self, markup: list[str], messages: Sequence[Message]) -> Rendered:
        parts: list[tuple[str, int]] = [(markup[0], MARKUP)]
        for number, (role, content) in enumerate(messages):
            after = markup[2 * number + 2]
            if role in _ASSISTANT:
                end = self._end_of_turn(after)
                parts.append((content, TARGET))
                parts.append((after[:end], MARKUP | TARGET))
                parts.append((after[end:], MARKUP))
            else:
                parts += [(content, 0), (after, MARKUP)]
        text, pieces = "", []
        for part, kind in parts:
            if part:
                text += part
                pieces.append((len(text), kind))
        return Rendered(text, tuple(pieces))

    def _end_of_turn(self, markup: str) -> int:
        """How much of the markup after an assistant's content ends that turn.

        Up to the end of the first special token, if it comes before anything else but blanks;
        else the blanks.
        """
        blanks = len(markup) - len(markup.lstrip())
        rest = markup[blanks:]
        for token in self._specials:
            if rest.startswith(token):
                return blanks + len(token)
        named = re.match(r"<[|/]?[\w|/-]+>", rest)
        return blanks + named.end() if named else blanks


def _without_meaning(tag: re.Match[str]) -> str:
    return f"{tag[1]}{'endif' if tag[2] else 'if true'}"
