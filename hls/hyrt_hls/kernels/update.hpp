// Stages before and after the array for the update, output = dropout(relu(combined @ weight + bias)), and for the
// gradient of combined, output_gradient @ weight^T. Both read the sum memory and write the row memory.
#pragma once

#include "design.hpp"
#include "dropout.hpp"
#include "systolic.hpp"

namespace hyrt {

// View of a matrix in the arena as [rows, parts * chunks words]: part p of row r is row r * parts + p of the arena.
struct Matrix {
    int offset, rows, parts, chunks;
};

// Element-wise operations on the results of a product.
struct Epilogue {
    bool relu;
    Dropout dropout;
    bool scores;  // whether the results are also written to memory
};

// Words first .. first + COL_WORDS - 1 of each row of a weight matrix [depth, out_chunks] and of its bias row.
template <class D, class Weights>
void load_panel(Weights weights, int offset, int depth, int out_chunks, int first, typename D::Panel &panel,
                Word (&bias)[D::COL_WORDS]) {
    for (int k = 0; k <= depth; k++) {
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const Word word = first + w < out_chunks ? weights[offset + k * out_chunks + first + w] : Word(0.0f);
            if (k < depth)
                panel[w][k] = word;
            else
                bias[w] = word;
        }
    }
}

// The same for the transposed matrix [out_chunks * LANES, depth], one block of LANES x LANES values at a time.
template <class D, class Weights>
void load_panel_transposed(Weights weights, int offset, int depth, int out_chunks, int first, typename D::Panel &panel,
                           Word (&bias)[D::COL_WORDS]) {
    for (int w = 0; w < D::COL_WORDS; w++) {
        for (int chunk = 0; chunk < out_chunks; chunk++) {
            Word block_words[LANES];
#pragma HLS array_partition variable = block_words type = complete
            for (int row = 0; row < LANES; row++) {
#pragma HLS PIPELINE II = 1
                const int k = (first + w) * LANES + row;
                block_words[row] = k < depth ? weights[offset + k * out_chunks + chunk] : Word(0.0f);
            }
            for (int column = 0; column < LANES; column++) {
#pragma HLS PIPELINE II = 1
                Word word;
                for (int row = 0; row < LANES; row++) {
#pragma HLS UNROLL
                    word[row] = block_words[row][column];
                }
                panel[w][chunk * LANES + column] = word;
            }
        }
        bias[w] = Word(0.0f);
    }
}

// Words of the left matrix for the given tiles, chunk by chunk; each packet has one word per bank.
template <class D>
void read_left(const typename D::Sums &sums, Matrix matrix, Tiles tiles, hls::stream<Packet<D>> &packets) {
    const int fills = D::MAC_ROWS / D::PES * matrix.parts;
    for (int tile = tiles.first; tile < tiles.first + tiles.count; tile++) {
        for (int chunk = 0; chunk < matrix.chunks; chunk++) {
            for (int q = 0; q < fills; q++) {
#pragma HLS PIPELINE II = 1
                const int block = tile * fills + q;
                Packet<D> packet;
                for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                    const bool valid = block * D::PES + bank < matrix.rows * matrix.parts;
                    packet.word[bank] = valid ? sums[bank][matrix.offset + block * matrix.chunks + chunk] : Word(0.0f);
                }
                packets.write(packet);
            }
        }
    }
}

// Transpose words of rows into columns, and pair each column with its row of the panel, in the order chunk, part, lane.
// A block is one chunk of MAC_ROWS rows and all parts. Double buffering: one block is filled while the previous one is
// emitted.
template <class D>
void turn(hls::stream<Packet<D>> &packets, const typename D::Panel &panel, Matrix matrix, int tiles,
          hls::stream<Left<D>> &lefts, hls::stream<Right<D>> &rights) {
    const int parts = matrix.parts, blocks = tiles * matrix.chunks;
    Word words[2][2][D::MAC_ROWS];  // [block][part][row]
#pragma HLS array_partition variable = words dim = 0 type = complete
    const int fills = D::MAC_ROWS / D::PES * parts, emits = LANES * parts;
    const int steps = fills > emits ? fills : emits;
    int chunk = 0;  // of the emitted block
    for (int block = 0; block <= blocks; block++) {
        for (int step = 0; step < steps; step++) {
#pragma HLS PIPELINE II = 1
            if (block < blocks && step < fills) {
                const Packet<D> packet = packets.read();
                for (int bank = 0; bank < D::PES; bank++) {
#pragma HLS UNROLL
                    const int index = step * D::PES + bank;
                    words[block & 1][part_of(index, parts)][row_of(index, parts)] = packet.word[bank];
                }
            }
            if (block > 0 && step < emits) {
                Left<D> left;
                for (int i = 0; i < D::MAC_ROWS; i++) {
#pragma HLS UNROLL
                    left.value[i] = words[1 - (block & 1)][step / LANES][i][step % LANES];
                }
                lefts.write(left);
                const int k = (step / LANES * matrix.chunks + chunk) * LANES + step % LANES;
                Right<D> right;
                for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS UNROLL
                    right.word[w] = panel[w][k];
                }
                rights.write(right);
            }
            // Updated inside the inner loop, so that the loop nest stays perfect.
            if (block > 0 && step == steps - 1) chunk = chunk + 1 < matrix.chunks ? chunk + 1 : 0;
        }
    }
}

template <class D, class Vertices>
void read_vertices(Vertices vertices, Tiles tiles, int count, hls::stream<int64_t> &vertex_ids) {
    for (int row = tiles.first * D::MAC_ROWS; row < tiles.first * D::MAC_ROWS + count; row++) {
#pragma HLS PIPELINE II = 1
        vertex_ids.write(vertices[row]);
    }
}

// Apply the epilogue to the results and write them to the rows of `out`.
template <class D, class Scores>
void finish(hls::stream<Right<D>> &results, hls::stream<int64_t> &vertices, Matrix out, Tiles tiles, Epilogue epilogue,
            const Word (&bias)[D::COL_WORDS], typename D::Rows &rows, Scores scores) {
    for (int row = tiles.first * D::MAC_ROWS; row < (tiles.first + tiles.count) * D::MAC_ROWS; row++) {
        const Right<D> result = results.read();
        const bool valid = row < out.rows;
        const int64_t vertex = valid && epilogue.dropout.threshold > 0 ? vertices.read() : 0;
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const int column = tiles.first_word + w;
            if (valid && column < out.parts * out.chunks) {
                Word word = result.word[w] + bias[w];
                for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                    if (epilogue.relu && word[lane] < 0) word[lane] = 0;
                }
                if (epilogue.dropout.threshold > 0) word = drop(word, epilogue.dropout, vertex, column);
                const int part = column >= out.chunks ? 1 : 0;
                const int index = row * out.parts + part;
                rows[index % D::PES]
                    [out.offset - D::ROW_BASE + index / D::PES * out.chunks + column - part * out.chunks] = word;
                if (epilogue.scores) scores[(int64_t)row * out.chunks + column] = word;
            }
        }
    }
}

}  // namespace hyrt
