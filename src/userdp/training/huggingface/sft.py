"""`UserLevelSFTTrainer`: TRL's `SFTTrainer` with user-level privacy."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from userdp.claims.lineage import Lineage
from userdp.data.records import Drop
from userdp.errors import UseError
from userdp.extras import library
from userdp.training.huggingface.mixin import UserLevelMixin
from userdp.training.origin import digest_of_adapters, lineage_of_weights

if TYPE_CHECKING:
    from trl import SFTTrainer
else:
    SFTTrainer = library("trl", extra="trl", what="UserLevelSFTTrainer").SFTTrainer

_TURNS = ("messages", "conversations", "prompt", "completion")


class UserLevelSFTTrainer(UserLevelMixin, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` with user-level privacy; see `UserLevelMixin` for the arguments.

    Chat templates, assistant masks and completion-only loss are TRL's own: it tokenizes the data
    set and builds the labels. What it would do after that is not done: rows are neither truncated
    nor filtered. A row of more than ``max_length`` tokens becomes several examples of its user, and
    rows or examples that the loss counts nothing of are dropped and counted, in the store.

    Its own numbers (entropy, token accuracy, tokens seen) are never computed on training data, and
    never logged.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        train_dataset: Any = None,
        *,
        seq_len: int | None = None,
        **options: Any,
    ) -> None:
        longest = getattr(args, "max_length", None) if seq_len is None else seq_len
        super().__init__(model, args, train_dataset, seq_len=longest, **options)
        # Whoever loads other adapters before train() begins with what these have learned.
        made_here = options.get("peft_config") is not None
        self._made = digest_of_adapters(self.model) if made_here else None

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> Any:
        if dataset_name == "train":
            args = copy.copy(args)
            args.max_length = None  # neither truncates nor filters; the store cuts, and counts
        with _quiet():
            return super()._prepare_dataset(
                dataset, processing_class, args, packing, formatting_func, dataset_name
            )

    def _readable(
        self, dataset: Any, args: Any, options: Mapping[str, Any]
    ) -> tuple[Any, Mapping[Drop, int]]:
        """The rows that TRL can read, and how many others there were.

        TRL tells the kind of a data set from its first row, and ends with an error at a row that it
        cannot read. One person's row would decide for all. Without such rows the columns decide.
        """
        names = set(getattr(dataset, "column_names", None) or ())
        columns = [name for name in _TURNS if name in names] or [args.dataset_text_field]
        if "messages" in columns:
            columns = ["messages"]
        if options.get("formatting_func") is not None or "input_ids" in names:
            return dataset, {}
        if not set(columns) <= names:
            return dataset, {}  # TRL names the columns that it expects
        lost: Counter[Drop] = Counter()
        kept = []
        for number, row in enumerate(dataset.select_columns(columns)):
            drop = _unusable(row, answered=args.assistant_only_loss)
            if drop is None and not _renders(row, options.get("processing_class")):
                drop = Drop.BAD_TEMPLATE
            if drop is None:
                kept.append(number)
            else:
                lost[drop] += 1
        if not kept:
            raise UseError(f"no row of the data set can be used: {dict(lost)}")
        return (dataset.select(kept) if lost else dataset), lost

    def _lineage_of_base(self) -> Lineage | None:
        given = super()._lineage_of_base()
        if given is None and self._made is not None:
            return lineage_of_weights(self.model, self._store, made=self._made)
        return given


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep TRL's warnings down while it tokenizes: one of them quotes what somebody wrote."""
    logger = logging.getLogger("trl.trainer.sft_trainer")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _unusable(row: Mapping[str, Any], *, answered: bool) -> Drop | None:
    """Why TRL cannot read a row; None if it can."""
    turns: list[Any] = []
    for value in row.values():
        if value is None:
            return Drop.NO_TEXT_FIELD
        if isinstance(value, list):
            if not value:
                return Drop.EMPTY_TEXT
            turns += value
        elif not isinstance(value, str):
            return Drop.NOT_TEXT
        elif not value.strip():
            return Drop.EMPTY_TEXT
    roles = [_role(turn) for turn in turns]
    if None in roles:
        return Drop.NOT_TEXT
    if answered and "assistant" not in roles:
        return Drop.NO_ANSWER
    return None


def _renders(row: Mapping[str, Any], processing_class: Any) -> bool:
    """Whether the chat template can write a conversation; it may refuse one, and quote it."""
    turns = [turn for value in row.values() if isinstance(value, list) for turn in value]
    if not turns or not getattr(processing_class, "chat_template", None):
        return True
    spoken = [
        turn if "role" in turn else {"role": _role(turn), "content": turn.get("value")}
        for turn in turns
    ]
    try:
        processing_class.apply_chat_template(spoken, tokenize=False)
    except Exception:  # a template is a program of its author's, and raises what it likes
        return False
    return True


def _role(turn: Any) -> str | None:
    """Who speaks in a turn, in either of the two spellings; None where it is no turn."""
    if not isinstance(turn, Mapping):
        return None
    role = turn.get("role", turn.get("from"))
    if role is None:
        return None
    return {"gpt": "assistant"}.get(str(role), str(role))
