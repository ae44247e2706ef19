// One launch: forward through the layers, loss, backward. Memory is read for features, edges, weights, labels and
// vertices, and written for scores, gradients and results; all that lies between stays in the arena.
#pragma once

#include "aggregate.hpp"
#include "design.hpp"
#include "dropout.hpp"
#include "loss.hpp"
#include "update.hpp"
#include "weight_gradient.hpp"

namespace hyrt {

// The ports are pointers in hardware, and what counts accesses in simulation. See hyrt_hls/task_layout.py for what they
// hold.
template <class D, class Features, class Edges, class Weights, class Labels, class TargetWeights, class Vertices,
          class TaskWords, class Scores, class Gradients, class Results>
void train(Features features, Edges edges, Weights weights, Labels labels, TargetWeights target_weights,
           Vertices vertices, TaskWords task, Scores scores, Gradients gradients, Results results,
           typename D::Sums &sums, typename D::Rows &rows, typename D::Panel &panel, Word (&row)[MOST_CHUNKS]) {
    int words[HEADER + MOST_LAYERS * RECORD];
    const int layers = task[1];
    for (int i = 0; i < HEADER + layers * RECORD; i++) {
#pragma HLS PIPELINE II = 1
        words[i] = task[i];
    }
    const int classes = words[3];
    const Dropout input_dropout = read_dropout(words + 6);

    for (int l = 0; l < layers; l++) {
        const Layer layer = read_layer(words, l);
        const int num_to = layer.rows * layer.parts;
        if (l == 0) {
            aggregate<D>(edges, layer.first_edge, layer.num_edges, layer.in_chunks, num_to, layer.combined, row, sums,
                         features, vertices, input_dropout);
        } else {
            const int below = read_layer(words, l - 1).output;
            aggregate<D>(edges, layer.first_edge, layer.num_edges, layer.in_chunks, num_to, layer.combined, row, sums,
                         rows, below);
        }
        update<D>(layer, l == layers - 1, weights, vertices, sums, panel, rows, scores);
    }

    cross_entropy<D>(read_layer(words, layers - 1), classes, labels, target_weights, rows, sums, results);

    for (int l = layers - 1; l >= 0; l--) {
        const Layer layer = read_layer(words, l);
        mask<D>(layer, vertices, rows, sums);
        weight_gradient<D>(layer, sums, gradients);
        if (l > 0) {
            input_gradient<D>(layer, weights, vertices, sums, panel, rows, scores);
            const int below = read_layer(words, l - 1).output_gradient;
            aggregate<D>(edges, layer.first_back_edge, layer.num_back_edges, layer.in_chunks, layer.num_src, below, row,
                         sums, rows, layer.combined_gradient);
        }
    }
}

}  // namespace hyrt
