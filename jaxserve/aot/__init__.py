"""Compiles the engine's step for GPUs that this machine does not have, and reads what came out.

XLA compiles from a description of the GPU. Everything is real but the run: kernels, memory, collectives. What it cannot do is try
variants of a kernel against each other (autotuning), so its choice of matmul kernels may differ from a GPU's own.
"""
