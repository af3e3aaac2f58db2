"""The door: what is refused at once, with which numbers, and what is let in."""

from __future__ import annotations

import threading

import pytest
from simulation.builders import make_kv, make_request, make_spec
from simulation.world import VOCAB_SIZE
from trtdecode.config import ServingConfig
from trtdecode.errors import Draining, InvalidRequest, QueueFull
from trtdecode.scheduler.admission import Admission


def make_admission(*, num_blocks: int = 100, context: int = 64, **config: int) -> Admission:
    kv = make_kv(num_blocks, 4, max_context_len=context)
    return Admission(ServingConfig(**config), make_spec(max_context_len=context), kv)


def settled(admission: Admission, num_prompt: int, max_tokens: int | None) -> int:
    request = make_request(num_prompt, max_tokens, max_total_tokens=0)
    admission.submit((request,))
    return request.max_total_tokens - num_prompt


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "granted"),
    [(60, 4, 4), (63, 1, 1), (60, None, 4), (63, None, 1), (1, None, 63), (1, 63, 63)],
)
def test_output_tokens_granted_in_a_context_of_64(num_prompt: int, max_tokens: int | None, granted: int) -> None:
    assert settled(make_admission(), num_prompt, max_tokens) == granted


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "text"),
    [
        (60, 10, r"max_tokens: got 10; with a prompt of 60 tokens at most 4 fit a context of 64"),
        (63, 10, r"max_tokens: got 10; with a prompt of 63 tokens at most 1 fit a context of 64"),
        (64, 10, r"prompt: got 64; tokens leave no room in a context of 64; send at most 63 tokens"),
        (64, None, r"prompt: got 64; tokens leave no room"),
        (65, 1, r"prompt: got 65; tokens leave no room"),
    ],
)
def test_what_does_not_fit_the_context_is_refused(num_prompt: int, max_tokens: int | None, text: str) -> None:
    """Case C11: what is asked for is delivered or refused with both numbers; what is not asked for is clamped."""
    with pytest.raises(InvalidRequest, match=text):
        settled(make_admission(), num_prompt, max_tokens)


def test_what_never_fits_the_pool_is_refused_and_what_was_not_asked_for_is_clamped() -> None:
    admission = make_admission(num_blocks=9)  # 8 usable blocks of 4: 32 tokens, and one more that is never cached
    assert settled(admission, 30, 3) == 3
    assert settled(admission, 30, None) == 3
    with pytest.raises(InvalidRequest, match=r"got 33; needs 9 KV blocks and the pool has 8 \(32 tokens\)"):
        settled(admission, 30, 4)
    with pytest.raises(InvalidRequest, match=r"needs 9 KV blocks and the pool has 8"):
        settled(admission, 33, None)


def test_configured_context_and_default_max_tokens() -> None:
    assert settled(make_admission(max_context_len=16), 10, None) == 6
    assert settled(make_admission(max_context_len=1000), 10, None) == 54  # never beyond the model's own
    assert settled(make_admission(default_max_tokens=5), 10, None) == 5
    assert settled(make_admission(default_max_tokens=5), 10, 9) == 9
    assert settled(make_admission(default_max_tokens=5), 62, None) == 2


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], r"prompt: got \[\]; must hold at least one token"),
        ([1, -1], r"input_ids: got -1; token ids must be in 0..996"),
        ([1, VOCAB_SIZE], r"input_ids: got 997; token ids must be in 0..996"),
    ],
)
def test_bad_prompts(prompt: list[int], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        make_admission().submit((make_request(prompt),))


def test_the_queue_is_bounded_beyond_what_can_run() -> None:
    admission = make_admission(max_num_seqs=2, max_queue_size=3)
    for _ in range(5):
        admission.submit((make_request(3),))
    with pytest.raises(QueueFull, match="max_queue_size 3"):
        admission.submit((make_request(3),))
    admission.left()
    admission.submit((make_request(3),))


def test_the_samples_of_a_call_are_accepted_together_or_not_at_all() -> None:
    admission = make_admission(max_num_seqs=2, max_queue_size=1)
    with pytest.raises(QueueFull):
        admission.submit(tuple(make_request(3) for _ in range(4)))
    with pytest.raises(InvalidRequest):
        admission.submit((make_request(3), make_request([])))
    assert (admission.num_inside, admission.take()) == (0, [])
    samples = tuple(make_request(3) for _ in range(3))
    admission.submit(samples)
    assert tuple(admission.take()) == samples


def test_draining_refuses_before_it_counts() -> None:
    admission = make_admission(max_num_seqs=1, max_queue_size=0)
    admission.submit((make_request(3),))
    admission.close_door()
    with pytest.raises(Draining, match="another replica"):
        admission.submit((make_request(3),))


def test_deadlines_are_returned_once_and_only_for_the_unfinished() -> None:
    admission = make_admission()
    requests = [make_request(3, deadline=deadline) for deadline in (3.0, 1.0, None, 2.0)]
    admission.submit(tuple(requests))
    admission.take()
    requests[3].finish()
    assert admission.expired(0.99) == []
    assert admission.expired(1.0) == [requests[1]]
    assert admission.expired(2.5) == []
    assert admission.expired(9.0) == [requests[0]]
    assert admission.expired(9.0) == []


def test_waiting_for_emptiness_ends_when_the_last_one_leaves() -> None:
    admission = make_admission()
    admission.submit((make_request(3), make_request(3)))
    assert admission.wait_empty(0.01) is False
    leaver = threading.Thread(target=admission.left, args=(2,))
    leaver.start()
    assert admission.wait_empty(10) is True
    leaver.join()


def test_many_threads_never_exceed_the_bound() -> None:
    admission = make_admission(max_num_seqs=1, max_queue_size=49)
    accepted = []

    def knock() -> None:
        for _ in range(20):
            try:
                admission.submit((make_request(3),))
                accepted.append(1)
            except QueueFull:
                pass

    threads = [threading.Thread(target=knock) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accepted) == len(admission.take()) == admission.num_inside == 50
