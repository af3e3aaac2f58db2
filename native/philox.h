// Philox4x32-10, as in backend/trtdecode/sampling/philox.py, which says what it is for.
#pragma once

#include <cstdint>

namespace trtdecode {

struct Words {
    uint32_t w[4];
};

inline Words philox4x32(Words counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = uint64_t{0xD2511F53u} * counter.w[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.w[2];
        counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.w[1] ^ key0, static_cast<uint32_t>(product1),
                    static_cast<uint32_t>(product0 >> 32) ^ counter.w[3] ^ key1, static_cast<uint32_t>(product0)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// The draw for one token: a multiple of 2^-53 in [0, 1).
inline double uniform(uint64_t seed, uint32_t sample_index, uint32_t position) {
    const Words words =
        philox4x32({{position, sample_index, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const uint64_t bits = (uint64_t{words.w[0]} >> 5) * 67108864u + (words.w[1] >> 6);
    return static_cast<double>(bits) / 9007199254740992.0;
}

}  // namespace trtdecode
