"""Keys for everything that is random but must come out the same again."""

from __future__ import annotations


def derive_key(seed: int, epoch: int, purpose: str) -> int:
    """A key of 128 bits for one purpose; those of neighbouring seeds and epochs have nothing in common.

    Args:
        seed: any int.
        epoch: any int.
    """
    from hashlib import blake2b

    digest = blake2b(f"{seed},{epoch},{purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")
