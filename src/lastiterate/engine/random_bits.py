"""Random bits from a cryptographic generator: AES in counter mode, one stream for every step."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

STEPS = 2**62
"""Streams of one key."""


def fresh_secret() -> bytes:
    """128 bits from the operating system."""
    return os.urandom(16)


def derived(secret: bytes, purpose: str) -> bytes:
    """A key of 256 bits for one purpose (HKDF with SHA-256, RFC 5869): keys of different purposes say nothing of one
    another."""
    return HKDF(hashes.SHA256(), 32, None, b"lastiterate " + purpose.encode()).derive(secret)


@dataclass
class Bits:
    """The bits of stream ``number`` under a 256-bit key, in order; equal arguments give equal bits."""

    key: bytes
    number: int
    _encryptor: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert 0 <= self.number < STEPS and len(self.key) == 32
        # 2^64 blocks for each stream: they never overlap
        first = self.number.to_bytes(8, "big") + bytes(8)
        self._encryptor = Cipher(algorithms.AES256(self.key), modes.CTR(first)).encryptor()

    def words(self, count: int) -> np.ndarray:
        """The next ``count`` words of 64 bits; (count,) uint64."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8")

    def integer(self, bits: int) -> int:
        """The next ``bits`` bits as a whole number; a multiple of 64."""
        return int.from_bytes(self._encryptor.update(bytes(bits // 8)), "big")
