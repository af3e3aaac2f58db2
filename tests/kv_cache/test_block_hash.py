"""The chain of digests: what shares a name, and what must not."""

import pytest
from trtdecode.kv_cache.block_hash import DIGEST_BYTES, blake2b_chain, content_of, root_digest

SECRET = b"0123456789abcdef"


def chain_of(blocks: list[list[int]], extra_keys: tuple[object, ...] = (), secret: bytes = SECRET) -> bytes:
    digest = root_digest(blake2b_chain, secret, extra_keys)
    for block in blocks:
        digest = blake2b_chain(digest, content_of(block))
    return digest


def test_equal_prefixes_share_a_digest() -> None:
    digest = chain_of([[1, 2], [3, 4]])
    assert len(digest) == DIGEST_BYTES
    assert digest == chain_of([[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("blocks", "extra_keys"),
    [
        ([[1, 2], [4, 3]], ()),
        ([[2, 1], [3, 4]], ()),  # the same last block after another first one
        ([[3, 4], [1, 2]], ()),
        ([[3, 4]], ()),
        ([[1, 2], [3, 4], [5, 6]], ()),
        ([[1, 2], [3, 4]], ("adapter",)),
        ([[1, 2], [3, 4]], (1,)),
        ([[1, 2], [3, 4]], ("1",)),
    ],
)
def test_anything_else_before_or_beside_gives_another_digest(
    blocks: list[list[int]], extra_keys: tuple[object, ...]
) -> None:
    assert chain_of(blocks, extra_keys) != chain_of([[1, 2], [3, 4]])


def test_extra_keys_of_another_type_differ() -> None:
    assert chain_of([[1]], (1,)) != chain_of([[1]], ("1",))


def test_a_client_cannot_know_the_digest() -> None:
    assert chain_of([[1, 2]], secret=b"one secret") != chain_of([[1, 2]], secret=b"another")


def test_content_is_exact_and_refuses_ids_beyond_int32() -> None:
    assert content_of([1, -1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    with pytest.raises(OverflowError):
        content_of([2**31])
