// Choosing among ranked logits: greater first, of equal ones the lower id. Nothing here depends on weights' rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trtdecode {

struct Candidate {
    float logit;
    int32_t id;
};

inline bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// A row of logits with its block peaks (kernels.h).
struct Row {
    const float* logits;
    size_t size;
    const float* peaks;
};

// The last token that is kept: itself and all that rank before it.
struct Cut {
    Candidate last;
    double kept;  // exact sum of the kept tokens' weights
};

struct SelectBuffers {
    std::vector<float> peaks;
    std::vector<Candidate> candidates;
    std::vector<double> bins;
};

// The `count` best finite logits (fewer if there are fewer), in no order, in buffers.candidates.
void select_leading(const Row& row, size_t count, SelectBuffers& buffers);

// The fewest best tokens whose weights reach `limit`; 0 < limit <= sum of all weights.
Cut select_mass(const Row& row, const float* weights, float peak, double limit, SelectBuffers& buffers);

}  // namespace trtdecode
