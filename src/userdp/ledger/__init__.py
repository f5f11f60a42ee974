"""Append-only records of what ran; every claimed ε is recomputed from them (`userdp.claims`).

`run` holds a line per attempted step of one run, `store` a reservation and a settlement per run
for the people whose data it is, `opening` sees to it that one charge is gone on with once.
"""

from userdp.ledger.folder import RunFolder
from userdp.ledger.run import RunLedger
from userdp.ledger.store import StoreLedger

__all__ = ["RunFolder", "RunLedger", "StoreLedger"]
