// Feature rows whose values take fewer bytes than float32. The port stays as wide as a word, so a word of memory brings
// two chunks of a row, or four, which are taken apart here. Scales of int8 are in the weights of the first layer's edges.
#pragma once

#include "design.hpp"

namespace hyrt {

// What the values of feature rows are in memory: ROW_CODES of hyrt_hls/task/layout.py.
enum class Codes { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3 };

// Chunks of a row that a word of memory brings.
inline int chunks_of_word(Codes codes) {
#pragma HLS INLINE
    return codes == Codes::FLOAT32 ? 1 : codes == Codes::INT8 ? 4 : 2;
}

inline uint32_t bits_of_float(float value) {
#pragma HLS INLINE
    union {
        float value;
        uint32_t bits;
    } both;
    both.value = value;
    return both.bits;
}

// The smallest halves are multiplied, not shifted: hardware takes floats below the normal ones for zero.
inline float value_of_half(uint32_t half) {
#pragma HLS INLINE
    const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    if (exponent == 0) {
        const float size = (float)(int)fraction * 5.9604644775390625e-8f;
        return sign ? -size : size;
    }
    return float_of_bits((int)(sign | (exponent + 112) << 23 | fraction << 13));
}

// Chunk `part` of those that a word of memory holds, lowest bytes first.
inline Word widened(const Word &packed, Codes codes, int part) {
#pragma HLS INLINE
    Word out;
    for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
        const uint32_t byte_bits = bits_of_float(packed[part % 4 * 4 + lane / 4]);
        const uint32_t half_bits = bits_of_float(packed[part % 2 * 8 + lane / 2]);
        const uint32_t half = half_bits >> 16 * (lane % 2) & 0xFFFF;
        if (codes == Codes::INT8)
            out[lane] = (float)(int8_t)(byte_bits >> 8 * (lane % 4) & 0xFF);
        else if (codes == Codes::BFLOAT16)
            out[lane] = float_of_bits((int)(half << 16));
        else if (codes == Codes::FLOAT16)
            out[lane] = value_of_half(half);
        else
            out[lane] = packed[lane];
    }
    return out;
}

}  // namespace hyrt
