#include "kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// GCC and clang can compile a function several times and choose by CPU at load (ifunc, so glibc only).
#if defined(__x86_64__) && defined(__GLIBC__)
#define TRTDECODE_MULTIVERSION __attribute__((target_clones("avx2", "default")))
#else
#define TRTDECODE_MULTIVERSION
#endif

#define TRTDECODE_INLINE inline __attribute__((always_inline))

namespace trtdecode {
namespace {

// Eight lanes; on a machine without AVX2 the compiler splits them.
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
constexpr size_t kLanes = 8;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The constants of sampling/weights.py.
constexpr float kMinX = -23.0f;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kPolynomial[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 0.5f};
constexpr int32_t kWeightBits = 32;
constexpr float kRoundSigned = 12582912.0f;  // 1.5 * 2^23: x + it - it rounds |x| < 2^22 to a whole number, half to even
constexpr float kRoundPositive = 8388608.0f;  // 2^23: the same for 0 <= x < 2^23; floats beyond are whole already

TRTDECODE_INLINE Floats load(const float* source) {
    Floats value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

TRTDECODE_INLINE void store(float* target, Floats value) { std::memcpy(target, &value, sizeof value); }

TRTDECODE_INLINE Floats fill(float value) { return value - Floats{}; }

TRTDECODE_INLINE Floats weights_of(Floats x, float least) {
    const Floats clamped = x < kMinX ? fill(kMinX) : x;
    const Floats n = (clamped * kLog2E + kRoundSigned) - kRoundSigned;
    Floats r = clamped - n * kLn2High;
    r = r - n * kLn2Low;
    Floats p = fill(kPolynomial[0]);
    for (int i = 1; i < 6; ++i) p = p * r + kPolynomial[i];
    const Floats y = p * (r * r) + r + 1.0f;
    const Ints exponent = (__builtin_convertvector(n, Ints) + (kWeightBits + 127)) << 23;
    Floats power;
    std::memcpy(&power, &exponent, sizeof power);
    const Floats scaled = y * power;  // exact: a power of two
    const Floats rounded = (scaled + kRoundPositive) - kRoundPositive;
    const Floats weight = scaled < kRoundPositive ? rounded : scaled;
    return x < least ? Floats{} : weight;
}

// The last, partial block as a whole one, filled with -inf.
struct Tail {
    float values[kBlock];
    TRTDECODE_INLINE Tail(const float* logits, size_t count) {
        for (size_t i = 0; i < kBlock; ++i) values[i] = i < count ? logits[i] : -kInf;
    }
};

// Greatest of a block; `bad` collects lanes that held NaN or +inf.
TRTDECODE_INLINE float block_peak(const float* block, Ints& bad) {
    Floats peak = load(block);
    bad |= ~(peak < kInf);
    for (size_t i = kLanes; i < kBlock; i += kLanes) {
        const Floats value = load(block + i);
        bad |= ~(value < kInf);
        peak = value > peak ? value : peak;
    }
    float greatest = peak[0];
    for (size_t lane = 1; lane < kLanes; ++lane) greatest = peak[lane] > greatest ? peak[lane] : greatest;
    return greatest;
}

TRTDECODE_INLINE double weigh_block(const float* block, const Scale& scale, float* weights) {
    double sums[kLanes] = {};  // written so that it compiles to converting loads and vector adds
    for (size_t i = 0; i < kBlock; i += kLanes) {
        store(weights + i, weights_of((load(block + i) - scale.peak) / scale.temperature, scale.least));
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(weights[i + lane]);
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

TRTDECODE_MULTIVERSION bool block_peaks(const float* logits, size_t size, float* peaks) {
    Ints bad{};
    const size_t whole = size / kBlock;
    for (size_t block = 0; block < whole; ++block) peaks[block] = block_peak(logits + block * kBlock, bad);
    if (whole * kBlock < size) {
        const Tail tail(logits + whole * kBlock, size - whole * kBlock);
        peaks[whole] = block_peak(tail.values, bad);
    }
    int32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) any |= bad[lane];
    return any == 0;
}

TRTDECODE_MULTIVERSION double weigh(const float* logits, size_t size, const float* peaks, Scale scale, float* weights,
                                    double* sums) {
    double total = 0.0;
    for (size_t block = 0; block < num_blocks(size); ++block) {
        const size_t begin = block * kBlock;
        const float best = (peaks[block] - scale.peak) / scale.temperature;
        double sum = 0.0;
        if (best < kMinX || best < scale.least) {
            std::memset(weights + begin, 0, kBlock * sizeof *weights);
        } else if (begin + kBlock <= size) {
            sum = weigh_block(logits + begin, scale, weights + begin);
        } else {
            const Tail tail(logits + begin, size - begin);
            sum = weigh_block(tail.values, scale, weights + begin);
        }
        sums[block] = sum;
        total += sum;
    }
    return total;
}

TRTDECODE_MULTIVERSION void copy_masked(const float* logits, size_t size, const uint32_t* mask, size_t num_words,
                                        float* target) {
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

TRTDECODE_MULTIVERSION size_t count_greater(const float* logits, size_t size, float value) {
    uint32_t count = 0;
    for (size_t i = 0; i < size; ++i) count += logits[i] > value ? 1u : 0u;
    return count;
}

}  // namespace trtdecode
