"""The sender's thread: order, coalescing, exactly one final response, and no use of a channel after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from trtdecode.errors import QueueFull, RequestError
from trtdecode.pacing import Pacer
from trtdecode.request import FinishReason, Request, TokenEvent
from trtdecode.responder import Part, Responder
from trtdecode.sampling.params import SamplingParams
from trtdecode.sender import Sender, Stream


class ListChannel:
    """Keeps what is sent; fails a test's way."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, RequestError | None, bool]] = []
        self.gate = threading.Event()  # send waits for it
        self.gate.set()
        self.cancelled = False
        self.num_asked = 0
        self.closed_uses = 0
        self.fail_after = 10**9

    def send(self, arrays: Mapping[str, Any] | None, error: RequestError | None, *, final: bool) -> None:
        self.gate.wait(5)
        if len(self.sent) >= self.fail_after:
            raise OSError("the server refused")
        self._check_open()
        self.sent.append((None if arrays is None else arrays["text"], error, final))

    def is_cancelled(self) -> bool:
        self._check_open()
        self.num_asked += 1
        return self.cancelled

    def _check_open(self) -> None:
        if self.sent and self.sent[-1][2]:
            self.closed_uses += 1

    @property
    def text(self) -> str:
        return "".join(text or "" for text, _, _ in self.sent)


def text_of(part: Part) -> dict[str, Any]:
    return {"text": part.deltas[0].text}


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "not within 5 s"
        time.sleep(0.002)


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def sender(errors: list[str]) -> Iterator[Sender]:
    made = Sender(errors.append)
    yield made
    made.close(5)


def start(sender: Sender, *, stream: bool = True) -> tuple[Stream, ListChannel, Request]:
    channel = ListChannel()
    made = Stream(Responder(1, stream=stream), channel, text_of)
    sender.add(made)
    return made, channel, Request([1], SamplingParams(), lambda event: None, 0, 0.0)


