"""The claim: what a model, a run or a store may say of the people whose text it is.

`claims` computes it from ledgers, `lineage` says what it is made of (`parts`), `weights` follows a
model through copies; `verify` and `signing` check and sign what is handed on.
"""

from userdp.claims.claims import Claim, claim
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Condition, Part

__all__ = ["Claim", "Condition", "Lineage", "Part", "claim"]
