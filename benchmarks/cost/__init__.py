"""Fit the cost model to this CPU, and hold its predictions against measurements.

    python -m benchmarks.cost fit      # rates of this CPU, from the settings of `FITTED`
    python -m benchmarks.cost predict  # of `HELD`, into docs/results/cost-predicted.jsonl
    python -m benchmarks.cost measure  # the same, measured, into docs/results/cost-measured.jsonl

A prediction is written, and committed, before its setting is measured. A setting is one model, one
group size, and a cohort; a row has the ratio of the engine's step to plain training in equal passes
(processor time, one thread, interleaved rounds), and the peak memory of both.
"""
