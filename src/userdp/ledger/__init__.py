"""Append-only records of what ran; every claimed ε is recomputed from them (`userdp.claims`).

`lines` holds a class for each kind of line, `history` what those of a store come to, `admission`
which may follow, `folder` what is read of a run; `store` writes the ledger of the people, `run`
that of a run.
"""

from userdp.ledger.folder import RunFolder, RunRecord
from userdp.ledger.history import Charge, History
from userdp.ledger.run import RunLedger
from userdp.ledger.store import StoreLedger

__all__ = ["Charge", "History", "RunFolder", "RunLedger", "RunRecord", "StoreLedger"]
