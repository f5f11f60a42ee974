"""From records to a user store, and from a store to rows of tokens.

The way of the data: a *source* (`sources/`) yields records and counts what it drops;
`store_tokenizer` turns them into tokens, here or on the machines of `spark`; `grouping` brings each
user's records together in bounded memory; `examples` cuts them; `splits` holds users and records
out by a per-user hash; `writer` writes the store whose layout `store_meta` describes, one
generation of `store_contents` after another; `user_store` reads it; `selection` caps a user's
examples.

A source of one's own needs `userdp.data.records`; everything is imported from the file that defines
it, so that ``import userdp.data`` loads no database.

Guarantee (invariant 11): every decision about a private user's records depends on that user's
records, public data and a per-user hash only. Guarantee (invariant 10): every record read is
stored or counted as dropped, with its reason.
"""
