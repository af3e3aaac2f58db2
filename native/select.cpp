#include "select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.h"

namespace trtdecode {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kQuickBlocks = 64;   // a nucleus within the best of so many blocks needs one short sort
constexpr size_t kQuickCandidates = 1024;
constexpr int kBinShift = 19;         // 16 bins per power of two of (peak - logit)
constexpr size_t kBins = size_t{1} << (31 - kBinShift);

// Calls visit(begin, end) for every block that holds a logit >= least.
template <typename Visit>
void for_blocks(const Row& row, float least, Visit visit) {
    for (size_t block = 0; block < num_blocks(row.size); ++block) {
        if (row.peaks[block] >= least) visit(block * kBlock, std::min((block + 1) * kBlock, row.size));
    }
}

// The rank-th greatest block peak (rank from 1): at least `rank` logits reach it.
float ranked_peak(const Row& row, size_t rank, std::vector<float>& buffer) {
    buffer.assign(row.peaks, row.peaks + num_blocks(row.size));
    std::nth_element(buffer.begin(), buffer.begin() + (rank - 1), buffer.end(), std::greater<float>());
    return buffer[rank - 1];
}

void collect(const Row& row, float least, std::vector<Candidate>& out) {
    out.clear();
    for_blocks(row, least, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
            if (row.logits[i] >= least && row.logits[i] > -kInf) out.push_back({row.logits[i], static_cast<int32_t>(i)});
        }
    });
}

// Monotone in the logit: a greater logit never has a greater bin.
size_t bin_of(float peak, float logit) {
    const float distance = peak - logit;
    uint32_t bits;
    std::memcpy(&bits, &distance, sizeof bits);
    return (bits & 0x7FFFFFFFu) >> kBinShift;
}

// Quickselect by mass: the first candidate, in rank order, at which before + its predecessors' and its own weights
// reach the limit. Reorders the candidates.
Cut cut_within(std::vector<Candidate>& candidates, const float* weights, double before, double limit) {
    auto begin = candidates.begin();
    auto end = candidates.end();
    while (end - begin > 1) {
        auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, ranks_before);
        double first_half = 0.0;
        for (auto it = begin; it != middle; ++it) first_half += weights[it->id];
        if (before + first_half >= limit) {
            end = middle;
        } else {
            before += first_half;
            begin = middle;
        }
    }
    return {*begin, before + weights[begin->id]};
}

// The whole row: weights into bins by rank, then the one bin that crosses the limit.
Cut cut_by_bins(const Row& row, const float* weights, float peak, double limit, SelectBuffers& buffers) {
    buffers.bins.assign(kBins, 0.0);
    for (size_t i = 0; i < row.size; ++i) {
        if (weights[i] > 0.0f) buffers.bins[bin_of(peak, row.logits[i])] += weights[i];
    }
    double before = 0.0;
    size_t bin = 0;
    while (before + buffers.bins[bin] < limit) before += buffers.bins[bin++];
    buffers.candidates.clear();
    for (size_t i = 0; i < row.size; ++i) {
        if (weights[i] > 0.0f && bin_of(peak, row.logits[i]) == bin) {
            buffers.candidates.push_back({row.logits[i], static_cast<int32_t>(i)});
        }
    }
    return cut_within(buffers.candidates, weights, before, limit);
}

}  // namespace

void select_leading(const Row& row, size_t count, SelectBuffers& buffers) {
    const float least = count <= num_blocks(row.size) ? ranked_peak(row, count, buffers.peaks) : -kInf;
    auto& candidates = buffers.candidates;
    collect(row, least, candidates);
    if (candidates.size() > count) {
        std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(), ranks_before);
        candidates.resize(count);
    }
}

Cut select_mass(const Row& row, const float* weights, float peak, double limit, SelectBuffers& buffers) {
    if (num_blocks(row.size) > kQuickBlocks) {
        collect(row, ranked_peak(row, kQuickBlocks, buffers.peaks), buffers.candidates);
        double mass = 0.0;
        for (const Candidate& candidate : buffers.candidates) mass += weights[candidate.id];
        if (mass >= limit && buffers.candidates.size() <= kQuickCandidates) {
            return cut_within(buffers.candidates, weights, 0.0, limit);
        }
    }
    return cut_by_bins(row, weights, peak, limit, buffers);
}

}  // namespace trtdecode
