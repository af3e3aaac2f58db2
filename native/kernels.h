// The passes over a whole row of logits. Each is compiled for several instruction sets, and the best that the CPU has
// is picked at run time: one binary runs everywhere, with the same results (sampling/weights.py has the arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trtdecode {

constexpr size_t kBlock = 64;  // logits per block: peaks and sums are kept per block, to skip most of a row

constexpr size_t num_blocks(size_t size) { return (size + kBlock - 1) / kBlock; }

// x = (logit - peak) / temperature, of which x < least counts as excluded.
struct Scale {
    float peak;
    float temperature;
    float least;
};

struct Kernels {
    const char* name;

    // peaks[b] = greatest logit of block b; returns the greatest of all, +inf also where a logit is NaN.
    float (*block_peaks)(const float* logits, size_t size, float* peaks);

    // The weight of a logit is round(exp(x) * 2^32), 0 where excluded: a whole number. sums[b] = exact sum of block b's
    // weights; returns the exact sum of all. `peaks` are those of the same logits; blocks without weight cost nothing.
    // This computes more than it reads, so it fetches meanwhile what is read next: another row of this size, or null.
    double (*block_sums)(const float* logits, size_t size, const float* peaks, Scale scale, double* sums,
                         const float* next);

    // The weights themselves, and their exact sum.
    double (*weigh)(const float* logits, size_t size, Scale scale, float* weights);

    // Logits >= least, in their order, with their places. Returns how many; both buffers need room for kBlock more.
    size_t (*collect)(const float* logits, size_t size, const float* peaks, float least, float* found, int32_t* places);

    // How many of the logits are greater than `value`.
    size_t (*count_greater)(const float* logits, size_t size, const float* peaks, float value);

    // target[i] = logits[i] where bit i % 32 of mask[i / 32] is set, else -inf. Bits beyond num_words count as unset.
    void (*copy_masked)(const float* logits, size_t size, const uint32_t* mask, size_t num_words, float* target);
};

// Those that this CPU can run, the fastest first.
std::vector<const Kernels*> runnable_kernels();

}  // namespace trtdecode
