// Softmax cross-entropy of the targets, and its gradient.
#pragma once

#include <cmath>

#include "design.hpp"

namespace hyrt {

template <class D, class Labels, class TargetWeights, class Results>
void cross_entropy(const Layer &last, int classes, Labels labels, TargetWeights target_weights,
                   const typename D::Rows &rows, typename D::Sums &sums, Results results) {
    const int chunks = last.out_chunks;
    float loss_sum = 0, lost = 0;  // the rounding errors of the sum are carried along
    int correct = 0;
    for (int row = 0; row < last.rows; row++) {
        const int bank = row % D::PES;
        const int in = last.output - D::ROW_BASE + row / D::PES * chunks;
        const int out = last.output_gradient + row / D::PES * chunks;
        const int label = labels[row];
        const float weight = target_weights[row];
        float top = rows[bank][in][0], of_label = 0;
        int best = 0;
        for (int k = 0; k < classes; k++) {
#pragma HLS PIPELINE
            const float score = rows[bank][in + k / LANES][k % LANES];
            // The first of equal ones wins; what is not a number is larger than all.
            if (score > top || (std::isnan(score) && !std::isnan(top))) {
                top = score;
                best = k;
            }
            if (k == label) of_label = score;
        }
        Word totals = 0.0f;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE
            const Word scores = rows[bank][in + chunk];
            Word exponents;
            for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                exponents[lane] = chunk * LANES + lane < classes ? std::exp(scores[lane] - top) : 0.0f;
            }
            totals = totals + exponents;
            sums[bank][out + chunk] = exponents;
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
        const float loss = weight * (std::log(total) - (of_label - top)) - lost;
        const float added = loss_sum + loss;
        lost = (added - loss_sum) - loss;
        loss_sum = added;
        correct += best == label;
    }
    results[0] = loss_sum;
    results[1] = (float)correct;
}

}  // namespace hyrt
