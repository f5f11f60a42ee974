"""Charles et al. 2024, on fine-tuning language models with user-level privacy: its figures."""
