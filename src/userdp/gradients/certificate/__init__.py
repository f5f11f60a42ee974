"""What is asked of a model and its loss, on made-up rows, before users share a pass.

`rows` follows which row each number belongs to, by rules for torch's functions (`places`); `calls`
compares later passes with the one that was followed; `state` is what a pass may have written down;
`coupling` refuses what mixes rows even one unit at a time.
"""
