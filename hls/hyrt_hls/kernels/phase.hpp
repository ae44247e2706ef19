// Phases of a launch, executed in sequence. `train` runs them in one loop with one call site per kernel, because Vitis
// HLS shares a function's hardware only within one caller: matrix products in three callers would instantiate three
// arrays, and a U250 has room for one of 2048 multiply-accumulate units. `inline off` keeps the kernels and their
// regions separate modules, so that the loop's branches do not get copies; with one call site each, an `allocation`
// pragma would have nothing to limit.
#pragma once

#include "design.hpp"

namespace hyrt {

enum class Work {
    AGGREGATE,           // combined = A @ features, or the output of the layer below
    UPDATE,              // output = dropout(relu(combined @ weight + bias))
    LOSS,                // loss, and gradient of the last output
    MASK,                // gradient of dropout and ReLU
    WEIGHT_GRADIENT,     // combined^T @ output_gradient
    INPUT_GRADIENT,      // combined_gradient = output_gradient @ weight^T
    AGGREGATE_GRADIENT,  // A^T @ combined_gradient, the output_gradient of the layer below
    END
};

struct Phase {
    Work work;
    int layer;
};

inline Phase phase_after(Phase phase, int layers) {
#pragma HLS INLINE
    const int layer = phase.layer;
    switch (phase.work) {
        case Work::AGGREGATE:
            return {Work::UPDATE, layer};
        case Work::UPDATE:
            if (layer + 1 < layers) return {Work::AGGREGATE, layer + 1};
            return {Work::LOSS, layer};
        case Work::LOSS:
            return {Work::MASK, layer};
        case Work::MASK:
            return {Work::WEIGHT_GRADIENT, layer};
        case Work::WEIGHT_GRADIENT:
            if (layer > 0) return {Work::INPUT_GRADIENT, layer};
            return {Work::END, 0};
        case Work::INPUT_GRADIENT:
            return {Work::AGGREGATE_GRADIENT, layer};
        case Work::AGGREGATE_GRADIENT:
            return {Work::MASK, layer - 1};
        case Work::END:
            break;
    }
    return {Work::END, 0};
}

}  // namespace hyrt
