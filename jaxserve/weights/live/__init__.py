"""Weights that a program has on devices: a trainer's tree as the parameters of a decoder, not by way of the host."""
