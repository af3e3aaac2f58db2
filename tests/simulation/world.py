"""One simulated service: a loop on a virtual clock, clients drawn from a seed, and a check of everything they get.

The seed decides everything: sizes, arrivals, prompts with shared prefixes, samples, priorities, deadlines, cancels,
stop strings and executor faults. So a failing seed is the bug report: `World(seed).run(steps)` repeats it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler, solo
from trtdecode.config import ServingConfig
from trtdecode.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, QueueFull, RequestCancelled
from trtdecode.loop import Loop
from trtdecode.manifest import ModelSpec
from trtdecode.request import FinishReason, Request, RequestState, TokenEvent
from trtdecode.sampling.params import SamplingParams

VOCAB_SIZE = 997
EOS = 7


class StopAtMultiple:
    """A text output whose stop "string" is any token divisible by `divisor`."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        return "".join(f"{token} " for token in token_ids), any(token % self.divisor == 0 for token in token_ids)

    def flush(self) -> str:
        return "end"


@dataclass(slots=True)
class Client:
    """What one request got, and when its client gives up."""

    request: Request | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    final: TokenEvent | None = None
    cancel_at: float | None = None
    has_cancelled: bool = False
    is_broken: bool = False  # its callback raises

    def on_event(self, event: TokenEvent) -> None:
        assert self.final is None, "an event after the final one"
        if self.is_broken and not event.is_final:
            raise ValueError("broken client")
        self.token_ids.extend(event.token_ids)
        self.text += event.text
        if event.is_final:
            self.final = event


