"""paged_attention against its reference, and the reference against torch's own attention."""

from dataclasses import dataclass, replace

import pytest
import torch
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.kernels.kv_write import kv_write_reference
from trtdecode.kernels.launch import Launcher
from trtdecode.kernels.paged_attention import (
    RaggedBatch,
    SplitWorkspace,
    choose_num_splits,
    paged_attention,
    paged_attention_reference,
)
from trtdecode.kernels.pages import KvPages, allocate_pages

# What a comparison of values of size ~1 may differ by: the operands' own rounding, not the algorithm's. A GPU's exp2 is
# an approximation, of two units in the last place.
F32 = {"atol": 2e-5, "rtol": 1e-4} if torch.cuda.is_available() else {"atol": 2e-6, "rtol": 1e-5}
TOLERANCES = {torch.float32: (F32["atol"], F32["rtol"]), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)}


@dataclass
class Case:
    """A filled cache and a step over it."""

    query: torch.Tensor
    pages: KvPages
    batch: RaggedBatch
    spec: AttentionSpec
    tables: list[list[int]]

    def attend(self, launcher: Launcher, num_splits: int = 1) -> torch.Tensor:
        device = str(self.query.device)
        workspace = SplitWorkspace.allocate(self.spec, self.batch.num_sequences, num_splits, device)
        workspace.output.fill_(float("nan"))  # a partial result that is read but never written shows
        workspace.log_sum.fill_(float("nan"))
        output = torch.full(self.query.shape, float("nan"), dtype=self.query.dtype, device=device)
        slopes = torch.tensor(self.spec.alibi_slopes, device=device) if self.spec.alibi_slopes else None
        return paged_attention(launcher, self.query, self.pages, self.batch, self.spec, workspace, output, slopes)

    def reference(self) -> torch.Tensor:
        return paged_attention_reference(self.query, self.pages, self.batch, self.spec)


