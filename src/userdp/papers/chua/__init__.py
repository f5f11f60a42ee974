"""Chua et al. 2024, on user-level fine-tuning: its figures on the filter of Asi & Liu (2024)."""
