// One launch: forward through the layers, loss, backward. Features, edges, weights, labels and vertices are read from
// memory, and scores, gradients and results are written to it; all intermediate matrices stay in the on-chip arena.
#pragma once

#include "aggregate.hpp"
#include "design.hpp"
#include "dropout.hpp"
#include "loss.hpp"
#include "phase.hpp"
#include "product.hpp"

namespace hyrt {

// Ports are pointers in hardware, and objects that count accesses in simulation. hyrt_hls/task_layout.py describes
// their contents.
template <class D, class Features, class Edges, class Weights, class Labels, class TargetWeights, class Vertices,
          class TaskWords, class Scores, class Gradients, class Results>
void train(Features features, Edges edges, Weights weights, Labels labels, TargetWeights target_weights,
           Vertices vertices, TaskWords task, Scores scores, Gradients gradients, Results results,
           typename D::Sums &sums, typename D::Rows &rows, typename D::Panel &panel, Word (&row)[MAX_CHUNKS]) {
    int words[HEADER + MAX_LAYERS * RECORD];
    const int layers = task[1];
    for (int i = 0; i < HEADER + layers * RECORD; i++) {
#pragma HLS PIPELINE II = 1
        words[i] = task[i];
    }
    const int classes = words[3];

    for (Phase phase = {Work::AGGREGATE, 0}; phase.work != Work::END; phase = phase_after(phase, layers)) {
        const Layer layer = read_layer(words, phase.layer);
        switch (phase.work) {
            case Work::AGGREGATE:
            case Work::AGGREGATE_GRADIENT:
                aggregate<D>(aggregation_of(phase, words), edges, features, vertices, rows, row, sums);
                break;
            case Work::UPDATE:
            case Work::WEIGHT_GRADIENT:
            case Work::INPUT_GRADIENT:
                multiply<D>({phase.work, layer, phase.layer == layers - 1}, weights, vertices, sums, panel, rows,
                            scores, gradients);
                break;
            case Work::LOSS:
                cross_entropy<D>(layer, classes, labels, target_weights, rows, sums, results);
                break;
            case Work::MASK:
                mask<D>(layer, vertices, rows, sums);
                break;
            case Work::END:
                break;
        }
    }
}

}  // namespace hyrt
