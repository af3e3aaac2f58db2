"""A flood of urgent requests on a pool too small for it: the patient ones start within the bound, and finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulation.builders import make_loop, make_request
from simulation.deferred_worker import DeferredWorker
from simulation.fake_sampler import solo
from simulation.world import EOS, VOCAB_SIZE
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop
from trtdecode.request import FinishReason, Request
from trtdecode.scheduler.policy import PriorityPolicy


def overlapped(*args: Any, **kwargs: Any) -> Loop:
    return OverlappedLoop(*args, worker=DeferredWorker(), **kwargs)


@pytest.mark.parametrize("loop_class", [Loop, overlapped], ids=["plain", "overlapped"])
def test_patient_requests_are_not_starved(loop_class: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(num_blocks=13, loop_class=loop_class, max_num_seqs=3, max_num_batched_tokens=16)
    starts: list[Request] = []  # in order, also those after a preemption
    note = loop.scheduler.policy.started
    monkeypatch.setattr(PriorityPolicy, "started", lambda policy, request: (starts.append(request), note(request)))
    patient = [make_request([i] * 6, 20, arrival_time=0.1 * i, params={"priority": 9}) for i in range(4)]
    loop.submit(*patient)
    arrival = 1.0
    for _ in range(2000):
        while loop.admission.num_inside < 12:
            arrival += 1.0
            loop.submit(make_request([int(arrival) % 900] * 5, 12, arrival_time=arrival))
        loop.step()
        loop.check_integrity()
        if all(request.finish_reason for request in patient):
            break
    assert [request.finish_reason for request in patient] == [FinishReason.LENGTH] * 4
    assert [request.output_ids for request in patient] == [solo(r, VOCAB_SIZE, EOS, 0)[0] for r in patient]
    assert loop.scheduler.num_preemptions > 0
    turn_every = loop.scheduler.policy.turn_every
    # Strict priorities would not have let them in: urgent requests were always waiting. Each has one turn, in order.
    assert [starts.index(request) + 1 for request in patient] == [turn_every * (index + 1) for index in range(4)]
    assert all(request.num_preemptions == 0 for request in patient)
