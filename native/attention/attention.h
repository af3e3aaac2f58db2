// Paged attention of one decoder layer on the CPU: writes a step's keys and values into their blocks, then attends.
//
// A sequence's result depends on nothing but the sequence: not on what else is in the step, on how its prompt was cut
// into steps, or on the number of threads. Sums run over chunks of kChunk keys counted from the sequence's start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trtdecode {

constexpr size_t kBlockSize = 32;  // tokens of a block
constexpr size_t kChunk = 256;     // keys whose scores are held at once; a multiple of kBlockSize

// What a node says about itself (executor/attention_spec.py), and where a token's q, k and v begin in their rows.
struct AttentionSpec {
    int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
    int64_t sliding_window = 0;        // 0: all keys
    int64_t rotary_dim = 0;            // first so many dimensions of a head are rotated; 0: none
    bool interleaved = false;          // pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2)
    float scale = 1, softcap = 0;      // softcap 0: off
    std::vector<float> alibi_slopes;   // one a head; empty: off
    int64_t q_begin = 0, k_begin = 0, v_begin = 0;

    size_t group() const { return static_cast<size_t>(num_heads / num_kv_heads); }
};

// Rows of floats, `stride` apart.
struct Rows {
    const float* data;
    size_t stride;
    const float* operator[](size_t row) const { return data + row * stride; }
};

// One layer's part of a step of `num_sequences` sequences.
struct AttentionStep {
    Rows q, k, v;           // [tokens]
    Rows angles;            // [tokens] cosines[rotary_dim / 2], then sines[rotary_dim / 2]
    void* cache;            // [num_blocks][num_kv_heads] of keys and values, each `cache_bytes`
    bool u8;                // the cache holds codes of 8 bits, not floats
    size_t num_sequences;
    const int32_t *past_lens, *query_begins, *block_indices, *block_begins;
    float* out;             // [tokens][num_heads * head_dim]
};

// The keys, or the values, of a block and head. Keys lie as [head_dim][kBlockSize], so that those of several tokens
// fill a vector; values as [kBlockSize][head_dim]. u8: after the codes f32 scale[kBlockSize], zero[kBlockSize]; a
// number is scale * code + zero, with scale and zero of its token and head.
inline size_t cache_bytes(const AttentionSpec& spec, bool u8) {
    const auto dim = static_cast<size_t>(spec.head_dim);
    return kBlockSize * (u8 ? dim + 2 * sizeof(float) : dim * sizeof(float));
}

// A thread's share of a step: some tokens of a sequence, and the query heads that share a KV head.
struct AttentionTask {
    size_t sequence, kv_head;
    size_t begin, end;  // tokens, counted from the step's first
    bool writes;        // stores keys and values
    bool attends;       // whatever it reads has been stored
};

// Floats of working memory that a task needs.
inline size_t scratch_floats(const AttentionSpec& spec) {
    constexpr size_t kMostRows = 6;  // that any of the kernels takes at once
    return kMostRows * (kChunk + 2 * static_cast<size_t>(spec.head_dim));
}

// The body of a task, compiled for several instruction sets.
struct AttentionKernels {
    const char* name;
    void (*run)(const AttentionSpec&, const AttentionStep&, const AttentionTask&, float* scratch);
};

// Runs a step on the caller's TBB arena.
void paged_attention(const AttentionSpec& spec, const AttentionStep& step);

}  // namespace trtdecode

// For Python (executor/openvino_native_attention.py). The kernels in use are the fastest that this CPU runs.
extern "C" const char* trtdecode_attention_kernels();
extern "C" int trtdecode_use_attention_kernels(const char* name);  // 0: there are none of that name
