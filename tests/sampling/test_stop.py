"""Ends that token ids tell: EOS, stop ids, lengths."""

from __future__ import annotations

from typing import Any

import pytest
from trtdecode.request import FinishReason
from trtdecode.sampling.stop import check_token_stop

from .conftest import EOS, new_request


@pytest.mark.parametrize(
    ("output", "fields", "reason"),
    [
        ([], {}, None),
        ([5], {}, None),
        ([5, EOS], {}, FinishReason.STOP),
        ([5, EOS], {"ignore_eos": True}, None),
        ([5, EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, FinishReason.STOP),
        ([7], {"stop_token_ids": (6, 7)}, FinishReason.STOP),
        ([7, 5], {"stop_token_ids": (6, 7)}, None),
        ([5, 5], {"max_tokens": 2}, FinishReason.LENGTH),
        ([5, EOS], {"max_tokens": 2}, FinishReason.STOP),
        ([EOS], {"min_tokens": 2}, None),
        ([5, EOS], {"min_tokens": 2}, FinishReason.STOP),
        ([EOS], {"min_tokens": 2, "max_tokens": 1}, FinishReason.LENGTH),
    ],
)
def test_reasons(output: list[int], fields: dict[str, Any], reason: FinishReason | None) -> None:
    assert check_token_stop(new_request(output=output, **fields), {EOS}) is reason


def test_length_of_prompt_and_output_together() -> None:
    request = new_request(prompt=[1, 1, 1], output=[5])
    request.max_total_tokens = 5
    assert check_token_stop(request, {EOS}) is None
    request.output_ids.append(5)
    assert check_token_stop(request, {EOS}) is FinishReason.LENGTH
