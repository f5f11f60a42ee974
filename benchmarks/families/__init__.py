"""Every gradient engine on tiny models of many families: what is batched, what falls back, and why.

``python -m benchmarks.families`` (``make families``).
"""
