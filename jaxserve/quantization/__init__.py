"""Quantizes checkpoints, and measures what that costs: schemes, rounding, error compensation, the audit."""
