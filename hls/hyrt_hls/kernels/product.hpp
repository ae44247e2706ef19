// Matrix products of a layer (update, weight gradient and input gradient) on one shared systolic array. Only the
// processes before and after the array depend on the kind of product.
#pragma once

#include "phase.hpp"
#include "systolic.hpp"
#include "update.hpp"
#include "weight_gradient.hpp"

namespace hyrt {

struct Product {
    Work work;
    Layer layer;
    bool last;  // last layer: the update also writes its output to memory
};

inline int weight_rows(const Layer &layer) {
#pragma HLS INLINE
    return layer.parts * layer.in_chunks * LANES;
}

inline Matrix combined_of(const Layer &layer) {
#pragma HLS INLINE
    return {layer.combined, layer.rows, layer.parts, layer.in_chunks};
}

inline Matrix output_gradient_of(const Layer &layer) {
#pragma HLS INLINE
    return {layer.output_gradient, layer.rows, 1, layer.out_chunks};
}

template <class D>
void read_operands(const typename D::Sums &sums, Product product, Tiles tiles, hls::stream<Packet<D>> &packets) {
    const Layer &layer = product.layer;
    if (product.work == Work::WEIGHT_GRADIENT)
        read_block_words<D>(sums, layer, tiles, packets);
    else
        read_left<D>(sums, product.work == Work::UPDATE ? combined_of(layer) : output_gradient_of(layer), tiles,
                     packets);
}

// The only writer of `lefts` and `rights` for all kinds of products, because a stream must have a single writer.
template <class D>
void feed(hls::stream<Packet<D>> &packets, const typename D::Panel &panel, Product product, Tiles tiles,
          hls::stream<Left<D>> &lefts, hls::stream<Right<D>> &rights) {
    const Layer &layer = product.layer;
    if (product.work == Work::WEIGHT_GRADIENT)
        spread<D>(packets, layer, tiles, lefts, rights);
    else
        turn<D>(packets, panel, product.work == Work::UPDATE ? combined_of(layer) : output_gradient_of(layer),
                tiles.count, lefts, rights);
}

template <class D, class Scores, class Gradients>
void write_results(hls::stream<Right<D>> &results, hls::stream<int64_t> &vertices, Product product, Tiles tiles,
                   const Word (&bias)[D::COL_WORDS], typename D::Rows &rows, Scores scores, Gradients gradients) {
    const Layer &layer = product.layer;
    if (product.work == Work::WEIGHT_GRADIENT) {
        write_gradient<D>(results, layer, tiles, gradients);
    } else {
        const bool update = product.work == Work::UPDATE;
        const Matrix output = {layer.output, layer.rows, 1, layer.out_chunks};
        const Matrix combined_gradient = {layer.combined_gradient, layer.rows, layer.parts, layer.in_chunks};
        const Dropout none = {0, 1.0f, 0};
        const Epilogue epilogue = {update && layer.relu, update ? layer.dropout : none, update && product.last};
        finish<D>(results, vertices, update ? output : combined_gradient, tiles, epilogue, bias, rows, scores);
    }
}

// Dataflow region around the shared array, instantiated once.
template <class D, class Vertices, class Scores, class Gradients>
void product_region(Product product, Tiles tiles, int steps, int num_vertices, Vertices vertices,
                    const typename D::Sums &sums, const typename D::Panel &panel, const Word (&bias)[D::COL_WORDS],
                    typename D::Rows &rows, Scores scores, Gradients gradients) {
#pragma HLS INLINE off
    HYRT_DATAFLOW(multiplying);
    hls::stream<Packet<D>> packets("packets");
    hls::stream<Left<D>> lefts("lefts");
    hls::stream<Right<D>> rights("rights");
    hls::stream<Right<D>> results("results");
    hls::stream<int64_t> vertex_ids("vertices");
#pragma HLS stream variable = packets depth = 16
#pragma HLS stream variable = lefts depth = 4
#pragma HLS stream variable = rights depth = 4
#pragma HLS stream variable = results depth = HYRT_MAC_ROWS
#pragma HLS stream variable = vertex_ids depth = 16
    HYRT_DEPTH(packets, 16);
    HYRT_DEPTH(lefts, 4);
    HYRT_DEPTH(rights, 4);
    HYRT_DEPTH(results, HYRT_MAC_ROWS);
    HYRT_DEPTH(vertex_ids, 16);
    HYRT_PROCESS(multiplying, read_operands<D>(sums, product, tiles, packets));
    HYRT_PROCESS(multiplying, feed<D>(packets, panel, product, tiles, lefts, rights));
    HYRT_PROCESS(multiplying, systolic<D>(lefts, rights, results, tiles.count, steps));
    HYRT_PROCESS(multiplying, read_vertices<D>(vertices, tiles, num_vertices, vertex_ids));
    HYRT_PROCESS(multiplying, write_results<D>(results, vertex_ids, product, tiles, bias, rows, scores, gradients));
    HYRT_JOIN(multiplying);
}

// All tiles of a product. A panel of the weights is loaded once and reused for all rows.
template <class D, class Weights, class Vertices, class Scores, class Gradients>
void multiply(Product product, Weights weights, Vertices vertices, const typename D::Sums &sums,
              typename D::Panel &panel, typename D::Rows &rows, Scores scores, Gradients gradients) {
#pragma HLS INLINE off
    const Layer &layer = product.layer;
    const bool update = product.work == Work::UPDATE, weight = product.work == Work::WEIGHT_GRADIENT;
    const int depth = weight_rows(layer);
    const int steps = weight ? ceil_div(layer.rows, D::PES) * D::PES : update ? depth : layer.out_chunks * LANES;
    const int columns = update || weight ? layer.out_chunks : layer.parts * layer.in_chunks;  // in words
    const int num_tiles = ceil_div(weight ? depth + 1 : layer.rows, D::MAC_ROWS);
    const int max_tiles = REGION_WORDS / steps > 0 ? REGION_WORDS / steps : 1;
    Word bias[D::COL_WORDS];
#pragma HLS array_partition variable = bias type = complete
    for (int word = 0; word < columns; word += D::COL_WORDS) {
        if (update)
            load_panel<D>(weights, layer.weights, depth, layer.out_chunks, word, panel, bias);
        else if (!weight)
            load_panel_transposed<D>(weights, layer.weights, depth, layer.out_chunks, word, panel, bias);
        for (int tile = 0; tile < num_tiles; tile += max_tiles) {
            const Tiles tiles = {tile, num_tiles - tile < max_tiles ? num_tiles - tile : max_tiles, word};
            const int rows_left = layer.rows - tile * D::MAC_ROWS;
            const int num_vertices = rows_left < tiles.count * D::MAC_ROWS ? rows_left : tiles.count * D::MAC_ROWS;
            const bool has_dropout = update && layer.dropout.threshold > 0;
            product_region<D>(product, tiles, steps, has_dropout ? num_vertices : 0, vertices, sums, panel, bias, rows,
                              scores, gradients);
        }
    }
}

}  // namespace hyrt
