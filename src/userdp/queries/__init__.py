"""Statistics of a store under user-level DP, each a line of the store's privacy ledger."""

from userdp.plans.provenance import Release
from userdp.queries.comparison import ReleasedLosses, release_losses
from userdp.queries.statistics import DEFAULT_STATISTICS, release

__all__ = ["DEFAULT_STATISTICS", "Release", "ReleasedLosses", "release", "release_losses"]
