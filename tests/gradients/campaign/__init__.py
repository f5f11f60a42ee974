"""By how much one unit moves the clipped sum, over C: families, random cases, ordinary accidents.

Every question is a model, a loss, a cohort D and a clip norm. Its influence ratio is
``||S(D) - S(D without u)|| / C``, greatest over the units u that are left out one at a time, all
others having equal random numbers. No engine may let it pass 1, whatever the shapes.

``python -m tests.gradients.campaign`` (`make influence`) asks all of them.
"""
