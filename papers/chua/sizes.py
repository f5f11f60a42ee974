"""Tables 10 and 11 of Chua et al. 2024: the same contrasts of k on a larger model."""

from __future__ import annotations

from typing import ClassVar

from papers.chua.records_per_user import by_records
from papers.studies.findings import Finding
from papers.studies.intervals import Losses
from papers.studies.study import Study


class Sizes(Study):
    """The bundled model, 3.6 times as large as that of the other designs; commits."""

    design: ClassVar[str] = "chua-sizes"
    figures: ClassVar[tuple[str, ...]] = ("chua-table-10", "chua-table-11")
    panel: ClassVar[tuple[str, ...]] = ("epsilon",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "group_size"
    title: ClassVar[str] = "The bundled model (2.6 M parameters) on commits"

    def findings(self, losses: Losses) -> list[Finding]:
        """k = 10 against k = 2, as for the smaller model."""
        return [by_records(losses, figure) for figure in self.figures]
