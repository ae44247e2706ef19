// Softmax cross-entropy of the targets and its gradient.
#pragma once

#include <cmath>

#include "design.hpp"

namespace hyrt {

template <class D, class Labels, class TargetWeights, class Results>
void cross_entropy(const Layer &last, int classes, Labels labels, TargetWeights target_weights,
                   const typename D::Rows &rows, typename D::Sums &sums, Results results) {
    const int chunks = last.out_chunks;
    float loss_sum = 0, compensation = 0;  // Kahan summation
    int correct = 0;
    for (int row = 0; row < last.rows; row++) {
        const int bank = row % D::PES;
        const int in = last.output - D::ROW_BASE + row / D::PES * chunks;
        const int out = last.output_gradient + row / D::PES * chunks;
        const int label = labels[row];
        const float weight = target_weights[row];
        float max_score = rows[bank][in][0], label_score = 0;
        int argmax = 0;
        for (int k = 0; k < classes; k++) {
#pragma HLS PIPELINE
            const float score = rows[bank][in + k / LANES][k % LANES];
            // Ties: the first index wins. NaN is larger than any number.
            if (score > max_score || (std::isnan(score) && !std::isnan(max_score))) {
                max_score = score;
                argmax = k;
            }
            if (k == label) label_score = score;
        }
        Word totals = 0.0f;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE
            const Word scores = rows[bank][in + chunk];
            Word exponentials;
            for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                exponentials[lane] = chunk * LANES + lane < classes ? std::exp(scores[lane] - max_score) : 0.0f;
            }
            totals = totals + exponentials;
            sums[bank][out + chunk] = exponentials;
        }
        float total = 0;
        for (int lane = 0; lane < LANES; lane++) {
#pragma HLS PIPELINE
            total += totals[lane];
        }
        const float factor = weight / total;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
#pragma HLS dependence variable = sums type = inter false
            Word gradient = sums[bank][out + chunk];
            for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                const int k = chunk * LANES + lane;
                gradient[lane] = k < classes ? gradient[lane] * factor - (k == label ? weight : 0.0f) : 0.0f;
            }
            sums[bank][out + chunk] = gradient;
        }
        const float loss = weight * (std::log(total) - (label_score - max_score)) - compensation;
        const float added = loss_sum + loss;
        compensation = (added - loss_sum) - loss;
        loss_sum = added;
        correct += argmax == label;
    }
    results[0] = loss_sum;
    results[1] = (float)correct;
}

}  // namespace hyrt
