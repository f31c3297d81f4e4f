"""Quantised tensors of checkpoints, dequantised block by block while they are read. Start at `layout.Dequantised`."""