def event(request: Request, text: str, reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(request, [1], text, finish_reason=reason)


def test_deltas_arrive_in_order_and_the_last_is_final(sender: Sender) -> None:
    stream, channel, request = start(sender)
    for index in range(200):
        sender.push(stream, event(request, f"{index} "))
    sender.push(stream, event(request, "end", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert channel.text == "".join(f"{index} " for index in range(200)) + "end"
    assert [final for _, _, final in channel.sent] == [False] * (len(channel.sent) - 1) + [True]


def test_a_slow_channel_gets_merged_deltas(sender: Sender) -> None:
    stream, channel, request = start(sender)
    channel.gate.clear()
    sender.push(stream, event(request, "a"))
    time.sleep(0.05)  # the thread is inside send
    for text in "bcdef":
        sender.push(stream, event(request, text))
    sender.push(stream, event(request, "g", FinishReason.STOP))
    channel.gate.set()
    wait_for(lambda: sender.num_live == 0)
    assert [text for text, _, _ in channel.sent] == ["a", "bcdefg"]


def dear(sender: Sender, stream: Stream) -> None:
    """Sending has become so dear that tokens wait."""
    sender._pacer._seconds_a_response = 60.0
    sender._pacer.sent(stream.pace, 60.0)


def test_tokens_that_wait_are_sent_together_and_an_end_takes_them_along(errors: list[str]) -> None:
    sender = Sender(errors.append, max_delay_s=60.0)  # nothing but its own end releases what waits
    stream, channel, request = start(sender)
    sender.push(stream, event(request, "a"))
    wait_for(lambda: channel.sent)
    dear(sender, stream)
    for text in "bcd":
        time.sleep(0.001)
        sender.push(stream, event(request, text))
    assert channel.text == "a"
    sender.push(stream, event(request, "e", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert [text for text, _, _ in channel.sent] == ["a", "bcde"]
    assert sender.close(5) == 0


def test_what_waits_goes_out_at_its_time_or_when_the_sender_closes(errors: list[str]) -> None:
    sender = Sender(errors.append, max_delay_s=0.05)
    stream, channel, request = start(sender)
    sender.push(stream, event(request, "a"))
    wait_for(lambda: channel.sent)
    dear(sender, stream)
    time.sleep(0.001)
    sender.push(stream, event(request, "b"))  # no successor comes
    wait_for(lambda: channel.text == "ab")
    sender._pacer = Pacer(60.0)
    dear(sender, stream)
    time.sleep(0.001)
    sender.push(stream, event(request, "c"))
    assert sender.close(5) == 1
    assert channel.text == "abc"


def test_pushing_never_waits_for_a_slow_channel(sender: Sender) -> None:
    stream, channel, request = start(sender)
    channel.gate.clear()
    for _ in range(10_000):  # one that waited would wait for ever: the gate is closed
        sender.push(stream, event(request, "x"))
    channel.gate.set()
    sender.push(stream, event(request, "", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert len(channel.text) == 10_000
    assert len(channel.sent) < 20


def test_without_streaming_one_response(sender: Sender) -> None:
    stream, channel, request = start(sender, stream=False)
    for text in "abc":
        sender.push(stream, event(request, text))
    sender.push(stream, event(request, "d", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert channel.sent == [("abcd", None, True)]


def test_a_refused_request_gets_one_final_error(sender: Sender) -> None:
    stream, channel, _ = start(sender)
    refused = QueueFull(3)
    sender.fail(stream, refused)
    wait_for(lambda: sender.num_live == 0)
    assert channel.sent == [(None, refused, True)]


def test_text_not_yet_sent_precedes_a_stream_s_error(sender: Sender) -> None:
    stream, channel, request = start(sender)
    channel.gate.clear()
    sender.push(stream, event(request, "a"))
    time.sleep(0.05)
    sender.push(stream, event(request, "b"))
    failure = QueueFull(1)
    sender.push(stream, TokenEvent(request, [], "", finish_reason=FinishReason.ERROR, error=failure))
    channel.gate.set()
    wait_for(lambda: sender.num_live == 0)
    assert channel.sent == [("a", None, False), ("b", None, False), (None, failure, True)]


def test_a_cancelled_client_raises_the_flag_that_the_loop_polls(sender: Sender) -> None:
    stream, channel, request = start(sender)
    wait_for(lambda: channel.num_asked >= 3)
    assert not stream.is_cancelled
    channel.cancelled = True
    wait_for(lambda: stream.is_cancelled)
    sender.push(stream, TokenEvent(request, [], "", finish_reason=FinishReason.CANCELLED))
    wait_for(lambda: sender.num_live == 0)
    assert len(channel.sent) == 1 and channel.sent[0][2]


def test_the_channel_is_not_used_after_its_final_response(sender: Sender) -> None:
    made = [start(sender) for _ in range(50)]
    for stream, _, request in made:
        sender.push(stream, event(request, "x"))
        sender.push(stream, event(request, "y", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    time.sleep(0.15)  # a few rounds of polling
    assert [channel.closed_uses for _, channel, _ in made] == [0] * 50


def test_a_failing_send_cancels_the_stream_and_is_said(sender: Sender, errors: list[str]) -> None:
    stream, channel, request = start(sender)
    channel.fail_after = 1
    sender.push(stream, event(request, "a"))
    wait_for(lambda: channel.sent)
    sender.push(stream, event(request, "b"))
    wait_for(lambda: stream.is_cancelled)
    assert "the server refused" in errors[0]
    sender.push(stream, TokenEvent(request, [], "", finish_reason=FinishReason.CANCELLED))
    wait_for(lambda: sender.num_live == 0)


def test_one_broken_channel_does_not_hurt_the_others(sender: Sender) -> None:
    bad, bad_channel, bad_request = start(sender)
    good, good_channel, good_request = start(sender)
    bad_channel.fail_after = 0
    sender.push(bad, event(bad_request, "x", FinishReason.STOP))
    sender.push(good, event(good_request, "y", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert good_channel.sent == [("y", None, True)]


def test_keepalive_sends_an_empty_delta_to_a_silent_stream_only(errors: list[str]) -> None:
    sender = Sender(errors.append, keepalive_s=0.1)
    stream, channel, request = start(sender)
    whole, whole_channel, whole_request = start(sender, stream=False)
    wait_for(lambda: len(channel.sent) >= 2)
    assert set(channel.sent) == {("", None, False)}
    assert whole_channel.sent == []
    sender.push(stream, event(request, "x", FinishReason.STOP))
    sender.push(whole, event(whole_request, "z", FinishReason.STOP))
    assert sender.close(5) == 0
    assert channel.text == "x"


def test_close_sends_what_is_left(errors: list[str]) -> None:
    sender = Sender(errors.append)
    made = [start(sender) for _ in range(20)]
    for stream, _, request in made:
        sender.push(stream, event(request, "x", FinishReason.STOP))
    assert sender.close(5) == 0
    assert all(channel.sent == [("x", None, True)] for _, channel, _ in made)


def test_what_went_out_with_an_earlier_entry_is_not_sent_again(sender: Sender) -> None:
    """B is in the batch being sent, behind A, and gets more meanwhile: one response, not a second empty one."""
    blocker, blocker_channel, blocker_request = start(sender)
    a, a_channel, a_request = start(sender)
    b, b_channel, b_request = start(sender)
    for channel in (blocker_channel, a_channel):
        channel.gate.clear()
    sender.push(blocker, event(blocker_request, "x", FinishReason.STOP))
    time.sleep(0.05)  # the thread is inside the blocker's send
    sender.push(a, event(a_request, "a", FinishReason.STOP))
    sender.push(b, event(b_request, "b"))
    blocker_channel.gate.set()
    time.sleep(0.05)  # the thread has taken A and B and is inside A's send
    sender.push(b, event(b_request, "c"))
    a_channel.gate.set()
    wait_for(lambda: b_channel.sent)
    time.sleep(0.05)
    assert b_channel.sent == [("bc", None, False)]
    sender.push(b, event(b_request, "d", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
    assert b_channel.sent == [("bc", None, False), ("d", None, True)]


def test_who_knows_that_a_client_left_need_not_wait_for_the_next_round(
    errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtdecode.sender.MAX_POLLS_PER_S", 1e-6)  # after the first round, none for days
    sender = Sender(errors.append)
    stream, channel, request = start(sender)
    wait_for(lambda: channel.num_asked == 1)
    time.sleep(0.01)
    channel.cancelled = True
    sender.poll_soon()
    wait_for(lambda: stream.is_cancelled)  # within seconds
    sender.push(stream, event(request, "", FinishReason.CANCELLED))
    assert sender.close(5) == 0


def test_a_round_of_polling_skips_what_has_ended_meanwhile(sender: Sender) -> None:
    first, first_channel, first_request = start(sender)
    second, second_channel, second_request = start(sender)
    inside, release = threading.Event(), threading.Event()

    def slow() -> bool:
        inside.set()
        return not release.wait(5)

    first_channel.is_cancelled = slow  # type: ignore[method-assign]
    assert inside.wait(5), "the round has begun; the second stream is next"
    sender.push(second, event(second_request, "x", FinishReason.STOP))
    wait_for(lambda: second_channel.sent)
    release.set()
    time.sleep(0.1)
    assert second_channel.closed_uses == 0
    sender.push(first, event(first_request, "y", FinishReason.STOP))
    wait_for(lambda: sender.num_live == 0)
