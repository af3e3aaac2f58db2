"""Merging of events into parts: what the sender takes is complete, in order, and ends once."""

from __future__ import annotations

from trtdecode.errors import ExecutorFailed, RequestCancelled
from trtdecode.request import FinishReason, Request, TokenEvent, TokenLogprob
from trtdecode.responder import Responder
from trtdecode.sampling.params import SamplingParams


def sample(index: int = 0) -> Request:
    return Request([1], SamplingParams(), lambda event: None, 0, 0.0, sample_index=index)


def token(request: Request, text: str, reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(request, [len(text)], text, finish_reason=reason)


def test_streaming_merges_what_was_not_taken() -> None:
    request, responder = sample(), Responder(1, stream=True)
    assert not responder.is_ready
    responder.push(token(request, "a"))
    responder.push(token(request, "bc"))
    part = responder.take()
    assert (part.deltas[0].text, part.deltas[0].token_ids) == ("abc", [1, 2])
    assert (part.is_first, part.is_final, part.error) == (True, False, None)
    assert not responder.is_ready
    responder.push(token(request, "d", FinishReason.LENGTH))
    part = responder.take()
    assert (part.deltas[0].text, part.deltas[0].finish_reason) == ("d", FinishReason.LENGTH)
    assert (part.is_first, part.is_final) == (False, True)


def test_a_held_back_token_is_news_and_an_empty_event_is_not() -> None:
    request, responder = sample(), Responder(1, stream=True)
    responder.push(TokenEvent(request, [], ""))
    assert not responder.is_ready
    responder.push(TokenEvent(request, [5], ""))
    assert responder.is_ready


def test_without_streaming_there_is_one_part_when_all_samples_have_ended() -> None:
    first, second = sample(0), sample(1)
    responder = Responder(2, stream=False)
    responder.push(token(first, "a"))
    responder.push(token(second, "x", FinishReason.STOP))
    assert not responder.is_ready
    responder.push(token(first, "b", FinishReason.LENGTH))
    part = responder.take()
    assert [delta.text for delta in part.deltas] == ["ab", "x"]
    assert [delta.finish_reason for delta in part.deltas] == [FinishReason.LENGTH, FinishReason.STOP]
    assert part.is_first and part.is_final


def test_the_reason_of_an_ended_sample_stays_in_later_parts() -> None:
    first, second = sample(0), sample(1)
    responder = Responder(2, stream=True)
    responder.push(token(first, "a", FinishReason.STOP))
    responder.take()
    responder.push(token(second, "b"))
    part = responder.take()
    assert [delta.finish_reason for delta in part.deltas] == [FinishReason.STOP, None]
    assert part.deltas[0].text == ""


def test_the_first_failure_is_the_answer_and_ends_the_others() -> None:
    first, second = sample(0), sample(1)
    responder = Responder(2, stream=True)
    failure = ExecutorFailed("device lost")
    responder.push(TokenEvent(first, [], "", finish_reason=FinishReason.ERROR, error=failure))
    assert responder.is_cancelled, "the loop is told to end the other sample"
    assert not responder.is_ready, "the final response waits for it"
    cancelled = RequestCancelled()
    responder.push(TokenEvent(second, [], "", finish_reason=FinishReason.CANCELLED, error=cancelled))
    part = responder.take()
    assert part.is_final and part.error is failure


def test_an_end_without_an_error_object_still_has_one() -> None:
    for reason, kind in ((FinishReason.CANCELLED, RequestCancelled), (FinishReason.ERROR, ExecutorFailed)):
        responder = Responder(1, stream=False)
        responder.push(TokenEvent(sample(), [], "", finish_reason=reason))
        assert isinstance(responder.take().error, kind)


def test_a_request_that_was_not_admitted_fails_at_once() -> None:
    responder = Responder(3, stream=False)
    refused = ExecutorFailed("no")
    responder.fail(refused)
    assert responder.is_ready
    assert responder.take().error is refused


def test_logprobs_and_their_sum_travel_with_the_tokens() -> None:
    request, responder = sample(), Responder(1, stream=True)
    request.cumulative_logprob = -0.5
    logprob = TokenLogprob(7, -0.5, 1)
    responder.push(TokenEvent(request, [7], "x", logprobs=[logprob]))
    assert responder.take().deltas[0].logprobs == [logprob]
    part = responder.take()
    assert (part.deltas[0].logprobs, part.deltas[0].cumulative_logprob) == ([], -0.5)
