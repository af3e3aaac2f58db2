"""Why generation ends, as far as token ids tell; stop strings are `text/output.py`'s business."""

from __future__ import annotations

from collections.abc import Collection

from trtdecode.request import FinishReason, Request


def is_stop_token(request: Request, token_id: int, eos_token_ids: Collection[int]) -> bool:
    """Whether the token ends this request: EOS (unless ignore_eos) or one of stop_token_ids, from min_tokens on.

    Call it after the token was appended: with min_tokens 3, the third token may end the request.
    """
    params = request.params
    if request.num_output_tokens < params.min_tokens:
        return False
    if token_id in params.stop_token_ids:
        return True
    return not params.ignore_eos and token_id in eos_token_ids


def check_token_stop(request: Request, eos_token_ids: Collection[int]) -> FinishReason | None:
    """STOP or LENGTH when the last token appended ends the request, else None.

    A stop token wins over the limit it coincides with, as in OpenAI's API.
    """
    params = request.params
    if request.output_ids and is_stop_token(request, request.output_ids[-1], eos_token_ids):
        return FinishReason.STOP
    if params.max_tokens is not None and request.num_output_tokens >= params.max_tokens:
        return FinishReason.LENGTH
    if request.max_total_tokens and request.num_tokens >= request.max_total_tokens:
        return FinishReason.LENGTH
    return None
