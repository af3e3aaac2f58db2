"""Short ways to make requests, caches, schedulers and loops in tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler
from simulation.world import EOS, VOCAB_SIZE
from trtdecode.config import ServingConfig
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.loop import Loop
from trtdecode.manifest import ModelSpec
from trtdecode.request import Request, TokenEvent
from trtdecode.sampling.params import SamplingParams
from trtdecode.scheduler.policy import PriorityPolicy
from trtdecode.scheduler.scheduler import Schedule, Scheduler

Events = list[TokenEvent]


def make_spec(*, window: int = 0, max_context_len: int = 1024, eos: Sequence[int] = (EOS,)) -> ModelSpec:
    return ModelSpec(
        family="fake",
        num_layers=1,
        hidden_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        vocab_size=VOCAB_SIZE,
        max_context_len=max_context_len,
        sliding_windows=(window,),
        eos_token_ids=tuple(eos),
    )


def make_request(
    prompt: int | Sequence[int],
    max_tokens: int | None = 16,
    *,
    on_event: Callable[[TokenEvent], None] = lambda event: None,
    arrival_time: float = 0.0,
    ignore_eos: bool = True,
    params: dict[str, Any] | None = None,
    **fields: Any,
) -> Request:
    """A request; an int prompt stands for that many tokens 100, 101, ..."""
    prompt_ids = [100 + i % 800 for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **(params or {}))
    fields.setdefault("max_total_tokens", len(prompt_ids) + (max_tokens or 1))
    fields.setdefault("seed", 0)
    return Request(prompt_ids, sampling, on_event, arrival_time=arrival_time, **fields)


def make_kv(num_blocks: int = 17, block_size: int = 4, **options: Any) -> KVCacheManager:
    """By default 16 usable blocks of 4."""
    return KVCacheManager(num_blocks, block_size, **{"max_num_seqs": 8, "max_context_len": 256, **options})


def make_scheduler(
    kv: KVCacheManager | None = None, *, max_num_seqs: int = 8, max_num_batched_tokens: int = 64, turn_every: int = 8
) -> Scheduler:
    return Scheduler(
        kv or make_kv(max_num_seqs=max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        policy=PriorityPolicy(turn_every),
    )


def run_step(scheduler: Scheduler, tokens: int = 500) -> Schedule | None:
    """Schedules, and takes the step in with the same token for every sequence; nobody stops."""
    plan = scheduler.schedule(0.0)
    if plan is not None:
        scheduler.update(plan)
        for request in plan.sampled:
            request.append(tokens, 0.0)
            if request.num_tokens == request.max_total_tokens:
                scheduler.finish(request)
    scheduler.check_integrity()
    return plan


def make_loop(
    *,
    num_blocks: int = 65,
    block_size: int = 4,
    loop_class: Callable[..., Loop] = Loop,
    executor: Any = None,
    sampler: Any = None,
    spec: ModelSpec | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    **config: Any,
) -> Loop:
    """A loop on the fake executor, on a clock that stands still."""
    spec = spec or make_spec()
    executor = executor or FakeExecutor(num_blocks, block_size, spec.common_window)
    return loop_class(executor, sampler or FakeSampler(VOCAB_SIZE), ServingConfig(**config), spec, clock=clock)


def collect(events: Events) -> tuple[list[int], TokenEvent]:
    """All tokens, and the final event, of which there is exactly one, at the end."""
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]
    return [token for event in events for token in event.token_ids], events[-1]
