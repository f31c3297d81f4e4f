"""Whole numbers packed as the formats of quantized checkpoints say, number by number."""

from __future__ import annotations

import numpy as np

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs is next in a word, from the lowest bits


def pack_rows(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """int32 [R, C * bits / 32] of numbers [R, C]; `order` says which of a word's numbers is at its lowest bits, and so on."""
    each = 32 // bits
    rows, columns = numbers.shape
    words = np.zeros((rows, -(-columns // each)), np.uint64)
    for row in range(rows):
        for column in range(columns):
            word, place = divmod(column, each)
            at = place if order is None else order.index(place)
            words[row, word] |= np.uint64(int(numbers[row, column]) << (at * bits))
    return words.astype(np.uint32).view(np.int32)


def awq(numbers: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> dict[str, np.ndarray]:
    """What AWQ stores of numbers [O, I], zero points and scales [O, groups]."""
    return {
        "qweight": pack_rows(numbers.T, 4, AWQ_ORDER),
        "qzeros": pack_rows(zeros.T, 4, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T).astype(np.float16),
    }


def gptq(numbers: np.ndarray, zeros: np.ndarray, scales: np.ndarray, bits: int, offset: int) -> dict[str, np.ndarray]:
    """What GPTQ stores of numbers [O, I], zero points and scales [O, groups]; `offset` was taken from the zero points."""
    return {
        "qweight": np.ascontiguousarray(pack_rows(numbers, bits).T),
        "qzeros": pack_rows(zeros.T - offset, bits),
        "scales": np.ascontiguousarray(scales.T).astype(np.float16),
    }
