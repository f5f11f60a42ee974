"""Marathe et al. 2023, on subject-level privacy in federations: its figures and bounds."""
