"""A replica of the chain model, whose answers are known in advance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trtdecode.config import ServingConfig
from trtdecode.replica import Replica


@pytest.fixture(scope="session")
def chain_replica(chain_version: Path) -> Iterator[Replica]:
    config = ServingConfig(kv_cache_bytes=64 << 20, max_num_seqs=8, num_threads=1)
    with Replica.load(chain_version, config) as replica:
        yield replica
