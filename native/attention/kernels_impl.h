// The bodies of attention.h, compiled once for each instruction set (see native/kernels_impl.h for the pattern).
// No standard templates here: the linker would keep one copy for all.

#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "attention.h"

namespace trtdecode {
namespace TRTDECODE_KERNELS {
namespace {

#if defined(__AVX512F__)
#define TRTDECODE_LANES 16
constexpr size_t kMaxRows = 6;
#elif defined(__AVX2__)
#define TRTDECODE_LANES 8
constexpr size_t kMaxRows = 3;  // 3 rows x 32 keys of sums, 3 queries and a key: 16 registers
#else
#define TRTDECODE_LANES 4
constexpr size_t kMaxRows = 1;
#endif
constexpr size_t kLanes = TRTDECODE_LANES;
constexpr size_t kBlockVectors = kBlockSize / kLanes;
typedef float Floats __attribute__((vector_size(4 * TRTDECODE_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * TRTDECODE_LANES)));

constexpr float kInf = __builtin_inff();

inline Floats load(const float* source) {
    Floats value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

// GCC 12 turns __builtin_convertvector between 8 and 32 bits into a loop over lanes, hence the intrinsics.
inline Floats load(const uint8_t* source) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source))));
#else
    Floats value;
    for (size_t lane = 0; lane < kLanes; ++lane) value[lane] = source[lane];
    return value;
#endif
}

// Writes numbers of 0 to 255, cut to whole ones.
inline void store(uint8_t* target, Floats value) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(value)));
#else
    for (size_t lane = 0; lane < kLanes; ++lane) target[lane] = static_cast<uint8_t>(static_cast<int32_t>(value[lane]));
#endif
}

inline void store(float* target, Floats value) { std::memcpy(target, &value, sizeof value); }

inline Floats fill(float value) { return value - Floats{}; }

inline float sum_of(Floats values) {
    float sum = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
    return sum;
}

// exp(x) for x <= 0, within 2 ulp; 0 below -87. The reduction and the polynomial are Cephes' expf. NaN stays NaN.
inline Floats exp_of(Floats x) {
    const Floats least = fill(-87.0f);
    const Ints is_small = x < least;
    const Floats clamped = is_small ? least : x;
    const Floats magic = fill(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats n = (clamped * 1.44269504f + magic) - magic;
    const Floats r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
    Floats power;
    std::memcpy(&power, &exponent, sizeof power);
    const Floats result = p * power;
    return is_small ? Floats{} : result;
}

// The keys or values of a block and head; T is float or uint8_t.
template <typename T>
struct Block {
    T* codes;
    size_t dim;
    float* scales() const { return reinterpret_cast<float*>(codes + kBlockSize * dim); }  // u8 only
    float* zeros() const { return scales() + kBlockSize; }
};

enum Part { kKeys, kValues };

template <typename T>
inline Block<T> block_of(const AttentionSpec& spec, const AttentionStep& step, Part part, int32_t index,
                         size_t kv_head) {
    const size_t place = (static_cast<size_t>(index) * spec.num_kv_heads + kv_head) * 2 + part;
    auto* bytes = static_cast<uint8_t*>(step.cache) + place * cache_bytes(spec, sizeof(T) == 1);
    return {reinterpret_cast<T*>(bytes), static_cast<size_t>(spec.head_dim)};
}

// Asks for the memory of a block: reading it when it is needed would take most of a decode step's time.
template <typename T>
inline void prefetch(const AttentionSpec& spec, Block<T> block) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(block.codes);
    for (size_t at = 0; at < cache_bytes(spec, sizeof(T) == 1); at += 64) __builtin_prefetch(bytes + at);
}

