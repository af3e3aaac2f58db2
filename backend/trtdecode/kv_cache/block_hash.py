"""Names full blocks by everything before them: a chain of (previous digest, token ids), rooted in the extra keys.

Two prefixes share a digest only if they are the same tokens under the same extra keys. The chain starts from a secret
drawn per process, so that a client cannot construct two prompts that collide, and has 128 bits, so that chance will
not either; the pool still compares the block's tokens after a match.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

DIGEST_BYTES = 16

#: (previous digest, this block's token bytes) -> digest. Tests pass a weak one to force collisions.
ChainHash = Callable[[bytes, bytes], bytes]


class BlockKey(NamedTuple):
    """The cache's name of one full block."""

    digest: bytes  # of the whole prefix up to and including this block
    content: bytes  # the block's token ids as native int32, compared after the digests match


def blake2b_chain(previous: bytes, content: bytes) -> bytes:
    """BLAKE2b-128 of what came before and of this block."""
    return blake2b(previous + content, digest_size=DIGEST_BYTES).digest()


def root_digest(chain: ChainHash, secret: bytes, extra_keys: tuple[Any, ...]) -> bytes:
    """Where a request's chain starts. `extra_keys` holds strings and numbers, whose repr is unambiguous."""
    return chain(secret, repr(extra_keys).encode())


def content_of(token_ids: Sequence[int]) -> bytes:
    """Token ids as native int32. Raises OverflowError beyond 2**31 - 1 (admission has checked the vocabulary)."""
    return array("i", token_ids).tobytes()
