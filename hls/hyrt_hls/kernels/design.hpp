// Sizes of a build of the trainer, set by compiler macros, and the word and descriptor types that all kernels share.
#pragma once

#include <cstdint>

#include "dataflow.h"
#include "hls_stream.h"
#include "hls_vector.h"

#ifndef HYRT_PES
#define HYRT_PES 8  // n: scatter units, gather units, banks of the arena
#endif
#ifndef HYRT_MAC_ROWS
#define HYRT_MAC_ROWS 32  // m = rows * columns multiply-accumulates
#endif
#ifndef HYRT_MAC_COLS
#define HYRT_MAC_COLS 64
#endif
#ifndef HYRT_ARENA_WORDS
#define HYRT_ARENA_WORDS 32768  // words per bank
#endif
#ifndef HYRT_FIFO_DEPTH
#define HYRT_FIFO_DEPTH 32  // messages per queue of the network
#endif
#ifndef HYRT_ADDER_LATENCY
#define HYRT_ADDER_LATENCY 7  // cycles from reading a sum until the updated sum can be read
#endif
// Each multiply-accumulate unit interleaves this many partial sums (a power of two), so that it starts an addition in
// every cycle although an addition takes several cycles.
#define HYRT_PARTIAL_SUMS 8
// Number of messages, or steps of the array, that a dataflow region processes before it drains. Effectively unlimited
// in hardware; the sequential simulation buffers all words of a region in its streams.
#ifndef HYRT_REGION_WORDS
#define HYRT_REGION_WORDS (1 << 30)
#endif

namespace hyrt {

constexpr int LANES = 16;
constexpr int HEADER = 16;
constexpr int RECORD = 24;
constexpr int MAX_LAYERS = 8;
constexpr int MAX_CHUNKS = 512;
constexpr int PANEL_ROWS = 8192;
constexpr int FIFO_DEPTH = HYRT_FIFO_DEPTH;
constexpr int ADDER_LATENCY = HYRT_ADDER_LATENCY;
constexpr int REGION_WORDS = HYRT_REGION_WORDS;
constexpr int PARTIAL_SUMS = HYRT_PARTIAL_SUMS;

using Word = hls::vector<float, LANES>;

struct Edge {
    int source;
    int destination;
    float weight;
    int unused;
};

template <int Pes, int MacRows, int MacCols, int ArenaWords>
struct Design {
    static constexpr int PES = Pes;
    static constexpr int MAC_ROWS = MacRows;
    static constexpr int MAC_COLS = MacCols;
    static constexpr int COL_WORDS = MacCols / LANES;
    static constexpr int ROW_BASE = (int)((long)ArenaWords * 5 / 8);
    static constexpr int ROW_WORDS = ArenaWords - ROW_BASE;
    static_assert(Pes >= 1 && MacCols % LANES == 0 && MacRows % Pes == 0,
                  "whole words of columns, rows for every bank");
    static_assert(MacRows % LANES == 0 || LANES % MacRows == 0,
                  "rows of the array must divide words or be whole words");
    static_assert(ROW_BASE > 0 && ROW_WORDS > 0, "no arena");
    static_assert(ADDER_LATENCY >= 1 && FIFO_DEPTH >= 2, "no pipeline, no queue");

    using Sums = Word[Pes][ROW_BASE];   // accumulated by the gather units
    using Rows = Word[Pes][ROW_WORDS];  // read by the network
    using Panel = Word[COL_WORDS][PANEL_ROWS];
};

struct Dropout {
    int threshold;  // dropped values per 65536; 0 disables dropout
    float scale;
    uint64_t key;
};

struct Layer {
    int rows, parts, num_src, in_chunks, out_chunks;
    bool relu;
    Dropout dropout;
    int first_edge, num_edges, first_backward_edge, num_backward_edges;
    int weights;
    int combined, output, output_gradient, combined_gradient;
};

inline float float_of_bits(int bits) {
#pragma HLS INLINE
    union {
        int bits;
        float value;
    } value_bits;
    value_bits.bits = bits;
    return value_bits.value;
}

inline Dropout read_dropout(const int *words) {
#pragma HLS INLINE
    return {words[0], float_of_bits(words[1]), (uint32_t)words[2] | (uint64_t)(uint32_t)words[3] << 32};
}

// `task` holds the header and the records of the layers.
inline Layer read_layer(const int *task, int layer) {
    const int *r = task + HEADER + layer * RECORD;
    return {r[0],  r[1],  r[2],  r[3],  r[4],  r[5] != 0, read_dropout(r + 6), r[10], r[11], r[12],
            r[13], r[14], r[15], r[16], r[17], r[18]};
}

inline int ceil_div(int a, int b) {
#pragma HLS INLINE
    return (a + b - 1) / b;
}

}  // namespace hyrt
