"""From records to a user store, and from a store to rows of tokens.

The way of the data: a *source* (`sources/`) yields records and counts what it drops;
`grouping` brings each user's records together in bounded memory; `tokenize` cuts them into
examples; `splits` holds users and records out by a per-user hash; `writer` writes the store
whose layout `format` describes; `store` reads it; `selection` caps a user's examples;
`statistics` describes a store to its operator.

Guarantee (invariant 11): every decision about a private user's records depends on that user's
records, public data and a per-user hash only. Guarantee (invariant 10): every record read is
stored or counted as dropped, with its reason.
"""
