"""Caches: what is equal, what is too old, what is near enough."""

import numpy as np
from trtdecode.gateway.cache import ResponseCache, SemanticCache, cacheable, request_key


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_repeatable_requests_are_cacheable() -> None:
    assert cacheable({"temperature": 0})
    assert cacheable({"temperature": 0.9, "seed": 0})
    assert not cacheable({"temperature": 0.9})
    assert not cacheable({})


def test_the_key_tells_apart_all_that_changes_the_answer() -> None:
    base = request_key("m", "hi", {"temperature": 0}, {"n": 1})
    assert base == request_key("m", "hi", {"temperature": 0}, {"n": 1})
    others = [
        request_key("m2", "hi", {"temperature": 0}, {"n": 1}),
        request_key("m", "hi ", {"temperature": 0}, {"n": 1}),
        request_key("m", [1], {"temperature": 0}, {"n": 1}),
        request_key("m", "hi", {"temperature": 0, "max_tokens": 2}, {"n": 1}),
        request_key("m", "hi", {"temperature": 0}, {"n": 2}),
    ]
    assert len({base, *others}) == 6


def test_the_least_recently_used_answer_goes_first_and_old_ones_go() -> None:
    clock = Clock()
    cache = ResponseCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    clock.now = 10.1
    assert cache.get("a") is None


def test_a_cache_of_no_entries_holds_nothing() -> None:
    cache = ResponseCache(0, ttl=10)
    cache.put("a", 1)
    assert cache.get("a") is None


def test_similarity_is_the_cosine_within_one_scope() -> None:
    clock = Clock()
    cache = SemanticCache(0.9, 2, ttl=10, clock=clock)
    cache.put("s", np.array([3.0, 0.0], np.float32), "east")
    cache.put("s", np.array([0.0, 0.1], np.float32), "north")
    answer, score = cache.get("s", np.array([10.0, 1.0], np.float32))
    assert answer == "east"
    assert abs(score - 10 / np.sqrt(101)) < 1e-6
    assert cache.get("s", np.array([1.0, 1.0], np.float32)) is None  # 0.707 to both
    assert cache.get("other", np.array([1.0, 0.0], np.float32)) is None
    assert cache.get("s", np.zeros(2, np.float32)) is None
    cache.put("s", np.array([-1.0, 0.0], np.float32), "west")
    assert cache.get("s", np.array([1.0, 0.0], np.float32)) is None  # the oldest made room
    clock.now = 11
    assert cache.get("s", np.array([-1.0, 0.0], np.float32)) is None


def test_rows_are_used_again_whatever_their_scope() -> None:
    """A cache of four against the plain rule: the newest four, one scope's best at or above the threshold."""
    random = np.random.default_rng(0)
    cache = SemanticCache(0.3, 4, ttl=1000)
    kept: list[tuple[str, np.ndarray, int]] = []
    for number in range(200):
        scope, vector = "ab"[int(random.integers(2))], random.normal(size=3).astype(np.float32)
        near = [(float(v @ vector / np.linalg.norm(v) / np.linalg.norm(vector)), n) for s, v, n in kept if s == scope]
        best = max(near, default=(0.0, -1))
        found = cache.get(scope, vector)
        assert (found[0] if found else None) == (best[1] if best[0] >= 0.3 else None)
        cache.put(scope, vector, number)
        kept = [*kept, (scope, vector, number)][-4:]


def test_an_encoder_of_another_size_starts_afresh() -> None:
    cache = SemanticCache(0.9, 2, ttl=10)
    cache.put("s", np.array([1.0, 0.0], np.float32), "old")
    assert cache.get("s", np.array([1.0, 0.0, 0.0], np.float32)) is None
    cache.put("s", np.array([1.0, 0.0, 0.0], np.float32), "new")
    assert cache.get("s", np.array([1.0, 0.0, 0.0], np.float32)) == ("new", 1.0)
    assert cache.get("s", np.array([1.0, 0.0], np.float32)) is None
