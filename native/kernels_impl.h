// The bodies of kernels.h, in GCC's and clang's vectors. Compiled once for each instruction set: the including file
// says which, by its compiler flags, and names the namespace and the table. Standard templates are kept out: a copy of
// them compiled here could be the one that the linker keeps for all.

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace trtdecode {
namespace TRTDECODE_KERNELS {
namespace {

#if defined(__AVX2__)
#define TRTDECODE_BYTES 32
#else
#define TRTDECODE_BYTES 16
#endif
typedef float Floats __attribute__((vector_size(TRTDECODE_BYTES)));
typedef uint32_t Words __attribute__((vector_size(TRTDECODE_BYTES)));
constexpr size_t kLanes = TRTDECODE_BYTES / sizeof(float);

constexpr float kInf = std::numeric_limits<float>::infinity();

// The constants of sampling/weights.py.
constexpr int kWeightBits = 32;
constexpr float kMinX = -23.0f;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kPolynomial[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 0.5f};

// x + this - this rounds |x| < 2^22 to a whole number n, half to even; the lowest bits of the sum are n + kWeightBits.
constexpr float kRoundSigned = 12582912.0f + kWeightBits;  // 1.5 * 2^23 + 32

// A weight is rounded, and added to others exactly, in two parts: a multiple of 2^12, and a rest within +-2^11. Adding
// kHigh or kLow leaves each as a whole number in the float's low bits; kBlock of them fit into 32 bits.
constexpr int kLowBits = 12;
constexpr float kHigh = 34359738368.0f;  // 2^(23 + kLowBits), for 0 <= weight <= 2^32
constexpr float kLow = 12582912.0f;      // 1.5 * 2^23
constexpr uint32_t kBitsOfHigh = 0x51000000u, kBitsOfLow = 0x4B400000u;

// Weights below 2^23 need one part only.
constexpr float kSmallX = -6.25f;  // exp(kSmallX) * 2^32 < 2^23
constexpr float kSmall = 8388608.0f;
constexpr uint32_t kBitsOfSmall = 0x4B000000u;

inline Floats load(const float* source) {
    Floats value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

inline void store(float* target, Floats value) { std::memcpy(target, &value, sizeof value); }

inline Floats fill(float value) { return value - Floats{}; }

template <typename To, typename From>
inline To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline Floats max_of(Floats a, Floats b) {  // of NaN and b: b
#if defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
    return _mm_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

// Bit i: a[i] >= b[i].
inline uint32_t at_least(Floats a, Floats b) {
#if defined(__AVX2__)
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
#elif defined(__SSE2__)
    return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(a, b)));
#else
    uint32_t bits = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) bits |= (a[lane] >= b[lane] ? 1u : 0u) << lane;
    return bits;
#endif
}

// A block, or the last, partial one as a whole one, filled with -inf.
class Block {
  public:
    Block(const float* logits, size_t size, size_t begin) : data(logits + begin) {
        if (begin + kBlock <= size) return;
        for (size_t i = 0; i < kBlock; ++i) padded_[i] = begin + i < size ? logits[begin + i] : -kInf;
        data = padded_;
    }
    const float* data;

  private:
    float padded_[kBlock];
};

// So many vectors go through the long chain of operations side by side: alone, each would wait for itself.
constexpr size_t kAbreast = 4;
constexpr size_t kStride = kAbreast * kLanes;
static_assert(kBlock % kStride == 0 && kBlock <= 64);  // 64: `collect` keeps a bit for each
struct Group {
    Floats v[kAbreast];
};

// exp(x) * 2^32, not rounded yet, for x >= kMinX.
inline Group exp_of(const Group& x) {
    Group shifted, r, y;
    for (size_t i = 0; i < kAbreast; ++i) shifted.v[i] = x.v[i] * kLog2E + kRoundSigned;
    for (size_t i = 0; i < kAbreast; ++i) {
        const Floats n = shifted.v[i] - kRoundSigned;
        r.v[i] = x.v[i] - n * kLn2High;
        r.v[i] = r.v[i] - n * kLn2Low;
    }
    for (size_t i = 0; i < kAbreast; ++i) y.v[i] = fill(kPolynomial[0]);
    for (size_t c = 1; c < 6; ++c) {
        for (size_t i = 0; i < kAbreast; ++i) y.v[i] = y.v[i] * r.v[i] + kPolynomial[c];
    }
    for (size_t i = 0; i < kAbreast; ++i) y.v[i] = y.v[i] * (r.v[i] * r.v[i]) + r.v[i] + 1.0f;
    for (size_t i = 0; i < kAbreast; ++i) {  // y * 2^(n + 32), exactly
        y.v[i] = bits_of<Floats>(bits_of<Words>(y.v[i]) + (bits_of<Words>(shifted.v[i]) << 23));
    }
    return y;
}

inline uint32_t sum_of(Words values) {
    typedef uint32_t Part __attribute__((vector_size(16)));
    Part parts[sizeof values / 16];
    std::memcpy(parts, &values, sizeof values);
    Part sum = parts[0];
    for (size_t i = 1; i < sizeof values / 16; ++i) sum += parts[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Rounds a block's weights and adds them up.
class ExactSum {
  public:
    // Adds round(weight), half to even, and returns it. Every step is exact but the additions of kHigh and kLow.
    Floats add(Floats weight) {
        const Floats high_bits = weight + kHigh;
        const Floats high = high_bits - kHigh;
        const Floats low_bits = (weight - high) + kLow;
        high_ += bits_of<Words>(high_bits);
        low_ += bits_of<Words>(low_bits);
        return high + (low_bits - kLow);
    }
    double total() const {
        constexpr uint32_t count = kBlock;
        const uint32_t high = sum_of(high_) - count * kBitsOfHigh;
        const auto low = static_cast<int32_t>(sum_of(low_) - count * kBitsOfLow);
        return static_cast<double>((static_cast<int64_t>(high) << kLowBits) + low);
    }

  private:
    Words high_{}, low_{};
};

// (logit - peak) / temperature, of which what is below `least` (if it says so) or kMinX becomes kMinX: weight 0.
template <bool kBounded>
inline Group scaled(const float* logits, Scale scale) {
    Group x;
    for (size_t i = 0; i < kAbreast; ++i) {
        x.v[i] = (load(logits + i * kLanes) - fill(scale.peak)) / fill(scale.temperature);
        if (kBounded) x.v[i] = x.v[i] < fill(scale.least) ? fill(kMinX) : x.v[i];
        x.v[i] = max_of(x.v[i], fill(kMinX));
    }
    return x;
}

// A block's weights, into `weights` unless that is null; returns their sum.
template <bool kBounded>
inline double weigh_block(const float* block, Scale scale, float* weights) {
    ExactSum sum;
#pragma GCC unroll 1
    for (size_t i = 0; i < kBlock; i += kStride) {
        const Group y = exp_of(scaled<kBounded>(block + i, scale));
        for (size_t j = 0; j < kAbreast; ++j) {
            const Floats weight = sum.add(y.v[j]);
            if (weights) store(weights + i + j * kLanes, weight);
        }
    }
    return sum.total();
}

// The sum of a block whose x are kSmallX at most, rounded to the low bits of floats: most blocks are of this kind.
inline double sum_small_block(const float* block, Scale scale) {
    Words sums{};
#pragma GCC unroll 1
    for (size_t i = 0; i < kBlock; i += kStride) {
        const Group y = exp_of(scaled<false>(block + i, scale));
        for (const Floats& v : y.v) sums += bits_of<Words>(v + kSmall);
    }
    return sum_of(sums) - static_cast<uint32_t>(kBlock) * kBitsOfSmall;
}

inline float greatest_of(Floats values) {
    float lanes[kLanes];
    store(lanes, values);
    float greatest = lanes[0];
    for (size_t lane = 1; lane < kLanes; ++lane) greatest = lanes[lane] > greatest ? lanes[lane] : greatest;
    return greatest;
}

float block_peaks(const float* logits, size_t size, float* peaks) {
    Floats greatest = fill(-kInf);
    Words bad{};
    for (size_t begin = 0; begin < size; begin += kBlock) {
        const Block block(logits, size, begin);
        Floats peak = fill(-kInf);
        for (size_t i = 0; i < kBlock; i += kLanes) {
            const Floats value = load(block.data + i);
            bad |= bits_of<Words>(value != value);
            peak = max_of(value, peak);
        }
        greatest = max_of(peak, greatest);
        peaks[begin / kBlock] = greatest_of(peak);
    }
    return sum_of(bad & 1u) > 0 ? kInf : greatest_of(greatest);
}

// Brings a block into the cache.
inline void fetch(const float* block) {
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = 0; i < kBlock; i += kLine) __builtin_prefetch(block + i, 0, 2);
}

double block_sums(const float* logits, size_t size, const float* peaks, Scale scale, double* sums, const float* next) {
    const bool bounded = scale.least > kMinX;
    const float lower = bounded ? scale.least : kMinX;
    double total = 0.0;
    for (size_t begin = 0; begin < size; begin += kBlock) {
        const float best = (peaks[begin / kBlock] - scale.peak) / scale.temperature;
        if (next && begin + kBlock <= size) fetch(next + begin);
        double sum = 0.0;
        if (best >= lower) {
            const Block block(logits, size, begin);
            sum = bounded            ? weigh_block<true>(block.data, scale, nullptr)
                  : best <= kSmallX ? sum_small_block(block.data, scale)
                                    : weigh_block<false>(block.data, scale, nullptr);
        }
        sums[begin / kBlock] = sum;
        total += sum;
    }
    return total;
}

double weigh(const float* logits, size_t size, Scale scale, float* weights) {
    double total = 0.0;
    for (size_t begin = 0; begin < size; begin += kBlock) {
        const Block block(logits, size, begin);
        float found[kBlock];
        total += weigh_block<true>(block.data, scale, found);
        const size_t count = size - begin < kBlock ? size - begin : kBlock;
        std::memcpy(weights + begin, found, count * sizeof *weights);
    }
    return total;
}

size_t collect(const float* logits, size_t size, const float* peaks, float least, float* found, int32_t* places) {
    size_t count = 0;
    const Floats limit = fill(least);
    for (size_t begin = 0; begin < size; begin += kBlock) {
        if (!(peaks[begin / kBlock] >= least)) continue;
        const Block block(logits, size, begin);
        uint64_t bits = 0;  // of the whole block at once: one unpredictable loop instead of one a vector
        for (size_t i = 0; i < kBlock; i += kLanes) bits |= uint64_t{at_least(load(block.data + i), limit)} << i;
        for (; bits; bits &= bits - 1) {
            const auto place = static_cast<size_t>(__builtin_ctzll(bits));
            found[count] = block.data[place];
            places[count++] = static_cast<int32_t>(begin + place);
        }
    }
    return count;
}

size_t count_greater(const float* logits, size_t size, const float* peaks, float value) {
    Words counts{};
    const Floats limit = fill(value);
    for (size_t begin = 0; begin < size; begin += kBlock) {
        if (!(peaks[begin / kBlock] > value)) continue;
        const Block block(logits, size, begin);
        for (size_t i = 0; i < kBlock; i += kLanes) counts -= bits_of<Words>(load(block.data + i) > limit);
    }
    return sum_of(counts);
}

void copy_masked(const float* logits, size_t size, const uint32_t* mask, size_t num_words, float* target) {
    constexpr size_t kBits = 32;
    for (size_t begin = 0; begin < size; begin += kBits) {
        const uint32_t word = begin / kBits < num_words ? mask[begin / kBits] : 0;
        const size_t count = size - begin < kBits ? size - begin : kBits;
        if (count == kBits) {  // a constant count, for the vectoriser
            for (uint32_t i = 0; i < kBits; ++i) target[begin + i] = (word >> i & 1u) ? logits[begin + i] : -kInf;
        } else {
            for (uint32_t i = 0; i < count; ++i) target[begin + i] = (word >> i & 1u) ? logits[begin + i] : -kInf;
        }
    }
}

}  // namespace

extern const Kernels kTable;
const Kernels kTable{TRTDECODE_KERNELS_NAME, block_peaks, block_sums, weigh, collect, count_greater, copy_masked};

}  // namespace TRTDECODE_KERNELS
}  // namespace trtdecode
