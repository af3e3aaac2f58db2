"""What a replica thinks of given tokens: their log-probabilities, by the same loop, cache and kernels that serve."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trtdecode.replica import Replica
from trtdecode.request import TokenLogprob
from trtdecode.sampling.params import SamplingParams

#: Prompts in flight: enough for full steps, few enough that their logits fit in memory.
NUM_IN_FLIGHT = 8
#: One token must be generated; the likeliest token beside the given one is asked for.
_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)


def score_prompts(replica: Replica, prompts: Sequence[list[int]]) -> list[list[TokenLogprob | None]]:
    """For each prompt one entry a token; None for the first, which nothing predicts.

    Raises:
        RequestError: a prompt is empty, or longer than the context less one token.
    """

    def score(prompt: list[int]) -> list[TokenLogprob | None]:
        (completion,) = replica.generate(prompt, _PARAMS)
        assert completion.prompt_logprobs is not None, "they were asked for"
        return completion.prompt_logprobs

    with ThreadPoolExecutor(NUM_IN_FLIGHT) as pool:
        return list(pool.map(score, prompts))
