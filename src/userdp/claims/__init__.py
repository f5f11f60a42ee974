"""The claim: what a model, a run or a store may say of the people whose text it is.

`claims` computes it from ledgers, `lineage` says what it is made of, `weights` follows a model
through copies; `attestation`, `signing` and `exported` write down, sign and check what is handed
on. Every ε that is printed anywhere is a `Claim`'s.
"""

from userdp.claims.claims import Claim, claim
from userdp.claims.conditions import Condition
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Part

__all__ = ["Claim", "Condition", "Lineage", "Part", "claim"]
