// Quantized feature rows. The memory port is one word wide for every format, so a word from memory contains two or four
// chunks of a row, which are unpacked here. The int8 scales are folded into the edge weights of the first layer.
#pragma once

#include "design.hpp"

namespace hyrt {

// Format of feature rows in memory: ROW_CODES of hyrt_hls/task_layout.py.
enum class Codes { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3 };

// Number of row chunks per memory word.
inline int chunks_per_word(Codes codes) {
#pragma HLS INLINE
    return codes == Codes::FLOAT32 ? 1 : codes == Codes::INT8 ? 4 : 2;
}

inline uint32_t bits_of_float(float value) {
#pragma HLS INLINE
    union {
        float value;
        uint32_t bits;
    } value_bits;
    value_bits.value = value;
    return value_bits.bits;
}

// Subnormal halves are converted by a multiplication, not by shifting bits: hardware flushes subnormal floats to zero.
inline float half_to_float(uint32_t half) {
#pragma HLS INLINE
    const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    if (exponent == 0) {
        const float magnitude = (float)(int)fraction * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return float_of_bits((int)(sign | (exponent + 112) << 23 | fraction << 13));
}

// Chunk `part` of a memory word as float32; chunk 0 is in the lowest bytes.
inline Word unpack(const Word &packed, Codes codes, int part) {
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
            out[lane] = half_to_float(half);
        else
            out[lane] = packed[lane];
    }
    return out;
}

}  // namespace hyrt
