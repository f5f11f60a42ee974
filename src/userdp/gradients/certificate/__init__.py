"""What is asked of a model and its loss, on made-up rows, before users share a pass.

`rows` follows which row each number belongs to (`places`), by rules for torch's operations
(`operations`); `calls` compares later passes with the one that was followed; `state` is what a pass
may have written down; `coupling` refuses what mixes rows even one unit at a time.
"""
