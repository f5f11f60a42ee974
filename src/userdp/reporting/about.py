"""What an operator says beside the numbers: who releases the model, of what data, and when.

Nothing of it is read from the data or checked by userdp, and a page says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from userdp.errors import UseError
from userdp.reporting.markdown import visible

_LONGEST = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """The operator's own words.

    Args:
        organisation: that releases the model.
        contact: whom to ask: a name, an address.
        data_description: what the data is. No count of it, which no ε covers.
        date: of the report.

    Raises:
        UseError: a text is empty, or longer than 500 characters.
    """

    organisation: str | None = None
    contact: str | None = None
    data_description: str | None = None
    date: date | None = None

    def __post_init__(self) -> None:
        for name in ("organisation", "contact", "data_description"):
            text = getattr(self, name)
            if text is None:
                continue
            if not text.strip() or len(text) > _LONGEST:
                raise UseError(
                    f"{name} must have from 1 to {_LONGEST} characters, got {len(text.strip())}: "
                    "it stands in the head of the report",
                    hint="leave it out, or say it shortly",
                )
            object.__setattr__(self, name, visible(text.strip()))

    @property
    def day(self) -> str:
        """The date, in ISO 8601; empty if there is none."""
        return "" if self.date is None else self.date.isoformat()
