"""Weights that a program has on devices already: a trainer's tree as the parameters of a decoder, without a way through the host."""