class World:
    """Everything drawn from `seed`; `make_loop` is Loop, or something that must give the same tokens."""

    def __init__(self, seed: int, make_loop: Callable[..., Loop] = Loop) -> None:
        rng = self.rng = random.Random(seed)
        self.seed = seed
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        block_size = rng.choice((1, 2, 4, 4, 8))
        self.window = rng.choice((0, 0, 0, 5, 12))
        max_num_seqs = rng.randint(1, 6)
        self.max_context_len = rng.randint(24, 64)
        spec = ModelSpec(
            family="fake",
            num_layers=2,
            hidden_size=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            vocab_size=VOCAB_SIZE,
            max_context_len=self.max_context_len,
            sliding_windows=(self.window, max(0, self.window - 2)),
            eos_token_ids=(EOS,),
        )
        config = ServingConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=rng.randint(max_num_seqs, 24),
            max_queue_size=rng.randint(1, 10),
            enable_prefix_caching=rng.random() < 0.8,
            recorder_steps=16,
        )
        num_blocks = -(-rng.randint(20, 80) // block_size) + 1
        num_host_blocks = rng.choice((0, 0, rng.randint(1, 12), 100))  # none, one that is often full, enough
        self.executor = FakeExecutor(num_blocks, block_size, self.window, num_host_blocks)
        self.loop = make_loop(self.executor, FakeSampler(VOCAB_SIZE), config, spec, clock=lambda: self.now)
        self.load = rng.choice((0.01, 0.03, 0.05, 0.1, 0.3))  # chance of a (or another) call each step
        self.fault_rate = rng.choice((0.0, 0.002, 0.02))
        self.clients: list[Client] = []
        self.systems = [self._tokens(rng.randint(4, 24)) for _ in range(3)]  # shared prefixes

    def run(self, num_steps: int) -> None:
        """Until so many steps are executed; then lets everything end, and checks that nothing is left behind."""
        try:
            while self.executor.num_steps < num_steps:
                self.step()
            self._settle()
        except BaseException:
            step = self.executor.num_steps
            print(f"simulation failed: World(seed={self.seed}) on {type(self.loop).__name__} at step {step}")
            raise

    def step(self) -> None:
        """Perhaps some calls, perhaps a fault; one step; all checks; and the clock moves on."""
        rng = self.rng
        while rng.random() < self.load or not self.loop.admission.num_inside:
            self._call()
        self.executor.fail_next = rng.random() < self.fault_rate
        num_tokens = self.executor.num_tokens
        is_busy = self.loop.step()
        self.loop.check_integrity()
        self.now += 0.01 + 0.001 * (self.executor.num_tokens - num_tokens) if is_busy else 0.01
        if len(self.clients) > 50:
            self._check_finished()

    def _call(self) -> None:
        """One client call: 1..3 samples of a prompt."""
        rng = self.rng
        prompt = list(rng.choice(self.systems)) if rng.random() < 0.6 else []
        prompt += self._tokens(rng.randint(0 if prompt else 1, 12))
        params = SamplingParams(
            max_tokens=rng.choice((None, 1, rng.randint(1, 30), rng.randint(1, 60))),
            ignore_eos=rng.random() < 0.3,
            priority=rng.choice((0, 0, 0, 1, 5, -3)),
        )
        timeout = rng.choice((None, None, None, rng.uniform(0.0, 1.0)))
        client_gives_up = rng.random() < 0.1
        seed = rng.getrandbits(31)
        requests: list[Request] = []
        clients: list[Client] = []
        for index in range(rng.choice((1, 1, 1, 2, 3))):
            client = Client(is_broken=rng.random() < 0.01)
            if client_gives_up:
                client.cancel_at = self.now + rng.uniform(0.0, 1.0)
            request = Request(
                prompt,
                params,
                client.on_event,
                seed=seed,
                arrival_time=self.now,
                deadline=None if timeout is None else self.now + timeout,
                timeout_ms=0.0 if timeout is None else timeout * 1000,
                sample_index=index,
                parent=requests[0] if requests else None,
                is_cancelled=lambda client=client: self._has_given_up(client),
                output=StopAtMultiple(29) if rng.random() < 0.3 else None,
            )
            client.request = request
            requests.append(request)
            clients.append(client)
        try:
            self.loop.submit(*requests)
            self.clients.extend(clients)
            self.counts["submitted"] += len(requests)
        except QueueFull:
            self.counts["queue full"] += 1
        except InvalidRequest:
            self.counts["never fits"] += 1

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(count)]

    def _has_given_up(self, client: Client) -> bool:
        """Polled at any moment of a step, also while the executor runs."""
        if client.cancel_at is not None and client.final is None:
            client.has_cancelled |= self.now >= client.cancel_at or self.rng.random() < 0.005
        return client.has_cancelled

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check_finished(self) -> None:
        for client in self.clients:
            if client.final is not None:
                self._check(client)
        self.clients = [client for client in self.clients if client.final is None]

    def _check(self, client: Client) -> None:
        request, final = client.request, client.final
        assert request is not None and final is not None
        assert request.state is RequestState.FINISHED and request.blocks is None
        expected, reason = solo(request, VOCAB_SIZE, EOS, self.window)
        output = request.output
        if output is not None:
            for index, token in enumerate(expected):
                is_eos = reason is FinishReason.STOP and index == len(expected) - 1
                if token % output.divisor == 0 and not is_eos:
                    expected, reason = expected[: index + 1], FinishReason.STOP
                    self.counts["stop strings"] += 1
                    break
        got = client.token_ids
        assert request.output_ids[: len(got)] == got
        if final.error is None:
            assert got == expected, f"request {request.request_id}: got {got}, alone it generates {expected}"
            assert final.finish_reason is reason
            assert request.output_ids == got
        else:
            assert got == expected[: len(got)], f"request {request.request_id}: got {got}, expected {expected}"
        self._count(client)

    def _count(self, client: Client) -> None:
        request, final = client.request, client.final
        assert request is not None and final is not None
        counts = self.counts
        counts["finished"] += 1
        counts["preempted"] += request.num_preemptions > 0
        counts["preempted twice"] += request.num_preemptions > 1
        counts["cached"] += request.num_cached_tokens > 0
        counts["forked"] += request.parent is not None and request.num_cached_tokens == request.num_prompt_tokens - 1
        counts["promoted"] += request.promoted
        was_started = request.start_time is not None
        match final.error:
            case RequestCancelled():
                assert client.has_cancelled or client.is_broken
                assert final.finish_reason is FinishReason.CANCELLED
                counts["cancelled running" if was_started else "cancelled waiting"] += 1
            case DeadlineExceeded():
                assert request.deadline is not None and request.deadline <= self.now
                counts["late running" if was_started else "late waiting"] += 1
            case ExecutorFailed():
                counts["failed"] += 1

    def _settle(self) -> None:
        self.executor.fail_next = False
        for _ in range(100_000):
            if not self.loop.admission.num_inside:
                break
            self.loop.step()
            self.loop.check_integrity()
            self.now += 0.01
        self._check_finished()
        assert not self.clients and self.loop.admission.num_inside == 0, "requests without a final event"
        pool = self.loop.kv.pool
        assert pool.num_available == pool.num_usable, "blocks leaked"
        assert self.loop.kv.host.num_used == 0, "host blocks leaked"
        for name in ("out", "in"):
            self.counts[f"swapped {name}"] += self.loop.metrics.counters[f"trtdecode_swapped_{name}_blocks_total"]
        assert self.counts["finished"] == self.counts["submitted"]
