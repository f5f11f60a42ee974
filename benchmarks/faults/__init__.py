"""Deliberate faults in the mechanism and around it, each to be caught by a test of its invariant.

``planted.toml`` lists them. ``python -m benchmarks.faults`` copies ``src``, plants one fault after
another in the copy, and runs only the tests that name the invariant that it breaks. A fault is
*killed* where such a test fails, and passes without the fault; it *survived* where all of them
pass; anything else (no test that names the invariant, a fault that does not even run, no end) is an
*error*, and proves nothing.
"""
