"""The claim: what a model, a run or a store may say of the people whose text it is.

`lineage` is what a claim is made of: parts, each with a price (`userdp.ledger.charged_parts`), and
conditions, which no price covers. `ledger_lineage` reads it from ledgers, `claims` computes the
claim from it, and `claim_sentences` says it. `weights` knows a model by its weights and finds its
ancestors. `released_files`, `signed_statement` and `verify` bind, sign and check what is handed on.
"""

from userdp.claims.claim_sentences import Claim
from userdp.claims.claims import claim
from userdp.claims.lineage import Condition, Lineage
from userdp.ledger.charged_parts import Part

__all__ = ["Claim", "Condition", "Lineage", "Part", "claim"]
