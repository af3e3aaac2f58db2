#include "attention.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace trtdecode {

#if defined(__x86_64__)
namespace attention_avx512 {
extern const AttentionKernels kernels;
}
namespace attention_avx2 {
extern const AttentionKernels kernels;
}
#endif
namespace attention_baseline {
extern const AttentionKernels kernels;
}

namespace {

constexpr size_t kTileRows = 48;      // query rows of a task of a prompt
constexpr size_t kAloneKeys = 1024;   // keys and KV heads that a thread reads sooner than another wakes up (10 us)

std::vector<const AttentionKernels*> runnable() {  // fastest first
    std::vector<const AttentionKernels*> found;
#if defined(__x86_64__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f")) found.push_back(&attention_avx512::kernels);
    if (has_avx2) found.push_back(&attention_avx2::kernels);
#endif
    found.push_back(&attention_baseline::kernels);
    return found;
}

std::atomic<const AttentionKernels*> picked{runnable().front()};

void run_all(const AttentionSpec& spec, const AttentionStep& step, const std::vector<AttentionTask>& tasks, bool alone) {
    const AttentionKernels& kernels = *picked;
    const auto run = [&](size_t index) {
        static thread_local std::vector<float> scratch;
        scratch.resize(std::max(scratch.size(), scratch_floats(spec)));
        kernels.run(spec, step, tasks[index], scratch.data());
    };
    if (alone)
        for (size_t index = 0; index < tasks.size(); ++index) run(index);
    else
        tbb::parallel_for(size_t{0}, tasks.size(), run);
}

}  // namespace

void paged_attention(const AttentionSpec& spec, const AttentionStep& step) {
    std::vector<AttentionTask> first, second;  // a prompt's queries wait until all of its keys are stored
    size_t num_keys = 0;
    const size_t num_heads = spec.num_kv_heads, tile = std::max<size_t>(1, kTileRows / spec.group());
    first.reserve(step.num_sequences * num_heads);
    for (size_t sequence = 0; sequence < step.num_sequences; ++sequence) {
        const size_t begin = step.query_begins[sequence], end = step.query_begins[sequence + 1];
        num_keys += (step.past_lens[sequence] + end - begin) * (end - begin) * num_heads;
        for (size_t head = 0; head < num_heads; ++head) {
            const bool is_decode = end - begin == 1;
            if (begin < end) first.push_back({sequence, head, begin, end, true, is_decode});
            for (size_t token = begin; token < end && !is_decode; token += tile)
                second.push_back({sequence, head, token, std::min(token + tile, end), false, true});
        }
    }
    const bool alone = num_keys <= kAloneKeys;
    run_all(spec, step, first, alone);
    if (!second.empty()) run_all(spec, step, second, alone);
}

}  // namespace trtdecode

const char* trtdecode_attention_kernels() { return trtdecode::picked.load()->name; }

int trtdecode_use_attention_kernels(const char* name) {
    for (const trtdecode::AttentionKernels* kernels : trtdecode::runnable()) {
        if (std::strcmp(name, kernels->name)) continue;
        trtdecode::picked = kernels;
        return 1;
    }
    return 0;
}
