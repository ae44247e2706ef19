// Stages before and after the array for the weight gradient, combined^T @ output_gradient. The bias gradient is an
// additional last row, for which the left operand is 1. All rows of a layer stream through the array once per tile.
#pragma once

#include "design.hpp"
#include "systolic.hpp"

namespace hyrt {

template <class D>
struct GradientShape {
    static constexpr int LEFT_WORDS =
        D::MAC_ROWS > LANES ? D::MAC_ROWS / LANES : 1;  // words of a row of combined per tile
};

// For each block of PES rows, the tile's words of combined and then the words of output_gradient; each packet has one
// word per bank.
template <class D>
void read_block_words(const typename D::Sums &sums, Layer layer, Tiles tiles, hls::stream<Packet<D>> &packets) {
    constexpr int LEFT_WORDS = GradientShape<D>::LEFT_WORDS;
    const int blocks = ceil_div(layer.rows, D::PES), left_packets = LEFT_WORDS * layer.parts;
    for (int tile = tiles.first; tile < tiles.first + tiles.count; tile++) {
        for (int block = 0; block < blocks; block++) {
            for (int x = 0; x < left_packets + D::COL_WORDS; x++) {
#pragma HLS PIPELINE II = 1
                const bool is_left = x < left_packets;
                const int column =
                    is_left ? tile * D::MAC_ROWS / LANES + row_of(x, layer.parts) : tiles.first_word + x - left_packets;
                const int chunks = is_left ? layer.in_chunks : layer.out_chunks;
                const int chunk = column >= chunks ? column - chunks : column;  // within the second part
                const int block_of_bank = is_left ? block * layer.parts + part_of(x, layer.parts) : block;
                const int count = is_left ? layer.rows * layer.parts : layer.rows;
                const bool in_matrix = column < (is_left ? layer.parts * chunks : chunks);
                const int offset = is_left ? layer.combined : layer.output_gradient;
                Packet<D> packet;
                for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                    const bool valid = in_matrix && block_of_bank * D::PES + bank < count;
                    packet.word[bank] = valid ? sums[bank][offset + block_of_bank * chunks + chunk] : Word(0.0f);
                }
                packets.write(packet);
            }
        }
    }
}

// Convert blocks to rows, one per step. Double buffering: one block is filled while the previous one is emitted.
template <class D>
void spread(hls::stream<Packet<D>> &packets, Layer layer, Tiles tiles, hls::stream<Left<D>> &lefts,
            hls::stream<Right<D>> &rights) {
    constexpr int LEFT_WORDS = GradientShape<D>::LEFT_WORDS;
    Word left_words[2][D::PES][LEFT_WORDS];
    Word right_words[2][D::PES][D::COL_WORDS];
#pragma HLS array_partition variable = left_words dim = 0 type = complete
#pragma HLS array_partition variable = right_words dim = 0 type = complete
    const int depth = layer.parts * layer.in_chunks * LANES;
    const int left_packets = LEFT_WORDS * layer.parts, fills = left_packets + D::COL_WORDS;
    const int steps = fills > D::PES ? fills : D::PES;
    for (int tile = tiles.first; tile < tiles.first + tiles.count; tile++) {
        const int first_row = tile * D::MAC_ROWS;
        const int blocks = ceil_div(layer.rows, D::PES);
        for (int block = 0; block <= blocks; block++) {
            const int fill = block & 1, emit = 1 - fill;
            for (int step = 0; step < steps; step++) {
#pragma HLS PIPELINE II = 1
                if (block < blocks && step < fills) {
                    const Packet<D> packet = packets.read();
                    const int word = row_of(step, layer.parts);
                    // Part of a row that this word of combined belongs to; selects the packet's rows of that part.
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
                        const float value = left_words[emit][step][i / LANES][lane];
                        left.value[i] = first_row + i == depth && valid ? 1.0f : value;
                    }
                    lefts.write(left);
                    Right<D> right;
                    for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS UNROLL
                        right.word[w] = right_words[emit][step][w];
                    }
                    rights.write(right);
                }
            }
        }
    }
}

template <class D, class Gradients>
void write_gradient(hls::stream<Right<D>> &results, Layer layer, Tiles tiles, Gradients gradients) {
    const int depth = layer.parts * layer.in_chunks * LANES;
    for (int row = tiles.first * D::MAC_ROWS; row < (tiles.first + tiles.count) * D::MAC_ROWS; row++) {
        const Right<D> result = results.read();
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const int column = tiles.first_word + w;
            if (row <= depth && column < layer.out_chunks)
                gradients[layer.weights + row * layer.out_chunks + column] = result.word[w];
        }
    }
}

}  // namespace hyrt