// target = source rotated by the token's angles, the rest as it is.
inline void rotate(const AttentionSpec& spec, const float* source, const float* angles, float* target) {
    const size_t rotated = spec.rotary_dim, half = rotated / 2;
    const float *cos = angles, *sin = angles + half;
    std::memcpy(target + rotated, source + rotated, (spec.head_dim - rotated) * sizeof(float));
    size_t i = 0;
    for (; !spec.interleaved && i + kLanes <= half; i += kLanes) {
        const Floats a = load(source + i), b = load(source + half + i), c = load(cos + i), s = load(sin + i);
        store(target + i, a * c - b * s);
        store(target + half + i, b * c + a * s);
    }
    const size_t apart = spec.interleaved ? 1 : half, step = spec.interleaved ? 2 : 1;
    for (; i < half; ++i) {
        const float a = source[i * step], b = source[i * step + apart];
        target[i * step] = a * cos[i] - b * sin[i];
        target[i * step + apart] = b * cos[i] + a * sin[i];
    }
}

// Stores one head of the token in `slot` of its block.
inline void put(Block<float> block, Part part, size_t slot, const float* source) {
    if (part == kValues)
        std::memcpy(block.codes + slot * block.dim, source, block.dim * sizeof(float));
    else
        for (size_t i = 0; i < block.dim; ++i) block.codes[i * kBlockSize + slot] = source[i];
}

inline void put(Block<uint8_t> block, Part part, size_t slot, const float* source) {
    const size_t dim = block.dim, vectors = dim / kLanes * kLanes;
    float least = source[0], greatest = source[0], check = 0;
    if (vectors) {
        Floats leasts = load(source), greatests = leasts, checks = {};
        for (size_t i = 0; i < vectors; i += kLanes) {
            const Floats numbers = load(source + i);
            leasts = numbers < leasts ? numbers : leasts;
            greatests = numbers > greatests ? numbers : greatests;
            checks += numbers * 0.0f;  // NaN where a number is not finite: it becomes the zero, so that it shows
        }
        for (size_t lane = 0; lane < kLanes; ++lane) {
            least = leasts[lane] < least ? leasts[lane] : least;
            greatest = greatests[lane] > greatest ? greatests[lane] : greatest;
        }
        check = sum_of(checks);
    }
    for (size_t i = vectors; i < dim; ++i) {
        least = source[i] < least ? source[i] : least;
        greatest = source[i] > greatest ? source[i] : greatest;
        check += source[i] * 0.0f;
    }
    const float scale = (greatest - least) / 255.0f;
    const bool has_codes = check == 0 && scale > 0;
    const float inverse = has_codes ? 1.0f / scale : 0.0f;
    block.scales()[slot] = has_codes ? scale : 0.0f;
    block.zeros()[slot] = check == 0 ? least : check;
    uint8_t* target = block.codes + (part == kValues ? slot * dim : slot);
    const size_t stride = part == kValues ? 1 : kBlockSize;
    if (!has_codes) {
        for (size_t i = 0; i < dim; ++i) target[i * stride] = 0;
        return;
    }
    for (size_t i = 0; i < vectors; i += kLanes) {
        const Floats numbers = (load(source + i) - fill(least)) * inverse + 0.5f;
        uint8_t codes[kLanes];
        store(part == kValues ? target + i : codes, numbers);
        for (size_t lane = 0; part == kKeys && lane < kLanes; ++lane) target[(i + lane) * kBlockSize] = codes[lane];
    }
    for (size_t i = vectors; i < dim; ++i)
        target[i * stride] = static_cast<uint8_t>(static_cast<int32_t>((source[i] - least) * inverse + 0.5f));
}

template <typename T>
void write_as(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, float* scratch) {
    const size_t dim = spec.head_dim, first = step.query_begins[task.sequence];
    const int32_t* table = step.block_indices + step.block_begins[task.sequence];
    for (size_t token = task.begin; token < task.end; ++token) {
        const size_t position = step.past_lens[task.sequence] + token - first, slot = position % kBlockSize;
        const int32_t index = table[position / kBlockSize];
        const float* key = step.k[token] + spec.k_begin + task.kv_head * dim;
        if (spec.rotary_dim) {
            rotate(spec, key, step.angles[token], scratch);
            key = scratch;
        }
        const float* value = step.v[token] + spec.v_begin + task.kv_head * dim;
        put(block_of<T>(spec, step, kKeys, index, task.kv_head), kKeys, slot, key);
        put(block_of<T>(spec, step, kValues, index, task.kv_head), kValues, slot, value);
    }
}

