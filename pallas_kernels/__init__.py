"""Kernels behind stable operations: one folder an operation, one module an implementation. Imports jax only."""
