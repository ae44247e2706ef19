// Aggregation over a block and its gradient, equivalent to hyrt/nn/operators/kernels.py. Each thread computes its
// elements of a row and adds in edge order, without atomics: equal inputs give equal bits. Absent factors are null.

// out[i, sum_at:] = row_scale[i] * sum_e weights[e] * source_scale[columns[e]] * x[columns[e]], plus
// self_scale[i] * x[i]; if self_at is not negative, out[i, self_at:] = x[i].
extern "C" __global__ void aggregate(const int* indptr, const int* columns, const float* x, const float* row_scale,
                                     const float* source_scale, const float* weights, const float* self_scale,
                                     float* out, int num_dst, int width, int out_width, int sum_at, int self_at) {
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num_dst) return;
    const float* self_row = x + (long long)i * width;
    float* row = out + (long long)i * out_width;
    int first = indptr[i], end = indptr[i + 1];
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float total = 0;
        for (int e = first; e < end; e++) {
            int j = columns[e];
            float value = x[(long long)j * width + k];
            if (source_scale) value *= source_scale[j];
            if (weights) value *= weights[e];
            total += value;
        }
        total *= row_scale[i];
        if (self_scale) total += self_scale[i] * self_row[k];
        row[sum_at + k] = total;
        if (self_at >= 0) row[self_at + k] = self_row[k];
    }
}

// Gradient of `aggregate` with respect to x, over the transposed edges.
extern "C" __global__ void aggregate_backward(const long long* t_indptr, const long long* t_rows,
                                              const long long* t_edges, const float* grad, const float* row_scale,
                                              const float* source_scale, const float* weights,
                                              const float* self_scale, float* out, int num_dst, int num_src, int width,
                                              int grad_width, int sum_at, int self_at) {
    int j = blockIdx.x * blockDim.y + threadIdx.y;
    if (j >= num_src) return;
    float* row = out + (long long)j * width;
    const float* self_grad = grad + (long long)j * grad_width;
    long long first = t_indptr[j], end = t_indptr[j + 1];
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float total = 0;
        for (long long t = first; t < end; t++) {
            long long i = t_rows[t];
            float factor = row_scale[i];
            if (weights) factor *= weights[t_edges[t]];
            total += factor * grad[i * grad_width + sum_at + k];
        }
        if (source_scale) total *= source_scale[j];
        if (j < num_dst) {
            if (self_at >= 0) total += self_grad[self_at + k];
            if (self_scale) total += self_scale[j] * self_grad[sum_at + k];
        }
        row[k] = total;
    }
}

// Elementwise maximum of source rows; `winners` stores the edge of each maximum (argmax). A row without edges gets
// maximum 0 and edge -1.
extern "C" __global__ void aggregate_max(const int* indptr, const int* columns, const float* x, float* out,
                                         int* winners, int num_dst, int width, int out_width, int sum_at,
                                         int self_at) {
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num_dst) return;
    const float* self_row = x + (long long)i * width;
    float* row = out + (long long)i * out_width;
    int first = indptr[i], end = indptr[i + 1];
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float best = 0;
        int winner = -1;
        for (int e = first; e < end; e++) {
            float value = x[(long long)columns[e] * width + k];
            if (e == first || value > best) {
                best = value;
                winner = e;
            }
        }
        row[sum_at + k] = best;
        winners[(long long)i * width + k] = winner;
        if (self_at >= 0) row[self_at + k] = self_row[k];
    }
}

// Gradient of `aggregate_max`: the gradient of each element is added to the source of the argmax edge.
extern "C" __global__ void aggregate_max_backward(const long long* t_indptr, const long long* t_rows,
                                                  const long long* t_edges, const float* grad, const int* winners,
                                                  float* out, int num_dst, int num_src, int width, int grad_width,
                                                  int sum_at, int self_at) {
    int j = blockIdx.x * blockDim.y + threadIdx.y;
    if (j >= num_src) return;
    float* row = out + (long long)j * width;
    long long first = t_indptr[j], end = t_indptr[j + 1];
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float total = 0;
        for (long long t = first; t < end; t++) {
            long long i = t_rows[t];
            if (winners[i * width + k] == t_edges[t]) total += grad[i * grad_width + sum_at + k];
        }
        if (j < num_dst && self_at >= 0) total += grad[(long long)j * grad_width + self_at + k];
        row[k] = total;
    }
}
