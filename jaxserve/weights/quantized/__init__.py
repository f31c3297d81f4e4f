"""Quantized tensors of checkpoints, dequantized block by block while they are read. Start at `layout.Dequantized`."""
