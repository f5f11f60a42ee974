"""Chua et al. 2024, "Mind the Privacy Unit!"."""
