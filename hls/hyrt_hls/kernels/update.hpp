// The update kernel: output = dropout(relu(combined @ weight + bias)), and with the same processes the gradient of
// combined, output_gradient @ weight^T. Both read the memory of sums and write the memory of rows.
#pragma once

#include "design.hpp"
#include "dropout.hpp"
#include "systolic.hpp"

namespace hyrt {

// A matrix in the arena seen as [rows, parts * chunks words]: part p of row r is row r * parts + p in the arena.
struct Matrix {
    int offset, rows, parts, chunks;
};

// What is done with a product's results.
struct Finish {
    bool relu;
    Dropout dropout;
    bool scores;  // they also go to memory
};

// Words first .. first + COL_WORDS - 1 of each row of a weight matrix [depth, out_chunks] and of its bias row.
template <class D, class Weights>
void load_panel(Weights weights, int at, int depth, int out_chunks, int first, typename D::Panel &panel,
                Word (&bias)[D::COL_WORDS]) {
    for (int k = 0; k <= depth; k++) {
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const Word word = first + w < out_chunks ? weights[at + k * out_chunks + first + w] : Word(0.0f);
            if (k < depth)
                panel[w][k] = word;
            else
                bias[w] = word;
        }
    }
}

// The same of the transposed matrix [out_chunks * LANES, depth]: LANES x LANES values at a time.
template <class D, class Weights>
void load_panel_transposed(Weights weights, int at, int depth, int out_chunks, int first, typename D::Panel &panel,
                           Word (&bias)[D::COL_WORDS]) {
    for (int w = 0; w < D::COL_WORDS; w++) {
        for (int chunk = 0; chunk < out_chunks; chunk++) {
            Word square[LANES];
#pragma HLS array_partition variable = square type = complete
            for (int row = 0; row < LANES; row++) {
#pragma HLS PIPELINE II = 1
                const int k = (first + w) * LANES + row;
                square[row] = k < depth ? weights[at + k * out_chunks + chunk] : Word(0.0f);
            }
            for (int column = 0; column < LANES; column++) {
#pragma HLS PIPELINE II = 1
                Word word;
                for (int row = 0; row < LANES; row++) {
#pragma HLS UNROLL
                    word[row] = square[row][column];
                }
                panel[w][chunk * LANES + column] = word;
            }
        }
        bias[w] = Word(0.0f);
    }
}

// Words of `tiles` times MAC_ROWS rows from row `first` on, chunk by chunk: one word a bank at a time.
template <class D>
void read_left(const typename D::Sums &sums, Matrix matrix, int first, int tiles, hls::stream<Packet<D>> &packets) {
    const int fills = D::MAC_ROWS / D::PES * matrix.parts;
    for (int tile = 0; tile < tiles; tile++) {
        for (int chunk = 0; chunk < matrix.chunks; chunk++) {
            for (int q = 0; q < fills; q++) {
#pragma HLS PIPELINE II = 1
                const int block = first / D::PES * matrix.parts + tile * fills + q;
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

// Turns words of rows into columns: a block is one chunk of MAC_ROWS rows and all parts. One block is filled while the
// one before leaves.
template <class D>
void turn(hls::stream<Packet<D>> &packets, int blocks, int parts, hls::stream<Left<D>> &lefts) {
    Word words[2][2][D::MAC_ROWS];  // [block][part][row]
#pragma HLS array_partition variable = words dim = 0 type = complete
    const int fills = D::MAC_ROWS / D::PES * parts, leaves = LANES * parts;
    const int steps = fills > leaves ? fills : leaves;
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
            if (block > 0 && step < leaves) {
                Left<D> left;
                for (int i = 0; i < D::MAC_ROWS; i++) {
#pragma HLS UNROLL
                    left.value[i] = words[1 - (block & 1)][step / LANES][i][step % LANES];
                }
                lefts.write(left);
            }
        }
    }
}

// The panel's rows in the order in which `turn` gives the columns: chunk, part, lane.
template <class D>
void read_panel(const typename D::Panel &panel, int parts, int chunks, int tiles, hls::stream<Right<D>> &rights) {
    for (int block = 0; block < tiles * chunks; block++) {
        const int chunk = block % chunks;
        for (int step = 0; step < parts * LANES; step++) {
#pragma HLS PIPELINE II = 1
            const int k = (step / LANES * chunks + chunk) * LANES + step % LANES;
            Right<D> right;
            for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS UNROLL
                right.word[w] = panel[w][k];
            }
            rights.write(right);
        }
    }
}

template <class D, class Vertices>
void read_vertices(Vertices vertices, int first, int count, hls::stream<int64_t> &read) {
    for (int row = first; row < first + count; row++) {
#pragma HLS PIPELINE II = 1
        read.write(vertices[row]);
    }
}

// Results to words first_word .. of the rows of `out`.
template <class D, class Scores>
void finish(hls::stream<Right<D>> &results, hls::stream<int64_t> &vertices, Matrix out, int first, int tiles,
            int first_word, Finish how, const Word (&bias)[D::COL_WORDS], typename D::Rows &rows, Scores scores) {
    for (int row = first; row < first + tiles * D::MAC_ROWS; row++) {
        const Right<D> result = results.read();
        const bool valid = row < out.rows;
        const int64_t vertex = valid && how.dropout.threshold > 0 ? vertices.read() : 0;
        for (int w = 0; w < D::COL_WORDS; w++) {
#pragma HLS PIPELINE II = 1
            const int column = first_word + w;
            if (valid && column < out.parts * out.chunks) {
                Word word = result.word[w] + bias[w];
                for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                    if (how.relu && word[lane] < 0) word[lane] = 0;
                }
                if (how.dropout.threshold > 0) word = drop(word, how.dropout, vertex, column);
                const int part = column >= out.chunks ? 1 : 0;
                const int index = row * out.parts + part;
                rows[index % D::PES]
                    [out.offset - D::ROW_BASE + index / D::PES * out.chunks + column - part * out.chunks] = word;
                if (how.scores) scores[(int64_t)row * out.chunks + column] = word;
            }
        }
    }
}

