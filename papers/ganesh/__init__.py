"""Ganesh 2024, on group accounting by mixtures of Gaussians: its figures."""
