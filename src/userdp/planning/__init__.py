"""From a privacy and a compute budget to the best plan, and why.

Nothing but arithmetic: the budget, public constants and measured gradient norms come in as
numbers, so that nothing here reads a store or loads a model.
"""