template <class D, class Vertices, class Scores>
void product_region(const typename D::Sums &sums, const typename D::Panel &panel, const Word (&bias)[D::COL_WORDS],
                    Vertices vertices, Matrix in, Matrix out, int first, int tiles, int num_vertices, int first_word,
                    Finish how, typename D::Rows &rows, Scores scores) {
    HYRT_DATAFLOW(updating);
    hls::stream<Packet<D>> packets("packets");
    hls::stream<Left<D>> lefts("lefts");
    hls::stream<Right<D>> rights("rights");
    hls::stream<Right<D>> results("results");
    hls::stream<int64_t> read("vertices");
#pragma HLS stream variable = packets depth = 16
#pragma HLS stream variable = lefts depth = 4
#pragma HLS stream variable = rights depth = 4
#pragma HLS stream variable = results depth = HYRT_MAC_ROWS
#pragma HLS stream variable = read depth = 16
    HYRT_DEPTH(packets, 16);
    HYRT_DEPTH(lefts, 4);
    HYRT_DEPTH(rights, 4);
    HYRT_DEPTH(results, HYRT_MAC_ROWS);
    HYRT_DEPTH(read, 16);
    HYRT_PROCESS(updating, read_left<D>(sums, in, first, tiles, packets));
    HYRT_PROCESS(updating, turn<D>(packets, tiles * in.chunks, in.parts, lefts));
    HYRT_PROCESS(updating, read_panel<D>(panel, in.parts, in.chunks, tiles, rights));
    HYRT_PROCESS(updating, systolic<D>(lefts, rights, results, tiles, in.parts * in.chunks * LANES));
    HYRT_PROCESS(updating, read_vertices<D>(vertices, first, num_vertices, read));
    HYRT_PROCESS(updating, finish<D>(results, read, out, first, tiles, first_word, how, bias, rows, scores));
    HYRT_JOIN(updating);
}

// out = finish(in @ panels), all panels of a weight matrix of `depth` rows. A panel is loaded once and meets all rows.
template <class D, class Weights, class Vertices, class Scores>
void product(const typename D::Sums &sums, Weights weights, int at, int depth, int out_chunks, bool transposed,
             Vertices vertices, Matrix in, Matrix out, Finish how, typename D::Panel &panel, typename D::Rows &rows,
             Scores scores) {
    const int steps = in.parts * in.chunks * LANES;
    const int most = REGION_WORDS / steps > 0 ? REGION_WORDS / steps : 1;
    const int all = ceil_div(in.rows, D::MAC_ROWS);
    Word bias[D::COL_WORDS];
#pragma HLS array_partition variable = bias type = complete
    for (int word = 0; word < out.parts * out.chunks; word += D::COL_WORDS) {
        if (transposed)
            load_panel_transposed<D>(weights, at, depth, out_chunks, word, panel, bias);
        else
            load_panel<D>(weights, at, depth, out_chunks, word, panel, bias);
        for (int tile = 0; tile < all; tile += most) {
            const int tiles = all - tile < most ? all - tile : most;
            const int first = tile * D::MAC_ROWS;
            const int left = in.rows - first < tiles * D::MAC_ROWS ? in.rows - first : tiles * D::MAC_ROWS;
            const int num_vertices = how.dropout.threshold > 0 ? left : 0;
            product_region<D>(sums, panel, bias, vertices, in, out, first, tiles, num_vertices, word, how, rows,
                              scores);
        }
    }
}

// Forward: the layer's output from its combined rows; the last layer's also goes to `scores`.
template <class D, class Weights, class Vertices, class Scores>
void update(const Layer &layer, bool last, Weights weights, Vertices vertices, const typename D::Sums &sums,
            typename D::Panel &panel, typename D::Rows &rows, Scores scores) {
    const Matrix combined = {layer.combined, layer.rows, layer.parts, layer.in_chunks};
    const Matrix output = {layer.output, layer.rows, 1, layer.out_chunks};
    product<D>(sums, weights, layer.weights, layer.parts * layer.in_chunks * LANES, layer.out_chunks, false, vertices,
               combined, output, Finish{layer.relu, layer.dropout, last}, panel, rows, scores);
}

// Backward: the gradient of the combined rows from that of the output.
template <class D, class Weights, class Vertices, class Scores>
void input_gradient(const Layer &layer, Weights weights, Vertices vertices, const typename D::Sums &sums,
                    typename D::Panel &panel, typename D::Rows &rows, Scores scores) {
    const Matrix output = {layer.output_gradient, layer.rows, 1, layer.out_chunks};
    const Matrix combined = {layer.combined_gradient, layer.rows, layer.parts, layer.in_chunks};
    product<D>(sums, weights, layer.weights, layer.parts * layer.in_chunks * LANES, layer.out_chunks, true, vertices,
               output, combined, Finish{false, {0, 1.0f, 0}, false}, panel, rows, scores);
}

}  // namespace hyrt
