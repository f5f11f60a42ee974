"""From runs to what a reader sees: plots and one self-contained HTML page.

The public part is rendered only from `facts.Facts`, which are read from the run's ledger and the
allowed constants of its configuration; what the operator may know comes apart, as
`operator_part.OperatorFacts`, and the public page is rendered without it.
"""
