"""Subject-level privacy across silos (Marathe et al. 2023), on Flower.

A *silo* holds part of many *subjects'* items and trusts neither the server nor the other silos:
it clips and noises by itself, writes its own ledger, and sends a noisy update and nothing else.
"""
