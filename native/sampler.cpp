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

}  // namespace

int32_t Scratch::choose(const float* logits, size_t size, const Choice& choice, const Edits* edits,
                        uint32_t position) {
    Row row = view(logits, size);
    if (!finite_) return kNotFinite;
    float peak = *std::max_element(peaks_.begin(), peaks_.end());
    if (peak == -kInf) return kNotFinite;
    if (edits) {
        edit(logits, size, choice, *edits);
        row = view(edited_.data(), size);
        peak = *std::max_element(peaks_.begin(), peaks_.end());
        if (!finite_) return kNotFinite;
        if (peak == -kInf) return kNoTokenLeft;
    }
    if (choice.greedy) return first_greatest(row, peak);
    const double u = uniform(choice.seed, choice.sample_index, position);
    const bool limited = choice.top_k > 0 && static_cast<size_t>(choice.top_k) < size;
    return limited ? choose_among_leading(row, peak, choice, u) : choose_among_all(row, peak, choice, u);
}

Row Scratch::view(const float* logits, size_t size) {
    peaks_.resize(num_blocks(size));
    finite_ = block_peaks(logits, size, peaks_.data());
    return {logits, size, peaks_.data()};
}

double Scratch::weigh_row(const Row& row, Scale scale) {
    weights_.resize(num_blocks(row.size) * kBlock);
    sums_.resize(num_blocks(row.size));
    return weigh(row.logits, row.size, row.peaks, scale, weights_.data(), sums_.data());
}

void Scratch::edit(const float* logits, size_t size, const Choice& choice, const Edits& edits) {
    edited_.resize(size);
    if (edits.mask.size > 0) {  // first, because -inf stays -inf through everything below
        copy_masked(logits, size, edits.mask.data, edits.mask.size, edited_.data());
    } else {
        std::copy(logits, logits + size, edited_.begin());
    }
    for (size_t i = 0; i < edits.bias_ids.size; ++i) edited_[edits.bias_ids.data[i]] += edits.bias_values.data[i];
    for (size_t i = 0; i < edits.banned_ids.size; ++i) edited_[edits.banned_ids.data[i]] = -kInf;
    penalize(edited_, choice, edits);
}

int32_t Scratch::first_greatest(const Row& row, float peak) const {
    const size_t block = std::find(peaks_.begin(), peaks_.end(), peak) - peaks_.begin();
    const float* found = std::find(row.logits + block * kBlock, row.logits + row.size, peak);
    return static_cast<int32_t>(found - row.logits);
}

// With top-k the other stages need to look at k tokens only: min-p keeps the best ones too, so the order of the two
// does not matter.
int32_t Scratch::choose_among_leading(const Row& row, float peak, const Choice& choice, double u) {
    select_leading(row, static_cast<size_t>(choice.top_k), select_);
    auto& candidates = select_.candidates;
    const bool nucleus = choice.top_p < 1.0;
    if (nucleus) std::sort(candidates.begin(), candidates.end(), ranks_before);

    gathered_.resize(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) gathered_[i] = candidates[i].logit;
    double kept = weigh_row(view(gathered_.data(), gathered_.size()), {peak, choice.temperature, choice.least});
    size_t num_kept = candidates.size();
    if (nucleus) {
        const double limit = choice.top_p * kept;
        kept = 0.0;
        for (num_kept = 0; num_kept < candidates.size() && kept < limit; ++num_kept) kept += weights_[num_kept];
    }
    // The draw walks in id order; the weight goes along in place of the logit.
    for (size_t i = 0; i < num_kept; ++i) candidates[i].logit = weights_[i];
    std::sort(candidates.begin(), candidates.begin() + num_kept,
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    const double target = target_of(u, kept);
    double through = 0.0;
    size_t chosen = 0;
    while ((through += candidates[chosen].logit) <= target) ++chosen;
    return candidates[chosen].id;
}

int32_t Scratch::choose_among_all(const Row& row, float peak, const Choice& choice, double u) {
    const double total = weigh_row(row, {peak, choice.temperature, choice.least});
    double through = 0.0;
    if (choice.top_p >= 1.0) {
        const double target = target_of(u, total);
        size_t block = 0;
        while (through + sums_[block] <= target) through += sums_[block++];
        size_t i = block * kBlock;
        while ((through += weights_[i]) <= target) ++i;
        return static_cast<int32_t>(i);
    }
    const Cut cut = select_mass(row, weights_.data(), peak, choice.top_p * total, select_);
    const double target = target_of(u, cut.kept);
    for (size_t block = 0; block < num_blocks(row.size); ++block) {
        if (row.peaks[block] < cut.last.logit) continue;
        const size_t end = std::min((block + 1) * kBlock, row.size);
        for (size_t i = block * kBlock; i < end; ++i) {
            const Candidate candidate{row.logits[i], static_cast<int32_t>(i)};
            if (ranks_before(cut.last, candidate)) continue;
            through += weights_[i];
            if (through > target) return candidate.id;
        }
    }
    return cut.last.id;  // not reached: the kept weights sum to more than the target
}

Logprob Scratch::logprobs(const float* logits, size_t size, int32_t token_id, size_t num_top, int32_t* top_ids,
                          double* top_logprobs) {
    const Row row = view(logits, size);
    const float peak = *std::max_element(peaks_.begin(), peaks_.end());
    if (!finite_ || peak == -kInf) return {};
    const double log_sum = log_of_sum(weigh_row(row, {peak, 1.0f, -kInf}));
    const auto logprob = [&](float logit) { return static_cast<double>(logit) - static_cast<double>(peak) - log_sum; };

    std::fill(top_ids, top_ids + num_top, -1);
    if (num_top > 0) {
        select_leading(row, std::min(num_top, size), select_);
        std::sort(select_.candidates.begin(), select_.candidates.end(), ranks_before);
        for (size_t i = 0; i < select_.candidates.size(); ++i) {
            top_ids[i] = select_.candidates[i].id;
            top_logprobs[i] = logprob(select_.candidates[i].logit);
        }
    }
    const float chosen = logits[token_id];
    const size_t before = count_greater(logits, size, chosen) + std::count(logits, logits + token_id, chosen);
    return {logprob(chosen), static_cast<int32_t>(before + 1)};
}

}  // namespace trtdecode
