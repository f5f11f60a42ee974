"""Append-only records of what ran; every claimed ε is recomputed from them.

`run` holds a line per attempted step of one run, `store` a reservation and a settlement per run
for the people whose data it is, `claim` turns either into a `Guarantee`.
"""

from userdp.ledger.claim import Claim, claim
from userdp.ledger.folder import RunFolder
from userdp.ledger.run import RunLedger
from userdp.ledger.store import StoreLedger

__all__ = ["Claim", "RunFolder", "RunLedger", "StoreLedger", "claim"]
