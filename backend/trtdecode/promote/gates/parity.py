"""Does the executor that will serve compute what the reference executor computes from the same graph?"""

from __future__ import annotations

import dataclasses
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.executor.factory import create_executor
from trtdecode.promote.gate import Context, Gate
from trtdecode.text.tokenizer import Tokenizer


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Logits of a few texts, ragged, through both; every weight precision in the version."""
    from trtbuild.verify.parity import SAMPLE_TEXTS, compare_logits, graph_logits

    manifest = context.manifest
    if manifest.ranks.num_ranks > 1:
        return True, f"split ({manifest.ranks}): there is no whole graph to compare with", {}
    limits = context.limits.parity
    tokenizer = Tokenizer.from_dir(context.version_dir)
    prompts = [tokenizer.encode(text) for text in SAMPLE_TEXTS]
    figures: dict[str, Any] = {}
    for precision in sorted(manifest.graphs):
        logits = {}
        for name in ("torch", "auto"):
            config = ServingConfig(executor=name, precision=precision, kv_cache_bytes=1 << 26)
            executor, _ = create_executor(config, manifest, context.version_dir, device_kind="CPU", device_id=0)
            try:
                logits[name] = graph_logits(executor, prompts)
            finally:
                executor.close()
        found = compare_logits(logits["torch"], logits["auto"], ("torch", "serving"))
        figures[precision] = dataclasses.asdict(found)
        wrong = [
            f"{what} is {value:.3g}, limit {limit:g}"
            for what, value, limit, ok in (
                (
                    "mean absolute error",
                    found.mean_abs_error,
                    limits.max_mean_abs_error,
                    found.mean_abs_error <= limits.max_mean_abs_error,
                ),
                (
                    "KL divergence",
                    found.kl_divergence,
                    limits.max_kl_divergence,
                    found.kl_divergence <= limits.max_kl_divergence,
                ),
                (
                    "argmax agreement",
                    found.argmax_agreement,
                    limits.min_argmax_agreement,
                    found.argmax_agreement >= limits.min_argmax_agreement,
                ),
            )
            if not ok
        ]
        if wrong:
            return False, f"{precision}: {'; '.join(wrong)}", figures
    rows = next(iter(figures.values()))["num_rows"]
    return True, f"{', '.join(figures)}: equal within the limits over {rows} positions", figures


GATE = Gate("parity", ask)
