"""The claim: what a model, a run or a store may say of the people whose text it is.

`lineage` is what a claim is made of (`parts`), and `descent` reads it from ledgers. `claims`
computes the claim from that, and `words` says it. `weights` knows a model by its weights and finds
its ancestors. `released`, `statement` and `verify` bind, sign and check what is handed on.
"""

from userdp.claims.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Condition, Part
from userdp.claims.words import Claim

__all__ = ["Claim", "Condition", "Lineage", "Part", "claim"]
