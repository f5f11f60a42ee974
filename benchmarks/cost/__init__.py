"""Fit the cost model to this CPU, and predict settings of `benchmarks.paper_size` with it.

    python -m benchmarks.cost fit      # rates of this CPU, from the settings of `FITTED`
    python -m benchmarks.cost predict  # those of `HELD`, into docs/results/cost-predicted.jsonl

A row has the ratio of the engine's gradient to plain training's in equal passes, and the peak
memory of both, its date, and digests of what it was made from. `python -m benchmarks.paper_size
--only KEY` measures the same; the prediction is committed first (`benchmarks.cost.standing`).
"""
