// Counter-based random generator, bit-identical to hyrt.runtime.rng, and its dropout masks: 16 random bits per column,
// four columns per 64-bit draw.
#pragma once

#include "design.hpp"

namespace hyrt {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ULL;

inline uint64_t mix64(uint64_t z) {
#pragma HLS INLINE
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

inline uint64_t vertex_stream(uint64_t key, int64_t vertex) {
#pragma HLS INLINE
    return mix64(key + ((uint64_t)vertex + 1) * GOLDEN);
}

// Apply dropout to chunk `chunk` of a vertex's row: zero or scale its elements.
inline Word drop(const Word &row, const Dropout &dropout, int64_t vertex, int chunk) {
#pragma HLS INLINE
    const uint64_t stream = vertex_stream(dropout.key, vertex);
    Word out;
    for (int quarter = 0; quarter < LANES / 4; quarter++) {
#pragma HLS UNROLL
        const uint64_t bits = mix64(stream + ((uint64_t)(chunk * (LANES / 4) + quarter) + 1) * GOLDEN);
        for (int lane = 0; lane < 4; lane++) {
#pragma HLS UNROLL
            const int draw = (int)(bits >> (16 * lane) & 0xFFFF);
            out[4 * quarter + lane] = draw >= dropout.threshold ? row[4 * quarter + lane] * dropout.scale : 0.0f;
        }
    }
    return out;
}

// Gradient of a layer's ReLU and dropout, in place. With a ReLU, the output itself shows which elements were retained
// (the positive ones); without one, the mask is generated again.
template <class D, class Vertices>
void mask(const Layer &layer, Vertices vertices, const typename D::Rows &rows, typename D::Sums &sums) {
    const bool has_dropout = layer.dropout.threshold > 0;
    if (layer.relu) {
        const float scale = has_dropout ? layer.dropout.scale : 1.0f;
        for (int i = 0; i < ceil_div(layer.rows, D::PES) * layer.out_chunks; i++) {
#pragma HLS PIPELINE II = 1
#pragma HLS dependence variable = sums type = inter false
            for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                const Word output = rows[bank][layer.output - D::ROW_BASE + i];
                Word gradient = sums[bank][layer.output_gradient + i];
                for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                    gradient[lane] = output[lane] > 0 ? gradient[lane] * scale : 0.0f;
                }
                sums[bank][layer.output_gradient + i] = gradient;
            }
        }
    } else if (has_dropout) {
        for (int row = 0; row < layer.rows; row++) {
            const int64_t vertex = vertices[row];
            for (int chunk = 0; chunk < layer.out_chunks; chunk++) {
#pragma HLS PIPELINE II = 1
#pragma HLS dependence variable = sums type = inter false
                const int address = layer.output_gradient + row / D::PES * layer.out_chunks + chunk;
                const Word gradient = sums[row % D::PES][address];
                sums[row % D::PES][address] = drop(gradient, layer.dropout, vertex, chunk);
            }
        }
    }
}

}  // namespace hyrt
