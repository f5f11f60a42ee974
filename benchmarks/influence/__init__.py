"""By how much one unit moves the clipped sum, over C: each engine, random cases of each kind.

A case is a model, a loss, a cohort and a clip norm; its influence ratio is
``||S(D) - S(D without u)|| / C``, which no engine may let pass 1, whatever the shapes. Cases aim at
shapes that coincide: counts of targets that the rows divide, one target each, as many selected
tokens as the pass has, experts that get all tokens, rows as many as positions.
"""
