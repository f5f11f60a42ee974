"""Statistics of a store under user-level DP, each a line of the store's privacy ledger."""

from userdp.queries.comparison import ReleasedComparison, ReleasedDifference, release_comparison
from userdp.queries.means import ReleasedMean, ReleasedMeans, release_means
from userdp.queries.medians import ReleasedMedians, charge_medians, draw_medians
from userdp.queries.release import DEFAULT_STATISTICS, Release, release
from userdp.queries.statistics import Statistic, parse_statistic

__all__ = [
    "DEFAULT_STATISTICS",
    "Release",
    "ReleasedComparison",
    "ReleasedDifference",
    "ReleasedMean",
    "ReleasedMeans",
    "ReleasedMedians",
    "Statistic",
    "charge_medians",
    "draw_medians",
    "parse_statistic",
    "release",
    "release_comparison",
    "release_means",
]
