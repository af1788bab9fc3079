"""Chance that can be had twice: a command that is run again draws the same ids from the same seed."""

from collections.abc import Callable
from hashlib import sha256


def stream(seed: bytes) -> Callable[[int], bytes]:
    """Give a source of that many bytes a call: SHA-256 of the seed and a counter, block after block.

    As hard to foresee as the seed, and the same bytes however the calls divide them.
    """
    pending = b""
    block = 0

    def draw(size: int) -> bytes:
        nonlocal pending, block
        while len(pending) < size:
            pending += sha256(seed + block.to_bytes(8, "big")).digest()
            block += 1
        drawn, pending = pending[:size], pending[size:]
        return drawn

    return draw