def make_case(
    lens: list[tuple[int, int]],
    spec: AttentionSpec,
    device: str,
    *,
    precision: str = "f32",
    dtype: torch.dtype = torch.float32,
    block: int = 16,
    seed: int = 0,
) -> Case:
    """`lens`: (context, new tokens) of each sequence. Blocks are given out in random order, garbage elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // block) for context, _ in lens]
    order = torch.randperm(sum(counts) + 2, generator=generator).tolist()
    pages = allocate_pages(precision, len(order), spec.num_kv_heads, block, spec.head_dim, "cpu")
    for tensor in (pages.key, pages.value):
        tensor.copy_((torch.randn(tensor.shape, generator=generator) * 50).to(tensor.dtype))
    tables, width = [], spec.num_kv_heads * spec.head_dim
    for (context, _), count in zip(lens, counts, strict=True):
        table, order = order[:count], order[count:]
        tables.append(table)
        slots = torch.tensor([table[p // block] * block + p % block for p in range(context)], dtype=torch.int64)
        key, value = (torch.randn(context, width, generator=generator).to(dtype) for _ in range(2))
        kv_write_reference(key, value, slots, pages)
    new = [n for _, n in lens]
    num_tokens = sum(new)

    def i32(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    batch = RaggedBatch(
        context_lens=i32([context for context, _ in lens]),
        query_begins=i32([sum(new[:i]) for i in range(len(new) + 1)]),
        block_indices=i32([block for table in tables for block in table]),
        block_begins=i32([sum(counts[:i]) for i in range(len(counts) + 1)]),
        num_tokens=num_tokens,
        has_decode=1 in new,
        has_prefill=any(n > 1 for n in new),
    )
    # Queries as slices of a merged QKV output: rows are strided.
    merged = torch.randn(num_tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, generator=generator)
    query = merged.to(dtype).to(device)[:, : spec.num_heads * spec.head_dim]
    moved = {name: getattr(pages, name) for name in ("key", "value", "key_scale", "value_scale")}
    pages = KvPages(**{name: None if t is None else t.to(device) for name, t in moved.items()})
    return Case(query, pages, batch, spec, tables)


def spec_of(heads: int, kv_heads: int, dim: int, window: int = 0, softcap: float = 0.0) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, dim, dim**-0.5, window, softcap)


GQA3, MHA, MQA8 = spec_of(6, 2, 64), spec_of(2, 2, 32), spec_of(8, 1, 16)
ODD_DIM = spec_of(5, 1, 20)  # neither the group nor head_dim is a power of two
# (context, new tokens): tile edges at 64, block edges at 16, one-token contexts, a padding row (0, 1) in the middle.
DECODES = [(1, 1), (64, 1), (65, 1), (0, 1), (200, 1)]
PREFILLS = [(70, 70), (17, 17), (150, 33)]
MIXED = [(90, 1), (40, 40), (0, 1), (5, 1), (81, 17)]


@pytest.mark.parametrize("lens", [DECODES, PREFILLS, MIXED], ids=["decode", "prefill", "mixed"])
@pytest.mark.parametrize("spec", [GQA3, MHA, MQA8, ODD_DIM], ids=["gqa3", "mha", "mqa8", "odd"])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_matches_reference_f32(
    launcher: Launcher, device: str, lens: list[tuple[int, int]], spec: AttentionSpec, num_splits: int
) -> None:
    case = make_case(lens, spec, device)
    atol, rtol = TOLERANCES[torch.float32]
    torch.testing.assert_close(case.attend(launcher, num_splits), case.reference(), atol=atol, rtol=rtol)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("f16", torch.float16),
        ("bf16", torch.bfloat16),
        ("int8", torch.float16),
        ("int8", torch.bfloat16),
        ("fp8", torch.float16),
        ("fp8", torch.bfloat16),
    ],
)
def test_precisions(launcher: Launcher, device: str, precision: str, dtype: torch.dtype) -> None:
    """The reference dequantises the same codes, so quantisation itself is not part of the tolerance."""
    case = make_case(MIXED, GQA3, device, precision=precision, dtype=dtype)
    atol, rtol = TOLERANCES[dtype]
    torch.testing.assert_close(case.attend(launcher, 2), case.reference(), atol=atol, rtol=rtol)


@pytest.mark.parametrize("block", [1, 8, 32, 128])
def test_block_sizes(launcher: Launcher, device: str, block: int) -> None:
    case = make_case([(130, 1), (37, 5)], MHA, device, block=block)
    torch.testing.assert_close(case.attend(launcher, 2), case.reference(), **F32)


@pytest.mark.parametrize("window", [1, 4, 64, 100])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_sliding_window(launcher: Launcher, device: str, window: int, num_splits: int) -> None:
    case = make_case([(150, 1), (3, 1), (140, 20), (13, 13)], replace(MHA, sliding_window=window), device)
    torch.testing.assert_close(case.attend(launcher, num_splits), case.reference(), **F32)


def test_window_of_four_sees_itself_and_three_more(launcher: Launcher, device: str) -> None:
    """Token 2 changes: positions 2..5 see it, 6 and later do not, in prefill, in chunks and in decode."""
    for lens, positions in (([(13, 13)], range(13)), ([(13, 8)], range(5, 13)), ([(7, 1)], range(6, 7))):
        case = make_case(lens, replace(MHA, sliding_window=4), device)
        before = case.attend(launcher).clone()
        case.pages.key[case.tables[0][0], :, 2] += 1.0
        case.pages.value[case.tables[0][0], :, 2] += 1.0
        changed = (case.attend(launcher) != before).any(dim=1).tolist()
        assert changed == [2 <= position <= 5 for position in positions]


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap(launcher: Launcher, device: str, softcap: float) -> None:
    case = make_case([(90, 1), (20, 20)], replace(GQA3, softcap=softcap, scale=4.0), device)
    torch.testing.assert_close(case.attend(launcher, 2), case.reference(), atol=2e-5, rtol=1e-4)


def test_alibi(launcher: Launcher, device: str) -> None:
    slopes = (0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
    case = make_case([(90, 1), (20, 20)], replace(GQA3, alibi_slopes=slopes, softcap=5.0), device)
    torch.testing.assert_close(case.attend(launcher, 2), case.reference(), atol=2e-5, rtol=1e-4)


def test_softcap_of_huge_scores_is_finite(launcher: Launcher, device: str) -> None:
    case = make_case([(20, 1)], replace(MHA, softcap=50.0, scale=1e4), device)
    torch.testing.assert_close(case.attend(launcher), case.reference(), atol=2e-5, rtol=1e-4)


def test_tiny_quantised_values_keep_their_relative_precision(launcher: Launcher, device: str) -> None:
    """Values of 1e-4 under fp16 weights: scales must be relative to the tile, or small weights round to nothing."""
    case = make_case([(100, 1)], GQA3, device, precision="int8", dtype=torch.float16)
    assert case.pages.value_scale is not None
    case.pages.value_scale.mul_(1e-4)
    output, expected = case.attend(launcher).float() * 1e4, case.reference().float() * 1e4
    torch.testing.assert_close(output, expected, atol=2e-3, rtol=2e-3)


def test_padding_rows_are_zero_and_touch_nothing(launcher: Launcher, device: str) -> None:
    case = make_case([(40, 1), (0, 1), (0, 1)], GQA3, device)
    for num_splits in (1, 4):
        output = case.attend(launcher, num_splits)
        assert (output[1:] == 0).all()
        torch.testing.assert_close(output[0], case.reference()[0], **F32)


def test_head_h_uses_kv_head_h_div_group(launcher: Launcher, device: str) -> None:
    """Values of KV head 0 are 1 and of head 1 are 2: query heads 0-2 answer 1, heads 3-5 answer 2."""
    case = make_case([(30, 1), (9, 9)], spec_of(6, 2, 8), device)
    case.pages.value[:, 0], case.pages.value[:, 1] = 1.0, 2.0
    output = case.attend(launcher).reshape(-1, 6, 8)
    torch.testing.assert_close(output[:, :3], torch.ones_like(output[:, :3]))
    torch.testing.assert_close(output[:, 3:], torch.full_like(output[:, 3:], 2.0))


def test_chunks_equal_one_prefill(launcher: Launcher, device: str) -> None:
    whole = make_case([(61, 61)], MHA, device)
    expected = whole.attend(launcher)
    for begin, end in ((0, 20), (20, 37), (37, 61)):
        batch = replace(
            whole.batch,
            context_lens=torch.tensor([end], dtype=torch.int32, device=device),
            query_begins=torch.tensor([0, end - begin], dtype=torch.int32, device=device),
            num_tokens=end - begin,
        )
        chunk = Case(whole.query[begin:end], whole.pages, batch, whole.spec, whole.tables)
        torch.testing.assert_close(chunk.attend(launcher), expected[begin:end], **F32)


def test_reference_equals_torch_attention(device: str) -> None:
    case = make_case([(45, 45)], GQA3, device)
    blocks = torch.tensor(case.tables[0], device=device)
    query = case.query.reshape(45, 6, 64).transpose(0, 1)
    key, value = (p[blocks].transpose(0, 1).reshape(2, -1, 64)[:, :45] for p in (case.pages.key, case.pages.value))
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(case.reference(), dense.transpose(0, 1).reshape(45, -1), **F32)


def test_split_count_depends_on_batch_and_device_only() -> None:
    assert choose_num_splits(1, 8, 132) == 32
    assert choose_num_splits(8, 8, 132) == 4
    assert choose_num_splits(64, 8, 132) == 1
    assert choose_num_splits(1, 3, 20) == 8
    assert choose_num_splits(0, 8, 132) == 32
