"""What tells two arrays apart: the manifest's name for a tensor's numbers, and that of a block in a device's memory."""

from __future__ import annotations

import hashlib

import numpy as np

from jaxserve.weights.checkpoint import Block


def checksum(tensor: Block) -> str:
    """SHA-256 of an array's elements in C order."""
    return hashlib.sha256(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data).hexdigest()