// A query row of a tile, and what has been summed up for it.
struct Row {
    const float* query;  // [head_dim] rotated and scaled
    float* weights;      // [kChunk] scores, then their exponentials
    float* sums;         // [head_dim] of weight * value (u8: weight * scale * code)
    float query_sum;     // of `query`: what a key's zero is multiplied with
    float peak, total;   // greatest score so far; sum of weights
    Floats zero_sums;    // of weight * value's zero
    size_t begin, end;   // positions of the keys that it sees
    float slope;         // ALiBi's
    float* out;          // [head_dim]
};

// weights[place ..] of R rows = query * key, for all keys of a block.
template <size_t R, typename T>
inline void score(Block<T> keys, Row* rows, size_t place) {
    Floats sums[R][kBlockVectors] = {};
    const T* key = keys.codes;
    for (size_t i = 0; i < keys.dim; ++i, key += kBlockSize) {
        Floats query[R];
        for (size_t r = 0; r < R; ++r) query[r] = fill(rows[r].query[i]);
        for (size_t v = 0; v < kBlockVectors; ++v) {
            const Floats numbers = load(key + v * kLanes);
            for (size_t r = 0; r < R; ++r) sums[r][v] += query[r] * numbers;
        }
    }
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < kBlockVectors; ++v) {
            Floats value = sums[r][v];
            if constexpr (sizeof(T) == 1)
                value = value * load(keys.scales() + v * kLanes) +
                        fill(rows[r].query_sum) * load(keys.zeros() + v * kLanes);
            store(rows[r].weights + place + v * kLanes, value);
        }
}

// sums[column ..] of R rows += weight * value for `count` tokens, in V vectors.
template <size_t R, size_t V, typename T>
inline void add_columns(Row* rows, const float* const* weights, const T* values, size_t dim, size_t count,
                        size_t column) {
    Floats sums[R][V];
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) sums[r][v] = load(rows[r].sums + column + v * kLanes);
    for (size_t token = 0; token < count; ++token) {
        const T* value = values + token * dim + column;
        Floats weight[R];
        for (size_t r = 0; r < R; ++r) weight[r] = fill(weights[r][token]);
        for (size_t v = 0; v < V; ++v) {
            const Floats numbers = load(value + v * kLanes);
            for (size_t r = 0; r < R; ++r) sums[r][v] += weight[r] * numbers;
        }
    }
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) store(rows[r].sums + column + v * kLanes, sums[r][v]);
}

// What the tokens [begin, end) of a block add to R rows. Others are not read: their slots may hold anything.
template <size_t R, typename T>
inline void add_values(Block<T> values, Row* rows, size_t place, size_t begin, size_t end) {
    float scaled[R][kBlockSize];
    const float* weights[R];
    for (size_t r = 0; r < R; ++r) {
        weights[r] = rows[r].weights + place;
        if constexpr (sizeof(T) == 1) {
            for (size_t v = 0; v < kBlockVectors; ++v) {
                const Floats weight = load(weights[r] + v * kLanes);
                store(scaled[r] + v * kLanes, weight * load(values.scales() + v * kLanes));
                rows[r].zero_sums += weight > 0 ? weight * load(values.zeros() + v * kLanes) : Floats{};
            }
            weights[r] = scaled[r];
        }
        weights[r] += begin;
    }
    const size_t dim = values.dim, count = end - begin;
    const T* codes = values.codes + begin * dim;
    size_t column = 0;
    for (; column + kBlockVectors * kLanes <= dim; column += kBlockVectors * kLanes)
        add_columns<R, kBlockVectors>(rows, weights, codes, dim, count, column);
    for (; column + kLanes <= dim; column += kLanes) add_columns<R, 1>(rows, weights, codes, dim, count, column);
    for (; column < dim; ++column)
        for (size_t r = 0; r < R; ++r)
            for (size_t token = 0; token < count; ++token)
                rows[r].sums[column] += weights[r][token] * static_cast<float>(codes[token * dim + column]);
}

