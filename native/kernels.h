// The passes over a whole row of logits. Each is compiled for baseline x86-64 and for AVX2 and picked at load, so one
// binary runs everywhere; results do not depend on which (see sampling/weights.py for the arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trtdecode {

constexpr size_t kBlock = 64;  // logits per block: peaks and sums are kept per block, to skip most of a row

constexpr size_t num_blocks(size_t size) { return (size + kBlock - 1) / kBlock; }

// peaks[b] = greatest logit of block b. Returns false if a logit is NaN or +inf; peaks are then unspecified.
bool block_peaks(const float* logits, size_t size, float* peaks);

// x = (logit - peak) / temperature, of which x < least counts as excluded.
struct Scale {
    float peak;
    float temperature;
    float least;
};

// weights[i] = round(exp(x) * 2^32), 0 where excluded: whole numbers. sums[b] = exact sum of block b's weights; returns
// the exact sum of all. `peaks` are block_peaks of the same logits; blocks that hold no weight cost nothing. The weights
// buffer must have room for whole blocks; the tail is filled with zeros.
double weigh(const float* logits, size_t size, const float* peaks, Scale scale, float* weights, double* sums);

// target[i] = logits[i] where bit i % 32 of mask[i / 32] is set, else -inf. Bits beyond num_words count as unset.
void copy_masked(const float* logits, size_t size, const uint32_t* mask, size_t num_words, float* target);

// How many of the logits are greater than `value`.
size_t count_greater(const float* logits, size_t size, float value);

}  // namespace trtdecode
