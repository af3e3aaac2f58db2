// Choosing among ranked logits: greater first, of equal ones the lower id. Nothing here depends on weights' rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace trtdecode {

struct Candidate {
    float logit;
    int32_t id;
    float weight;  // where it is needed
};

inline bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// A row of logits with its block peaks (kernels.h) and the greatest of them, which is finite where tokens are selected.
struct Row {
    const float* logits;
    size_t size;
    const float* peaks;
    float peak;
};

// Selected tokens in id order, their weights, and the exact sum of these. Valid until the selector's next call.
struct Selected {
    const int32_t* ids;
    const float* weights;
    size_t count;
    double mass;
};

// Selects within rows; keeps its buffers between them.
class Selector {
  public:
    explicit Selector(const Kernels& kernels) : kernels_(kernels) {}

    // The `count` best finite logits, best first; fewer if there are fewer. Valid until the next call.
    const std::vector<Candidate>& best(const Row& row, size_t count);

    // The same tokens, and of these the fewest best whose weights reach `share` of theirs.
    Selected leading(const Row& row, Scale scale, size_t count, double share);

    // The fewest best of all tokens whose weights reach share * total. `sums` are the row's block sums under `scale`,
    // and `total` is the sum of them.
    Selected nucleus(const Row& row, Scale scale, const double* sums, double total, double share);

  private:
    struct Cut {
        Candidate last;  // itself and all that rank before it are kept
        double mass;
    };

    void collect(const Row& row, float least);
    void collect_leading(const Row& row, size_t count);
    float ranked_peak(const Row& row, size_t rank);
    float ranked_sample(const Row& row, size_t rank);
    template <typename Weight>
    double keep(double limit, float peak, float range, Weight weight);
    template <typename Weight>
    Cut cut_at(double limit, float peak, float range, Weight weight);

    const Kernels& kernels_;
    // What is selected so far, in id order.
    size_t count_ = 0;
    std::vector<float> logits_, weights_;
    std::vector<int32_t> ids_;

    std::vector<float> sample_;
    std::vector<int32_t> bins_;
    std::vector<Candidate> candidates_;
};

}  // namespace trtdecode