// The scores of the keys [chunk, end) become weights; what was summed up before follows a new peak.
inline void weigh(const AttentionSpec& spec, Row& row, size_t chunk, size_t end) {
    const size_t padded = (end - chunk + kBlockSize - 1) / kBlockSize * kBlockSize;
    const size_t last = row.end < end ? row.end - chunk : end - chunk;
    const size_t first = row.begin > chunk ? row.begin - chunk : 0;
    float* weights = row.weights;
    if (row.end <= chunk || first >= last) {  // sees none of them
        std::memset(weights, 0, padded * sizeof(float));
        return;
    }
    if (spec.softcap > 0)
        for (size_t key = first; key < last; ++key) weights[key] = spec.softcap * std::tanh(weights[key] / spec.softcap);
    if (row.slope != 0)
        for (size_t key = first; key < last; ++key)
            weights[key] -= row.slope * static_cast<float>(row.end - 1 - chunk - key);
    for (size_t key = 0; key < first; ++key) weights[key] = -kInf;
    for (size_t key = last; key < padded; ++key) weights[key] = -kInf;
    Floats peaks = fill(row.peak);
    for (size_t key = 0; key < padded; key += kLanes) {
        const Floats scores = load(weights + key);
        peaks = scores > peaks ? scores : peaks;
    }
    float peak = row.peak;
    for (size_t lane = 0; lane < kLanes; ++lane) peak = peaks[lane] > peak ? peaks[lane] : peak;
    if (peak > row.peak && row.total > 0) {
        const float factor = exp_of(fill(row.peak - peak))[0];
        row.total *= factor;
        row.zero_sums *= fill(factor);
        for (size_t i = 0; i < static_cast<size_t>(spec.head_dim); ++i) row.sums[i] *= factor;
    }
    row.peak = peak;
    Floats totals = {};
    for (size_t key = 0; key < padded; key += kLanes) {
        const Floats weight = exp_of(load(weights + key) - fill(peak));
        totals += weight;
        store(weights + key, weight);
    }
    row.total += sum_of(totals);
}

template <size_t R, typename T>
void attend_rows(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, Row* rows) {
    size_t begin = rows[0].begin, end = rows[0].end;
    for (size_t r = 1; r < R; ++r) {
        begin = rows[r].begin < begin ? rows[r].begin : begin;
        end = rows[r].end > end ? rows[r].end : end;
    }
    const int32_t* table = step.block_indices + step.block_begins[task.sequence];
    for (size_t chunk = begin / kChunk * kChunk; chunk < end; chunk += kChunk) {
        const size_t chunk_end = chunk + kChunk < end ? chunk + kChunk : end;
        const size_t first = begin > chunk ? begin / kBlockSize * kBlockSize : chunk;
        for (size_t key = first; key < chunk_end; key += kBlockSize) {
            const int32_t* index = table + key / kBlockSize;
            prefetch(spec, block_of<T>(spec, step, kValues, *index, task.kv_head));
            if (key + kBlockSize < chunk_end) prefetch(spec, block_of<T>(spec, step, kKeys, index[1], task.kv_head));
            score<R>(block_of<T>(spec, step, kKeys, *index, task.kv_head), rows, key - chunk);
        }
        for (size_t r = 0; r < R; ++r) weigh(spec, rows[r], chunk, chunk_end);
        for (size_t key = first; key < chunk_end; key += kBlockSize)
            add_values<R>(block_of<T>(spec, step, kValues, table[key / kBlockSize], task.kv_head), rows, key - chunk,
                          begin > key ? begin - key : 0,
                          chunk_end - key < kBlockSize ? chunk_end - key : kBlockSize);
    }
    for (size_t r = 0; r < R; ++r) {
        const float zero_sum = sum_of(rows[r].zero_sums), inverse = 1.0f / rows[r].total;
        for (size_t i = 0; i < static_cast<size_t>(spec.head_dim); ++i)
            rows[r].out[i] = (rows[r].sums[i] + zero_sum) * inverse;
    }
}

