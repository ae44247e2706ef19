// Weighted sums of source rows over a block, and their gradient over the transposed block. No atomics: every row of
// the result is written by one work item (CPU: LANES 1) or by the LANES work items of one row (GPU).
//
// WIDTH: columns of a source row. STRIDE: columns of a destination row. SUM_AT, SELF_AT: where the sum and the own
// row stand in it (SELF_AT -1: no own row beside). VECTORS = ceil(WIDTH / VEC); UNROLL of them are kept in registers.
// Source rows may be in a narrow format, which `codes` says how to read.

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
    __global const float *restrict weights, __global const float *restrict own_scale, __global float *restrict out,
    const int rows)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, rows);
    for (int i = get_group_id(0) * GRAIN; i < stop; i++) {
        const int first = indptr[i], end = indptr[i + 1];
        __global const code *own = x + (size_t)i * WIDTH;
        __global float *to = out + (size_t)i * STRIDE;
        for (int base = get_local_id(0); base < VECTORS; base += UNROLL * LANES) {
            vec sum[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u] = 0;
            for (int e = first; e < end; e++) {
                const int j = columns[e];
                __global const code *row = x + (size_t)j * WIDTH;
                const float factor = WEIGHT(e) SOURCE(j) ROW_SCALE(j) 1.0f;
#pragma unroll
                for (int u = 0; u < UNROLL; u++) sum[u] += factor * NUMBERS(row + AT(u));
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                vec total = sum[u] * row_scale[i];
#if HAS_OWN
                total += own_scale[i] * ROW_SCALE(i) NUMBERS(own + AT(u));
#endif
                if (base + u * LANES < VECTORS) {
                    STORE(COLUMN_SCALE(AT(u)) total, to + SUM_AT + AT(u));
#if SELF_AT >= 0
                    STORE(COLUMN_SCALE(AT(u)) ROW_SCALE(i) NUMBERS(own + AT(u)), to + SELF_AT + AT(u));
#endif
                }
            }
        }
    }
}

// MASKED: the source rows were made by a ReLU (and a dropout that scaled by `scale`): where they are zero, the gradient
// is zero too.
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void aggregate_backward(
    __global const int *restrict indptr, __global const int *restrict destinations, __global const int *restrict edges,
    __global const float *restrict grad, __global const float *restrict row_scale,
    __global const float *restrict source_scale, __global const float *restrict weights,
    __global const float *restrict own_scale, __global const float *restrict activated, const float scale,
    __global float *restrict out, const int rows, const int num_dst)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, rows);
    for (int j = get_group_id(0) * GRAIN; j < stop; j++) {
        const int first = indptr[j], end = indptr[j + 1];
        __global const float *own = grad + (size_t)j * STRIDE;
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
                    sum[u] += LOAD(own + SELF_AT + AT(u));
#endif
#if HAS_OWN
                    sum[u] += own_scale[j] * LOAD(own + SUM_AT + AT(u));
#endif
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const size_t at = (size_t)j * WIDTH + AT(u);
#if MASKED
                sum[u] = POSITIVE(LOAD(activated + at), sum[u] * scale);
#endif
                if (base + u * LANES < VECTORS) STORE(sum[u], out + at);
            }
        }
    }
}
