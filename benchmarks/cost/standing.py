"""`Standing`: the prediction that was made of a setting before it was measured.

A prediction that is made, or mended, after its measurement shows nothing. So a prediction's row
says when it was made and from what; `benchmarks.paper_size` measures a setting only where its
prediction stands, and notes the digest of that row in each of its own. Whoever changes a
prediction afterwards changes its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cost.settings import FITTED
from benchmarks.paper_size.settings import Setting
from benchmarks.rows import whole_rows
from userdp.codec import digest
from userdp.errors import UseError
from userdp.gradients.cost import CPU

PREDICTED = Path("docs/results/cost-predicted.jsonl")
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A prediction that stands.

    Attributes:
        row: as it was written.
    """

    row: Row

    @property
    def digest(self) -> str:
        """Of the whole row; a measurement notes it."""
        return digest(dict(self.row))


def origins(setting: Setting, *, source: str) -> dict[str, str]:
    """Digests of all that a prediction of ``setting`` is made from.

    That is the setting itself (the model's shape, the sequences and their units), the rates of the
    CPU, the settings that the rates were fitted to, and the package's source, which is counted.

    Args:
        setting: which is predicted.
        source: digest of the package's modules, as they were when this process began: a module
            that is changed on the disk while settings are counted is not what is counted.
    """
    return {
        "setting": digest(setting),
        "rates": digest(CPU.rates),
        "fitted": digest(list(FITTED)),
        "source": source,
    }


def standing(setting: Setting, predictions: Iterable[Row]) -> Standing:
    """The one prediction of this very setting.

    Raises:
        UseError: there is none, there are several, or it is of another setting of that name.
    """
    rows = [row for row in predictions if row["setting"] == setting.key]
    if not rows:
        raise UseError(
            f"no prediction of {setting.key} stands in {PREDICTED}, and one that is made after "
            "the measurement could not be wrong",
            hint=f"run `python -m benchmarks.cost predict --only {setting.key}` and commit its row "
            "first, or measure with --unpredicted what is never to be predicted",
        )
    if len(rows) > 1:
        raise UseError(
            f"{len(rows)} predictions of {setting.key} stand in {PREDICTED}: whichever comes "
            "nearest could be called the one",
            hint="keep the row that was committed first",
        )
    if rows[0]["from"]["setting"] != digest(setting):
        raise UseError(
            f"the prediction of {setting.key} in {PREDICTED} was made of another model, or of "
            "other units, than the setting has now: it says nothing of this measurement",
            hint=f"remove its row and run `python -m benchmarks.cost predict --only {setting.key}`",
        )
    return Standing(row=rows[0])


def require_unmeasured(setting: Setting, measured: Path) -> None:
    """Refuse to predict what has been measured.

    Raises:
        UseError: there are rows of the setting in ``measured``.
    """
    if any(row["setting"] == setting.key for row in whole_rows(measured)):
        raise UseError(
            f"{setting.key} has been measured ({measured}): a prediction of it would be made by "
            "somebody who could know the answer",
            hint="predict a setting that nobody has measured",
        )
