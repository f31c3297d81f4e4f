"""Vectors, scores and classes instead of text: what requests may ask for, and what a model offers."""
