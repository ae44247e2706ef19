// Softmax cross-entropy, GRAIN rows per work item: gradients, and the sums of losses and correct predictions of these
// rows. A row without a label (-1) is not a target: it contributes nothing to the sums, and its gradient is zero.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void cross_entropy(
    __global const float *restrict scores, __global const long *restrict labels,
    __global const float *restrict target_weights, const int weighted, __global float *restrict grad,
    __global float *restrict sums, const int rows, const int classes)
{
    const int item = get_global_id(0), begin = item * GRAIN, stop = min(begin + GRAIN, rows);
    if (begin >= rows) return;
    float loss_sum = 0;
    int correct = 0;
    for (int i = begin; i < stop; i++) {
        __global const float *score = scores + (size_t)i * classes;
        __global float *g = grad + (size_t)i * classes;
        const int label = (int)labels[i];
        if (label < 0) {
            for (int k = 0; k < classes; k++) g[k] = 0;
            continue;
        }
        const float weight = weighted ? target_weights[i] : 1;
        float max_score = score[0];
        int argmax = 0;
        for (int k = 1; k < classes; k++) {
            const float s = score[k];
            // Ties: the first index wins. As in the other implementations, NaN is larger than any number.
            if (s > max_score || (isnan(s) && !isnan(max_score))) {
                max_score = s;
                argmax = k;
            }
        }
        float total = 0;
        for (int k = 0; k < classes; k++) {
            const float e = exp(score[k] - max_score);
            g[k] = e;
            total += e;
        }
        const float factor = weight / total;
        for (int k = 0; k < classes; k++) g[k] *= factor;
        g[label] -= weight;
        loss_sum += weight * (log(total) - (score[label] - max_score));
        correct += argmax == label;
    }
    sums[2 * item] = loss_sum;
    sums[2 * item + 1] = correct;
}

// One work item adds these sums in order; Kahan summation compensates the rounding errors of the losses.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void add_sums(
    __global const float *restrict sums, const int groups, __global float *restrict results)
{
    float total = 0, compensation = 0;
    int correct = 0;
    for (int i = 0; i < groups; i++) {
        const float y = sums[2 * i] - compensation;
        const float t = total + y;
        compensation = (t - total) - y;
        total = t;
        correct += (int)sums[2 * i + 1];
    }
    results[0] = total;
    results[1] = correct;
}
