// Before and behind the array in the weight gradient, combined^T @ output_gradient, and below it the bias gradient as
// one more row, for which a value of 1 stands in the place of combined's. All rows of a layer stream through the array
// once for each tile.
#pragma once

#include "design.hpp"
#include "systolic.hpp"

namespace hyrt {

template <class D>
struct GradientShape {
    static constexpr int LEFT_WORDS =
        D::MAC_ROWS > LANES ? D::MAC_ROWS / LANES : 1;  // of a row of combined that a tile takes
};

// Blocks of PES rows: the tile's words of combined, then the words of the output's gradient, one word a bank at a time.
template <class D>
void read_block_words(const typename D::Sums &sums, Layer layer, Tiles at, hls::stream<Packet<D>> &packets) {
    constexpr int LEFT_WORDS = GradientShape<D>::LEFT_WORDS;
    const int blocks = ceil_div(layer.rows, D::PES), left_packets = LEFT_WORDS * layer.parts;
    for (int tile = at.first; tile < at.first + at.tiles; tile++) {
        for (int block = 0; block < blocks; block++) {
            for (int x = 0; x < left_packets + D::COL_WORDS; x++) {
#pragma HLS PIPELINE II = 1
                const bool is_left = x < left_packets;
                const int column =
                    is_left ? tile * D::MAC_ROWS / LANES + row_of(x, layer.parts) : at.first_word + x - left_packets;
                const int chunks = is_left ? layer.in_chunks : layer.out_chunks;
                const int chunk = column >= chunks ? column - chunks : column;  // of the second part
                const int block_of_bank = is_left ? block * layer.parts + part_of(x, layer.parts) : block;
                const int count = is_left ? layer.rows * layer.parts : layer.rows;
                const bool there = column < (is_left ? layer.parts * chunks : chunks);
                const int offset = is_left ? layer.combined : layer.output_gradient;
                Packet<D> packet;
                for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                    const bool valid = there && block_of_bank * D::PES + bank < count;
                    packet.word[bank] = valid ? sums[bank][offset + block_of_bank * chunks + chunk] : Word(0.0f);
                }
                packets.write(packet);
            }
        }
    }
}

// Turns blocks into rows, one a step; a block is filled while the one before leaves.
template <class D>
void spread(hls::stream<Packet<D>> &packets, Layer layer, Tiles at, hls::stream<Left<D>> &lefts,
            hls::stream<Right<D>> &rights) {
    constexpr int LEFT_WORDS = GradientShape<D>::LEFT_WORDS;
    Word left_words[2][D::PES][LEFT_WORDS];
    Word right_words[2][D::PES][D::COL_WORDS];
#pragma HLS array_partition variable = left_words dim = 0 type = complete
#pragma HLS array_partition variable = right_words dim = 0 type = complete
    const int depth = layer.parts * layer.in_chunks * LANES;
    const int left_packets = LEFT_WORDS * layer.parts, fills = left_packets + D::COL_WORDS;
    const int steps = fills > D::PES ? fills : D::PES;
    for (int tile = at.first; tile < at.first + at.tiles; tile++) {
        const int first_row = tile * D::MAC_ROWS;
        const int blocks = ceil_div(layer.rows, D::PES);
        for (int block = 0; block <= blocks; block++) {
            const int fill = block & 1, leave = 1 - fill;
            for (int step = 0; step < steps; step++) {
#pragma HLS PIPELINE II = 1
                if (block < blocks && step < fills) {
                    const Packet<D> packet = packets.read();
                    const int word = row_of(step, layer.parts);
                    // Which part of a row this word of combined is, and so which of the packet's rows are of that part.
                    const int part = first_row / LANES + word >= layer.in_chunks ? layer.parts - 1 : 0;
                    for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                        const int index = part_of(step, layer.parts) * D::PES + bank;
                        if (step >= left_packets)
                            right_words[fill][bank][step - left_packets] = packet.word[bank];
                        else if (part_of(index, layer.parts) == part)
                            left_words[fill][row_of(index, layer.parts)][word] = packet.word[bank];
                    }
                }
                if (block > 0 && step < D::PES) {
                    const bool valid = (block - 1) * D::PES + step < layer.rows;
                    Left<D> left;
                    for (int i = 0; i < D::MAC_ROWS; i++) {
#pragma HLS UNROLL
                        const int lane = D::MAC_ROWS >= LANES ? i % LANES : first_row % LANES + i;
                        const float value = left_words[leave][step][i / LANES][lane];
                        left.value[i] = first_row + i == depth && valid ? 1.0f : value;
                    }
                    lefts.write(left);
                    Right<D> right;
                    for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS UNROLL
                        right.word[w] = right_words[leave][step][w];
                    }
                    rights.write(right);
                }
            }
        }
    }
}

template <class D, class Gradients>
void write_gradient(hls::stream<Right<D>> &results, Layer layer, Tiles at, Gradients gradients) {
    const int depth = layer.parts * layer.in_chunks * LANES;
    for (int row = at.first * D::MAC_ROWS; row < (at.first + at.tiles) * D::MAC_ROWS; row++) {
        const Right<D> result = results.read();
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const int column = at.first_word + w;
            if (row <= depth && column < layer.out_chunks)
                gradients[layer.weights + row * layer.out_chunks + column] = result.word[w];
        }
    }
}

}  // namespace hyrt