template <typename T>
void attend_group(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, Row* rows,
                  size_t num_rows) {
    switch (num_rows) {
#if TRTDECODE_LANES == 16
        case 6: return attend_rows<6, T>(spec, step, task, rows);
        case 5: return attend_rows<5, T>(spec, step, task, rows);
        case 4: return attend_rows<4, T>(spec, step, task, rows);
#endif
#if TRTDECODE_LANES >= 8
        case 3: return attend_rows<3, T>(spec, step, task, rows);
        case 2: return attend_rows<2, T>(spec, step, task, rows);
#endif
        default: return attend_rows<1, T>(spec, step, task, rows);
    }
}

// A row's query, made ready in `scratch` of scratch_floats(spec): its query, weights and sums lie one after another.
Row row_of(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, size_t token, size_t head,
           float* scratch) {
    const size_t dim = spec.head_dim;
    Row row{};
    float* query = scratch;
    const float* source = step.q[token] + spec.q_begin + head * dim;
    if (spec.rotary_dim)
        rotate(spec, source, step.angles[token], query);
    else
        std::memcpy(query, source, dim * sizeof(float));
    size_t i = 0;
    Floats sums = {};
    for (; i + kLanes <= dim; i += kLanes) {
        const Floats numbers = load(query + i) * spec.scale;
        store(query + i, numbers);
        sums += numbers;
    }
    row.query_sum = sum_of(sums);
    for (; i < dim; ++i) row.query_sum += query[i] *= spec.scale;
    row.query = query;
    row.weights = query + dim;
    row.sums = row.weights + kChunk;
    std::memset(row.sums, 0, dim * sizeof(float));
    row.peak = -kInf;
    row.end = step.past_lens[task.sequence] + token - step.query_begins[task.sequence] + 1;
    const size_t window = spec.sliding_window;
    row.begin = window && row.end > window ? row.end - window : 0;
    row.slope = spec.alibi_slopes.empty() ? 0.0f : spec.alibi_slopes[head];
    row.out = step.out + (token * spec.num_heads + head) * dim;
    return row;
}

template <typename T>
void attend_as(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, float* scratch) {
    const size_t group = spec.group(), num_rows = (task.end - task.begin) * group;
    const size_t num_groups = (num_rows + kMaxRows - 1) / kMaxRows;
    for (size_t index = 0; index < num_groups; ++index) {  // of nearly one size
        const size_t begin = num_rows * index / num_groups, end = num_rows * (index + 1) / num_groups;
        Row rows[kMaxRows] = {};
        for (size_t place = begin; place < end; ++place)
            rows[place - begin] = row_of(spec, step, task, task.begin + place / group,
                                         task.kv_head * group + place % group,
                                         scratch + (place - begin) * (kChunk + 2 * spec.head_dim));
        attend_group<T>(spec, step, task, rows, end - begin);
    }
}

void run(const AttentionSpec& spec, const AttentionStep& step, const AttentionTask& task, float* scratch) {
    if (task.writes) step.u8 ? write_as<uint8_t>(spec, step, task, scratch) : write_as<float>(spec, step, task, scratch);
    if (task.attends)
        step.u8 ? attend_as<uint8_t>(spec, step, task, scratch) : attend_as<float>(spec, step, task, scratch);
}

}  // namespace

extern const AttentionKernels kernels;
const AttentionKernels kernels = {TRTDECODE_KERNELS_NAME, run};

}  // namespace TRTDECODE_KERNELS
}  // namespace trtdecode
