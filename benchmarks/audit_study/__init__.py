"""The audit's evidence on two real texts: right runs, broken runs, and user inference.

    python -m benchmarks.surface prepare                   # the small base model of public text
    python -m benchmarks.audit_study prepare [--data DIR]  # two stores
    python -m benchmarks.audit_study run [--only TEXT]     # rows as they come; goes on from there
    python -m benchmarks.audit_study report                # tables, and a plot

Right runs: five ULS and five ELS for each text, at ε of 1, 2 and 4, each run once more by the audit
with canaries. Broken ones: each of `benchmarks.broken_runs`, once for each text. User inference: on
a run without privacy and on ULS at ε = 4 of the same number of gradients, whose whole audit
(`audit_run`) is one of the right runs; and once more on a run of each kind, also against
`REFERENCES` reference runs.

People with 24 records or more take part, with 24 each, so that both sides of the attack hold alike
many; half of all people are held out, and half of the others' records. A record is its first 200
characters. ``shakespeare-whole`` holds all records of the same people, for a longer run without
privacy.
"""
