// Weighted sums of source rows over a block, and their gradient over the transposed block. No atomics: each result row
// is written by one work item (CPU: LANES 1) or by the LANES work items of one work group (GPU).
//
// WIDTH: columns of a source row. STRIDE: columns of a destination row. SUM_AT, SELF_AT: offsets, in a destination row,
// of the sum and of the vertex's input row (SELF_AT -1: only the sum is stored). VECTORS = ceil(WIDTH / VEC), of which
// UNROLL are accumulated in registers at a time. Source rows may be quantized: codes.cl converts them to float.

#define START(j) min((j) * VEC, WIDTH - VEC)
#define AT(u) START(min(base + (u) * LANES, VECTORS - 1))
#if HAS_WEIGHTS
#define WEIGHT(e) weights[e] *
#else
#define WEIGHT(e)
#endif
#if HAS_SOURCE
#define SOURCE(j) source_scale[j] *
#else
#define SOURCE(j)
#endif

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void aggregate(
    __global const int *restrict indptr, __global const int *restrict columns, __global const code *restrict x,
    __global const float *restrict row_scales, __global const float *restrict column_scales,
    __global const float *restrict row_scale, __global const float *restrict source_scale,
    __global const float *restrict weights, __global const float *restrict self_scale, __global float *restrict out,
    const int rows)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, rows);
    for (int i = get_group_id(0) * GRAIN; i < stop; i++) {
        const int first = indptr[i], end = indptr[i + 1];
        __global const code *self_row = x + (size_t)i * WIDTH;
        __global float *out_row = out + (size_t)i * STRIDE;
        for (int base = get_local_id(0); base < VECTORS; base += UNROLL * LANES) {
            vec sum[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u] = 0;
            for (int e = first; e < end; e++) {
                const int j = columns[e];
                __global const code *row = x + (size_t)j * WIDTH;
                const float factor = WEIGHT(e) SOURCE(j) ROW_SCALE(j) 1.0f;
#pragma unroll
                for (int u = 0; u < UNROLL; u++) sum[u] += factor * LOAD_FLOATS(row + AT(u));
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                vec total = sum[u] * row_scale[i];
#if HAS_SELF
                total += self_scale[i] * ROW_SCALE(i) LOAD_FLOATS(self_row + AT(u));
#endif
                if (base + u * LANES < VECTORS) {
                    STORE(COLUMN_SCALE(AT(u)) total, out_row + SUM_AT + AT(u));
#if SELF_AT >= 0
                    STORE(COLUMN_SCALE(AT(u)) ROW_SCALE(i) LOAD_FLOATS(self_row + AT(u)), out_row + SELF_AT + AT(u));
#endif
                }
            }
        }
    }
}

// MASKED: the source rows are the output of a ReLU (and of a dropout that scaled by `scale`), so the gradient of their
// zeros is zero.
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void aggregate_backward(
    __global const int *restrict indptr, __global const int *restrict destinations, __global const int *restrict edges,
    __global const float *restrict grad, __global const float *restrict row_scale,
    __global const float *restrict source_scale, __global const float *restrict weights,
    __global const float *restrict self_scale, __global const float *restrict activated, const float scale,
    __global float *restrict out, const int rows, const int num_dst)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, rows);
    for (int j = get_group_id(0) * GRAIN; j < stop; j++) {
        const int first = indptr[j], end = indptr[j + 1];
        __global const float *self_grad = grad + (size_t)j * STRIDE;
        for (int base = get_local_id(0); base < VECTORS; base += UNROLL * LANES) {
            vec sum[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u] = 0;
            for (int t = first; t < end; t++) {
                const int i = destinations[t];
                __global const float *row = grad + (size_t)i * STRIDE + SUM_AT;
#if HAS_WEIGHTS
                const float factor = row_scale[i] * weights[edges[t]];
#else
                const float factor = row_scale[i];
#endif
#pragma unroll
                for (int u = 0; u < UNROLL; u++) sum[u] += factor * LOAD(row + AT(u));
            }
#if HAS_SOURCE
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u] *= source_scale[j];
#endif
            if (j < num_dst) {
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
#if SELF_AT >= 0
                    sum[u] += LOAD(self_grad + SELF_AT + AT(u));
#endif
#if HAS_SELF
                    sum[u] += self_scale[j] * LOAD(self_grad + SUM_AT + AT(u));
#endif
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const size_t index = (size_t)j * WIDTH + AT(u);
#if MASKED
                sum[u] = POSITIVE(LOAD(activated + index), sum[u] * scale);
#endif
                if (base + u * LANES < VECTORS) STORE(sum[u], out + index);
            }
        }
    }
}
