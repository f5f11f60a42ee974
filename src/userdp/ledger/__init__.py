"""Append-only records of what ran; every claimed ε is recomputed from them (`userdp.claims`).

`charged_parts` holds what can be charged, each with its price; `lines` has a class for each kind of
line, and `journal` the file that lines stand in. Of the people's ledger `store_history` says what
its lines come to, and `permitted_lines` which line may follow, who may go on with a run, and what
a budget refuses; `store_ledger` writes it, with a `run_lock` beside it for each run, which counts
its attempts too. Of a run, `run_folder` names its files, and `run_ledger` reads and writes its
ledger.
"""

from userdp.ledger.lines import Charge
from userdp.ledger.run_folder import RunFolder
from userdp.ledger.run_ledger import RunLedger, RunRecord
from userdp.ledger.store_history import History
from userdp.ledger.store_ledger import StoreLedger

__all__ = ["Charge", "History", "RunFolder", "RunLedger", "RunRecord", "StoreLedger"]
