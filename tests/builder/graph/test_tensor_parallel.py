"""Graphs split over ranks against the whole graph: every family, every way in which heads divide, kept codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builder.family_configs import CONFIGS, llama
from builder.tiny_models import random_prompt, save_model
from conformance.driver import Driver
from executor.ranks.thread_links import ThreadedRanks
from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.graph.author import author_graph, config_of
from trtbuild.graph.share import Share, even_share, kv_head_share
from trtbuild.graph.stages import layer_ranges
from trtbuild.ranks import check_layout, write_rank_graphs
from trtdecode.errors import UnsupportedError
from trtdecode.executor.torch_executor import TorchExecutor
from trtdecode.manifest import RankLayout, rank_dir

POOL_BYTES = 1 << 21
FILE = "decoder.onnx"

#: One config a family, and more where heads, biases or windows differ.
TENSOR_PARALLEL = (
    *("llama-bias", "llama-mqa", "mistral-window", "qwen2", "qwen3", "smollm3", "phi3", "mixtral", "gemma2", "gemma3"),
    *("gpt2", "gpt-neox", "gpt-neox-sequential", "opt", "phi", "bloom", "falcon-7b", "falcon-40b", "falcon-rw"),
)
PIPELINE = ("llama-tied", "smollm3", "gemma3", "gpt2", "gpt-neox", "opt-norm-after", "bloom", "falcon-rw", "mixtral")


def checkpoint_of(name: str, folder: Path) -> Checkpoint:
    save_model(CONFIGS[name](), folder / "checkpoint")
    return open_checkpoint(folder / "checkpoint")


def split(checkpoint: Checkpoint, folder: Path, layout: RankLayout, precision: str = "f32") -> ThreadedRanks:
    folder.mkdir(exist_ok=True)
    write_rank_graphs(checkpoint, folder, FILE, precision, layout)
    return ThreadedRanks(
        layout,
        lambda rank, links: TorchExecutor(
            rank_dir(folder, rank) / FILE,
            kv_cache_bytes=POOL_BYTES,
            links=links,
            hidden_size=checkpoint.config.get("hidden_size") or checkpoint.config["n_embd"],
        ),
    )


def logits_of(executor: TorchExecutor | ThreadedRanks) -> np.ndarray:
    """A ragged prefill in two chunks and a decode step."""
    driver = Driver(executor)
    first, second = (driver.sequence(random_prompt(length, 131), room=1) for length in (21, 6))
    rows = [driver.step((first, 9), (second, 6), every_row=True), driver.step((first, 12), every_row=True)]
    second.tokens.append(7)
    rows.append(driver.step((second, 1)))
    executor.close()
    return np.concatenate(rows)


def whole(checkpoint: Checkpoint, folder: Path, precision: str = "f32") -> np.ndarray:
    author_graph(checkpoint, folder / FILE, precision)
    return logits_of(TorchExecutor(folder / FILE, kv_cache_bytes=POOL_BYTES))


@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_two_ranks_compute_the_same(name: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(name, tmp_path)
    ranks = split(checkpoint, tmp_path / "split", RankLayout(2, 1))
    got, wanted = logits_of(ranks), whole(checkpoint, tmp_path)
    assert np.abs(wanted).max() > 1.0
    np.testing.assert_allclose(got, wanted, atol=2e-4, rtol=0)
    # Three steps; an all-reduce after the attention output and one after the MLP of each layer.
    assert [links.num_reduced for links in ranks.links] == [3 * 2 * config_of(checkpoint).num_layers] * 2


@pytest.mark.parametrize("name", PIPELINE)
def test_two_stages_compute_the_same_bit_by_bit(name: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(name, tmp_path)
    got = logits_of(split(checkpoint, tmp_path / "split", RankLayout(1, 2)))
    np.testing.assert_array_equal(got, whole(checkpoint, tmp_path))


@pytest.mark.parametrize("layout", [RankLayout(3, 1), RankLayout(6, 1), RankLayout(2, 2)], ids=str)
def test_more_ranks(layout: RankLayout, tmp_path: Path) -> None:
    """Six heads over two KV heads: three ranks do not divide them; six share each among three."""
    config = llama(intermediate_size=192)
    save_model(config, tmp_path / "checkpoint")
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    if layout.tensor_parallel_size == 3:
        with pytest.raises(UnsupportedError, match=r"tensor_parallel_size 3: the model's 2 KV heads do not divide"):
            check_layout(config_of(checkpoint), layout)
        return
    got = logits_of(split(checkpoint, tmp_path / "split", layout))
    np.testing.assert_allclose(got, whole(checkpoint, tmp_path), atol=2e-4, rtol=0)


def test_int8_ranks_hold_the_codes_of_the_whole(tmp_path: Path) -> None:
    """Borders lie between groups here, so that each rank quantises the very groups of the whole matrix."""
    save_model(llama(hidden_size=128, num_attention_heads=8, intermediate_size=192), tmp_path / "checkpoint")
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    got = logits_of(split(checkpoint, tmp_path / "split", RankLayout(2, 1), "int8"))
    np.testing.assert_allclose(got, whole(checkpoint, tmp_path, "int8"), atol=2e-4, rtol=0)


def test_groups_that_a_border_cuts_become_finer(tmp_path: Path) -> None:
    """160 inner units over two ranks: column 80 lies inside a group of 32, so down_proj gets groups of 16."""
    checkpoint = checkpoint_of("llama-tied", tmp_path)
    write_rank_graphs(checkpoint, tmp_path, FILE, "int8", RankLayout(2, 1))
    graph = onnx.load(str(tmp_path / "rank_1" / FILE), load_external_data=False).graph
    blocks = {
        node.input[0]: next(attribute.i for attribute in node.attribute if attribute.name == "block_size")
        for node in graph.node
        if node.op_type == "DequantizeLinear" and ".0.mlp" in node.input[0]
    }
    assert blocks == {"model.layers.0.mlp.gate_up_proj.weight": 32, "model.layers.0.mlp.down_proj.weight": 16}


# -- parts of stored codes ------------------------------------------------------------------------------------------


def codes(group_size: int = 4, **fields: object) -> GroupedCodes:
    values = np.arange(6 * 16, dtype=np.int8).reshape(6, 16)
    scales = np.arange(6 * 16 // group_size, dtype=np.float32).reshape(6, -1) + 1
    return GroupedCodes(values, scales, None, 8, **fields)  # type: ignore[arg-type]


def test_rows_and_whole_groups_of_columns() -> None:
    made = codes()
    part = made.part([(1, 3), (5, 6)], [(4, 12)], "w")
    np.testing.assert_array_equal(part.dequantize(), made.dequantize()[[1, 2, 5], 4:12])
    per_row = codes(group_size=16)
    np.testing.assert_array_equal(per_row.part([(0, 6)], [(3, 9)], "w").dequantize(), per_row.dequantize()[:, 3:9])


def test_a_border_inside_a_group_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"w: stored in groups of 4 columns, .* at column 6 cuts one"):
        codes().part([(0, 6)], [(0, 6)], "w")


def test_regrouped_columns_are_refused_but_their_rows_are_not() -> None:
    made = codes(column_order=np.arange(16)[::-1].copy())
    assert made.part([(0, 2)], [(0, 16)], "w").codes.shape == (2, 16)
    with pytest.raises(UnsupportedError, match="desc_act"):
        made.part([(0, 6)], [(0, 8)], "w")


# -- shares -----------------------------------------------------------------------------------------------------------


def test_shares_of_heads() -> None:
    assert even_share("heads", 6, 1, 2) == Share(6, ((3, 6),))
    assert [kv_head_share(2, rank, 4).ranges for rank in range(4)] == [((0, 1),), ((0, 1),), ((1, 2),), ((1, 2),)]
    q, kv = Share(6, ((3, 6),)).times(4), Share(2, ((1, 2),)).times(4)
    assert Share.joined(q, kv, kv) == Share(40, ((12, 24), (28, 32), (36, 40)))


def test_what_does_not_divide_names_what_does() -> None:
    with pytest.raises(UnsupportedError, match=r"size 2: the model's 9 attention heads do not .* one of 1, 3, 9"):
        even_share("attention heads", 9, 0, 2)


def test_layer_ranges() -> None:
    assert layer_ranges(30, 4) == [(0, 8), (8, 16), (16, 23), (23, 30)]
    with pytest.raises(UnsupportedError, match="pipeline_parallel_size 3: the model has 2 layers"):
        layer_ranges(2, 3)
