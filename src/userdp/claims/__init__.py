"""The claim: what a model, a run or a store may say of the people whose text it is.

`claims` computes it from ledgers, and `words` says it. `lineage` is what it is made of (`parts`),
by the ledgers of a run and of a store. `subject` knows a model by its weights and finds its
ancestors. `released`, `verify` and `signing` compare, check and sign what is handed on.
"""

from userdp.claims.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Condition, Part
from userdp.claims.words import Claim

__all__ = ["Claim", "Condition", "Lineage", "Part", "claim"]
