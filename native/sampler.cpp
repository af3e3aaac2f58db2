#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.h"
#include "philox.h"

namespace trtdecode {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kWeightOne = 4294967296.0;  // 2^32

void penalize(std::vector<float>& row, const Choice& choice, const Edits& edits) {
    for (size_t i = 0; i < edits.seen_ids.size; ++i) {
        float& logit = row[edits.seen_ids.data[i]];
        const int32_t count = edits.seen_counts.data[i];
        logit = logit > 0.0f ? logit / choice.repetition : logit * choice.repetition;
        logit = logit - choice.frequency * static_cast<float>(count);
        logit = logit - choice.presence * (count > 0 ? 1.0f : 0.0f);
    }
}

// The whole-numbered target of a draw in [0, total).
double target_of(double u, double total) { return std::min(std::floor(u * total), total - 1.0); }

double log_of_sum(double total) { return std::log(total / kWeightOne); }

// Where the weights, added to `through` one after the other, first exceed `target`, which they do.
size_t draw(const float* weights, double target, double through = 0.0) {
    size_t i = 0;
    while ((through += weights[i]) <= target) ++i;
    return i;
}

int32_t draw(const Selected& selected, double u) {
    return selected.ids[draw(selected.weights, target_of(u, selected.mass))];
}

int32_t first_greatest(const Row& row) {
    const size_t block = std::find(row.peaks, row.peaks + num_blocks(row.size), row.peak) - row.peaks;
    const float* found = std::find(row.logits + block * kBlock, row.logits + row.size, row.peak);
    return static_cast<int32_t>(found - row.logits);
}

}  // namespace

int32_t Scratch::choose(const float* logits, size_t size, const Choice& choice, const Edits* edits,
                        uint32_t position) {
    Row row = view(logits, size);
    if (!std::isfinite(row.peak)) return kNotFinite;
    if (edits) {
        edit(logits, size, choice, *edits);
        row = view(edited_.data(), size);
        if (row.peak == -kInf) return kNoTokenLeft;
        if (!std::isfinite(row.peak)) return kNotFinite;
    }
    if (choice.greedy) return first_greatest(row);
    const Scale scale{row.peak, choice.temperature, choice.least};
    const double u = uniform(choice.seed, choice.sample_index, position);
    // With top-k the other stages need to look at k tokens only: min-p keeps the best ones too, so the order of the two
    // does not matter.
    if (choice.top_k > 0 && static_cast<size_t>(choice.top_k) < size) {
        return draw(selector_.leading(row, scale, static_cast<size_t>(choice.top_k), choice.top_p), u);
    }
    const double total = sum_row(row, scale);
    if (choice.top_p < 1.0) return draw(selector_.nucleus(row, scale, sums_.data(), total, choice.top_p), u);
    return choose_among_all(row, scale, target_of(u, total));
}

Row Scratch::view(const float* logits, size_t size) {
    peaks_.resize(num_blocks(size));
    const float peak = kernels_.block_peaks(logits, size, peaks_.data());
    return {logits, size, peaks_.data(), peak};
}

double Scratch::sum_row(const Row& row, Scale scale) {
    sums_.resize(num_blocks(row.size));
    return kernels_.block_sums(row.logits, row.size, row.peaks, scale, sums_.data(), next_);
}

int32_t Scratch::choose_among_all(const Row& row, Scale scale, double target) {
    double through = 0.0;
    size_t block = 0;
    while (through + sums_[block] <= target) through += sums_[block++];
    const size_t begin = block * kBlock;
    float weights[kBlock];
    kernels_.weigh(row.logits + begin, std::min(kBlock, row.size - begin), scale, weights);
    return static_cast<int32_t>(begin + draw(weights, target, through));
}

void Scratch::edit(const float* logits, size_t size, const Choice& choice, const Edits& edits) {
    edited_.resize(size);
    if (edits.mask.size > 0) {  // first, because -inf stays -inf through everything below
        kernels_.copy_masked(logits, size, edits.mask.data, edits.mask.size, edited_.data());
    } else {
        std::copy(logits, logits + size, edited_.begin());
    }
    for (size_t i = 0; i < edits.bias_ids.size; ++i) edited_[edits.bias_ids.data[i]] += edits.bias_values.data[i];
    for (size_t i = 0; i < edits.banned_ids.size; ++i) edited_[edits.banned_ids.data[i]] = -kInf;
    penalize(edited_, choice, edits);
}

Logprob Scratch::logprobs(const float* logits, size_t size, int32_t token_id, size_t num_top, int32_t* top_ids,
                          double* top_logprobs) {
    const Row row = view(logits, size);
    if (!std::isfinite(row.peak)) return {};
    const double log_sum = log_of_sum(sum_row(row, {row.peak, 1.0f, -kInf}));
    const double peak = row.peak;
    const auto logprob = [&](float logit) { return static_cast<double>(logit) - peak - log_sum; };

    std::fill(top_ids, top_ids + num_top, -1);
    if (num_top > 0) {
        const auto& best = selector_.best(row, std::min(num_top, size));
        for (size_t i = 0; i < best.size(); ++i) {
            top_ids[i] = best[i].id;
            top_logprobs[i] = logprob(best[i].logit);
        }
    }
    return {logprob(logits[token_id]), static_cast<int32_t>(rank_of(row, static_cast<size_t>(token_id)))};
}

// From 1; of equal logits the lower id comes first.
size_t Scratch::rank_of(const Row& row, size_t id) const {
    const float logit = row.logits[id];
    size_t rank = 1 + kernels_.count_greater(row.logits, row.size, row.peaks, logit);
    for (size_t begin = 0; begin < id; begin += kBlock) {
        if (row.peaks[begin / kBlock] < logit) continue;
        rank += std::count(row.logits + begin, row.logits + std::min(begin + kBlock, id), logit);
    }
    return rank;
}

}  // namespace trtdecode
