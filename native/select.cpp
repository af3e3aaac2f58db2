#include "select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace trtdecode {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kRange = 24.0f;  // logits with a weight have x > -kRange

// Quickselect by mass: the first candidate, in rank order, at which `before` + its predecessors' and its own weights
// reach the limit; `before` becomes that sum. Reorders the candidates.
Candidate cut_within(std::vector<Candidate>& candidates, double& before, double limit) {
    auto begin = candidates.begin();
    auto end = candidates.end();
    while (end - begin > 1) {
        auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, ranks_before);
        double first_half = 0.0;
        for (auto it = begin; it != middle; ++it) first_half += it->weight;
        if (before + first_half >= limit) {
            end = middle;
        } else {
            before += first_half;
            begin = middle;
        }
    }
    before += begin->weight;
    return *begin;
}

// An x such that the blocks all below it weigh no more than `tail`, and hardly less. The nucleus reaches down to there
// at least, and mostly not much further.
float first_guess(const Row& row, Scale scale, const double* sums, double tail) {
    constexpr size_t kBins = 96;
    double mass[kBins] = {};
    for (size_t block = 0; block < num_blocks(row.size); ++block) {
        const float place = (row.peak - row.peaks[block]) / scale.temperature * (kBins / kRange);
        mass[place < kBins - 1 ? static_cast<size_t>(place) : kBins - 1] += sums[block];
    }
    size_t bin = kBins;
    while (bin > 0 && tail >= mass[bin - 1]) tail -= mass[--bin];
    return -static_cast<float>(bin) * (kRange / kBins);
}

}  // namespace

const std::vector<Candidate>& Selector::best(const Row& row, size_t count) {
    collect_leading(row, count);
    candidates_.resize(count_);
    for (size_t i = 0; i < count_; ++i) candidates_[i] = {logits_[i], ids_[i], 0.0f};
    std::sort(candidates_.begin(), candidates_.end(), ranks_before);
    return candidates_;
}

Selected Selector::leading(const Row& row, Scale scale, size_t count, double share) {
    collect_leading(row, count);
    double mass = kernels_.weigh(logits_.data(), count_, scale, weights_.data());
    if (share < 1.0) {
        mass = keep(share * mass, row.peak, kRange * scale.temperature, [&](size_t i) { return weights_[i]; });
    }
    return {ids_.data(), weights_.data(), count_, mass};
}

Selected Selector::nucleus(const Row& row, Scale scale, const double* sums, double total, double share) {
    const double limit = share * total;
    const float guess = first_guess(row, scale, sums, total - limit);
    float range = 0.0f;  // of x that is collected
    double mass = 0.0;
    float more = share > 0.97 ? 3.0f : 1.5f;  // both from language models' logits; a second round is seldom needed
    for (float step = 1.0f; range < kRange && mass < limit; more += step, step *= 2.0f) {
        range = std::min(more - guess, kRange);
        collect(row, range < kRange ? row.peak - range * scale.temperature : kLowest);
        mass = kernels_.weigh(logits_.data(), count_, scale, weights_.data());
    }
    mass = keep(limit, row.peak, range * scale.temperature, [&](size_t i) { return weights_[i]; });
    return {ids_.data(), weights_.data(), count_, mass};
}

// All finite logits >= least.
void Selector::collect(const Row& row, float least) {
    const size_t room = (num_blocks(row.size) + 1) * kBlock;
    if (logits_.size() < room) {
        logits_.resize(room);
        weights_.resize(room);
        ids_.resize(room);
        bins_.resize(room);
    }
    count_ = kernels_.collect(row.logits, row.size, row.peaks, std::max(least, kLowest), logits_.data(), ids_.data());
}

void Selector::collect_leading(const Row& row, size_t count) {
    float least;
    if (count <= num_blocks(row.size) / 4) {
        least = ranked_peak(row, count);
        collect(row, least);
    } else {
        size_t rank = count;
        do {
            least = ranked_sample(row, rank);
            collect(row, least);
            rank *= 2;
        } while (count_ < count && least > kLowest);
    }
    if (count_ <= count) return;
    if (least == kLowest) least = *std::min_element(logits_.begin(), logits_.begin() + count_);
    keep(static_cast<double>(count), row.peak, row.peak - least, [](size_t) { return 1.0f; });
}

// A value that at least `rank` logits reach, and not many more: the rank-th greatest peak of groups of blocks.
float Selector::ranked_peak(const Row& row, size_t rank) {
    const size_t blocks = num_blocks(row.size);
    const size_t groups = std::min(blocks, 4 * rank);
    sample_.assign(row.peaks, row.peaks + groups);
    for (size_t begin = groups; begin < blocks; begin += groups) {
        const size_t count = std::min(groups, blocks - begin);
        for (size_t i = 0; i < count; ++i) sample_[i] = std::max(sample_[i], row.peaks[begin + i]);
    }
    std::nth_element(sample_.begin(), sample_.begin() + (rank - 1), sample_.end(), std::greater<float>());
    return std::max(sample_[rank - 1], kLowest);
}

// A value that `rank` logits and some more probably reach, from a sample of them; the lowest if it cannot tell.
float Selector::ranked_sample(const Row& row, size_t rank) {
    const size_t stride = std::max<size_t>(1, row.size / 2048);
    const double expected = static_cast<double>(rank) / static_cast<double>(stride);
    const auto enough = static_cast<size_t>(expected + 3.0 * std::sqrt(expected) + 4.0);
    if (enough * stride >= row.size) return kLowest;
    sample_.clear();
    for (size_t i = 0; i < row.size; i += stride) sample_.push_back(row.logits[i]);
    std::nth_element(sample_.begin(), sample_.begin() + enough, sample_.end(), std::greater<float>());
    return std::max(sample_[enough], kLowest);
}

// Keeps the fewest best of what is selected whose weights reach the limit, which they do. Returns their sum.
template <typename Weight>
double Selector::keep(double limit, float peak, float range, Weight weight) {
    const Cut cut = cut_at(limit, peak, range, weight);
    size_t kept = 0;
    for (size_t i = 0; i < count_; ++i) {  // without branches: which are kept cannot be predicted
        const float logit = logits_[i];
        const int32_t id = ids_[i];
        logits_[kept] = logit;
        ids_[kept] = id;
        weights_[kept] = weights_[i];
        kept += static_cast<size_t>((logit > cut.last.logit) | ((logit == cut.last.logit) & (id <= cut.last.id)));
    }
    count_ = kept;
    return cut.mass;
}

// Weights into bins by rank, which span logits from the peak to peak - range, then the one bin that crosses the limit.
template <typename Weight>
Selector::Cut Selector::cut_at(double limit, float peak, float range, Weight weight) {
    constexpr int32_t kBins = 256;
    const float scale = kBins / range;
    for (size_t i = 0; i < count_; ++i) {  // a greater logit never has a greater bin; NaN (range 0 or inf) has the last
        const float place = (peak - logits_[i]) * scale;
        bins_[i] = static_cast<int32_t>(place < kBins - 1 ? place : kBins - 1);
    }
    double mass[kBins] = {};
    for (size_t i = 0; i < count_; ++i) mass[bins_[i]] += weight(i);
    double before = 0.0;
    int32_t crossing = 0;
    while (crossing < kBins - 1 && before + mass[crossing] < limit) before += mass[crossing++];
    candidates_.clear();
    for (size_t i = 0; i < count_; ++i) {
        if (bins_[i] == crossing) candidates_.push_back({logits_[i], ids_[i], weight(i)});
    }
    const Candidate last = cut_within(candidates_, before, limit);
    return {last, before};
}

}  // namespace trtdecode
