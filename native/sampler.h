// One row of logits to one token, or to log-probabilities. The stages and their order are those of
// backend/trtdecode/sampling/stages.py; results are equal to its bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "select.h"

namespace trtdecode {

// A borrowed array.
template <typename T>
struct Span {
    const T* data = nullptr;
    size_t size = 0;
};

// How to choose; fixed for a request.
struct Choice {
    bool greedy = true;
    float temperature = 1.0f;
    float least = 0.0f;    // min-p: the least scaled logit kept; -inf keeps all
    int64_t top_k = 0;     // 0: all
    double top_p = 1.0;    // 1: all
    float repetition = 1.0f;
    float frequency = 0.0f;
    float presence = 0.0f;
    uint64_t seed = 0;
    uint32_t sample_index = 0;
};

// What changes a row at this step (stages.RowEdits).
struct Edits {
    Span<int32_t> bias_ids;
    Span<float> bias_values;
    Span<int32_t> banned_ids;
    Span<uint32_t> mask;  // empty: everything is allowed
    Span<int32_t> seen_ids;
    Span<int32_t> seen_counts;
};

// Results below zero.
constexpr int32_t kNoTokenLeft = -1;
constexpr int32_t kNotFinite = -2;

struct Logprob {
    double logprob = 0.0;
    int32_t rank = 0;
};

// Buffers of one thread, kept between rows.
class Scratch {
  public:
    explicit Scratch(const Kernels& kernels) : kernels_(kernels), selector_(kernels) {}

    // The row that this thread will probably work on after the next call, or null: only makes it faster.
    void expect(const float* next) { next_ = next; }

    // `edits` is null for a row that is used as it is.
    int32_t choose(const float* logits, size_t size, const Choice& choice, const Edits* edits, uint32_t position);

    // The chosen token's log-probability and rank (0: the row is not finite), and the num_top best (id -1: no more).
    Logprob logprobs(const float* logits, size_t size, int32_t token_id, size_t num_top, int32_t* top_ids,
                     double* top_logprobs);

  private:
    Row view(const float* logits, size_t size);  // fills peaks_; the last view is the valid one
    double sum_row(const Row& row, Scale scale);  // fills sums_; the sum of all
    void edit(const float* logits, size_t size, const Choice& choice, const Edits& edits);
    int32_t choose_among_all(const Row& row, Scale scale, double target);  // of what sum_row has summed
    size_t rank_of(const Row& row, size_t id) const;

    const Kernels& kernels_;
    Selector selector_;
    std::vector<float> peaks_;
    std::vector<float> edited_;
    std::vector<double> sums_;
    const float* next_ = nullptr;
};

}  // namespace trtdecode
