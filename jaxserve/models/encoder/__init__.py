"""Encoders: models that read a whole text and say nothing (Devlin et al. 2019)."""
