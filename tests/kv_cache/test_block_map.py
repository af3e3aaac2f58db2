"""Who has which block, cell by cell."""

from __future__ import annotations

import numpy as np
from simulation.builders import make_kv, make_request
from trtdecode.kv_cache.block_map import block_map
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.request import Request


def started(kv: KVCacheManager, prompt: int | list[int], now: float) -> Request:
    """A request whose whole prompt is computed."""
    request = make_request(prompt)
    prefix = kv.find_prefix(request)
    num_new = request.num_tokens - prefix.num_tokens
    assert kv.start(request, prefix, num_new) is not None
    request.start(prefix.num_tokens, now=now)
    request.schedule(num_new)
    request.append(900, now=now)
    request.complete(request.num_prompt_tokens)
    kv.publish(request)
    return request


def test_an_empty_pool_is_one_run() -> None:
    assert block_map(make_kv(), []) == {"blocks": [[0, 16]], "blocks_per_cell": 1, "num_sequences": 0, "sequences": []}


def test_owners_shared_and_cached_blocks() -> None:
    kv = make_kv()  # 16 blocks of 4
    first = started(kv, 14, now=1.0)  # blocks 1 to 4, three of them published
    second = started(kv, 14, now=2.0)  # shares 1 to 3, computes block 5
    other = started(kv, [7] * 9, now=3.0)  # blocks 6 to 8
    a, b, c = (request.request_id for request in (first, second, other))
    picture = block_map(kv, [other, second, first])
    assert picture["blocks"] == [[a, 4], [b, 1], [c, 3], [0, 8]]
    assert picture["num_sequences"] == 3
    assert picture["sequences"] == [[a, "", "", 15], [b, "", "", 15], [c, "", "", 10]]
    kv.free(first)
    assert block_map(kv, [other, second])["blocks"] == [[b, 3], [0, 1], [b, 1], [c, 3], [0, 8]]
    kv.free(second)
    kv.free(other)
    # Full blocks stay for a hit: three of the prompt of 14, two of the prompt of 9.
    assert block_map(kv, [])["blocks"] == [[-1, 3], [0, 2], [-1, 2], [0, 9]]


def test_a_large_pool_is_thinned_and_says_so() -> None:
    kv = make_kv(num_blocks=1001, max_context_len=2000)
    request = started(kv, list(np.arange(1000)), now=0.0)  # 250 blocks
    picture = block_map(kv, [request], max_cells=100)
    assert picture["blocks_per_cell"] == 10
    assert picture["blocks"] == [[request.request_id, 25], [0, 75]]
