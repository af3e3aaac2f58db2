"""A version for several ranks: each has a folder of its own, a version folder in miniature, so that building engines
is the same as for a whole model.

    VERSION/manifest.json, tokenizer.json        the whole model's facts; how many ranks
    VERSION/rank_0/manifest.json, decoder.onnx   its heads, its layers; later its engines

Ranks of one pipeline stage are neighbours: rank = stage * tensor_parallel_size + tensor rank.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trtdecode.manifest import Manifest, ModelSpec, RankLayout, entry_of, rank_dir, write_manifest

from trtbuild.checkpoint import Checkpoint
from trtbuild.graph.author import author_graph, config_for_rank, config_of
from trtbuild.graph.check import check_graph
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.family import ModelConfig
from trtbuild.graph.stages import layer_ranges, write_stages
from trtbuild.quantize.int8 import DEFAULT_GROUP_SIZE


def check_layout(config: ModelConfig, layout: RankLayout) -> None:
    """Raises UnsupportedError, naming the numbers, where a model cannot be split like this."""
    for tensor_rank in range(layout.tensor_parallel_size):
        config_for_rank(config, tensor_rank, layout.tensor_parallel_size)
    layer_ranges(config.spec.num_layers, layout.pipeline_parallel_size)


def write_rank_graphs(
    checkpoint: Checkpoint,
    version_dir: Path,
    file_name: str,
    precision: str,
    layout: RankLayout,
    group_size: int = DEFAULT_GROUP_SIZE,
) -> None:
    """Writes `rank_R/<file_name>` for every rank, and checks each. `group_size`: see `author_graph`."""
    num_stages = layout.pipeline_parallel_size
    config = config_of(checkpoint)
    for tensor_rank in range(layout.tensor_parallel_size):
        ranks = [layout.rank_of(stage, tensor_rank) for stage in range(num_stages)]
        targets = [rank_dir(version_dir, rank) / file_name for rank in ranks]
        for target in targets:
            target.parent.mkdir(exist_ok=True)
        size = layout.tensor_parallel_size
        options = {"group_size": group_size, "tensor_rank": tensor_rank, "tensor_parallel_size": size}
        if num_stages == 1:
            author_graph(checkpoint, targets[0], precision, **options)
        else:
            with tempfile.TemporaryDirectory(dir=version_dir, prefix=".whole-") as scratch:
                whole = Path(scratch) / file_name
                author_graph(checkpoint, whole, precision, **options)
                ranges = layer_ranges(config.spec.num_layers, num_stages)
                write_stages(whole, targets, ranges, config.spec.hidden_size)
        for stage, (rank, target) in enumerate(zip(ranks, targets, strict=True)):
            spec = rank_spec(config, rank, layout)
            check_graph(target, spec, is_first=stage == 0, is_last=stage == num_stages - 1)


def rank_spec(config: ModelConfig, rank: int, layout: RankLayout) -> ModelSpec:
    """The spec of one rank's graph: its heads and its layers."""
    stage, tensor_rank = divmod(rank, layout.tensor_parallel_size)
    assert isinstance(config, DecoderConfig)
    spec = config.for_rank(tensor_rank, layout.tensor_parallel_size).spec
    begin, end = layer_ranges(spec.num_layers, layout.pipeline_parallel_size)[stage]
    return dataclasses.replace(spec, num_layers=end - begin, sliding_windows=spec.sliding_windows[begin:end])


def write_rank_manifests(
    version_dir: Path, config: ModelConfig, source: str, graphs: Mapping[str, str], layout: RankLayout
) -> None:
    """Writes each rank's manifest over the graphs that lie in its folder."""
    for rank in range(layout.num_ranks):
        folder = rank_dir(version_dir, rank)
        files = {path.name: entry_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
        what = f"rank {rank} of {layout.num_ranks} of {source}"
        write_manifest(folder, Manifest(rank_spec(config, rank, layout), what, dict(graphs), files))
