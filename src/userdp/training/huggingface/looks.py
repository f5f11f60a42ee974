"""Evaluation and prediction of a private trainer: looks at people's text, which a ledger notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer

from userdp import files
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.training.huggingface.refusals import EVALUATION
from userdp.training.private_run import PrivateRun


class Looks(Trainer):  # type: ignore[misc]  # transformers leaves its classes untyped
    """Notes each exact look in the store's ledger, once, and refuses it while steps remain.

    What these methods return is exact, so it is the operator's: constants of later runs that were
    chosen by it are no longer declared. Data that was declared public is nobody's: not noted.
    """

    _private: PrivateRun | None
    _public_eval: bool
    _store: UserStore
    _noted = False  # a look that is going on is in the ledger

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """As in `transformers.Trainer`; on private text it is a look, which the ledger notes."""
        with self._looking("evaluate"):
            metrics: dict[str, float] = super().evaluate(*arguments, **options)
        return metrics

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """As in `transformers.Trainer`; on private text it is a look, which the ledger notes."""
        with self._looking("predict"):
            return super().predict(*arguments, **options)

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        """As in `transformers.Trainer`; on private text it is a look, which the ledger notes."""
        with self._looking("evaluate"):
            return super().evaluation_loop(*arguments, **options)

    def prediction_step(self, *arguments: Any, **options: Any) -> Any:
        """As in `transformers.Trainer`; refused while private steps remain."""
        self._refuse_while_open()
        return super().prediction_step(*arguments, **options)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """As in `transformers.Trainer`; the files are the operator's (mode 0600)."""
        super().save_metrics(split, metrics, combined=combined)
        for path in Path(self.args.output_dir).glob("*_results.json"):
            path.chmod(files.OPERATOR_FILE)

    @contextmanager
    def _looking(self, what: str) -> Iterator[None]:
        """Note a look, unless it is a part of one that is noted."""
        self._refuse_while_open()
        if self._noted or self._public_eval:
            yield
            return
        StoreLedger(self._store.path).look(what)
        self._noted = True
        try:
            yield
        finally:
            self._noted = False

    def _refuse_while_open(self) -> None:
        """`UseError` where an exact number of people's text could steer the steps that remain."""
        if self._private is not None and not self._public_eval:
            raise UseError(f"evaluation is refused now: {EVALUATION.why}", hint=EVALUATION.instead)
