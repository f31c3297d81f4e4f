"""Vectors, scores and classes over HTTP."""
