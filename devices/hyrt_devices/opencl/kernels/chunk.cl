// Weighted sums of the rows of one interval, added to rows of another, along the edges of a chunk. Only rows that have
// edges are listed, each once, and one work item (CPU: LANES 1) or LANES work items (GPU) write a row: no atomics.
//
// WIDTH: columns of the sum. X_STRIDE, OUT_STRIDE: columns of a row that is read, and of one that is added to; X_AT,
// OUT_AT: where in them the sum's columns start. VECTORS = ceil(WIDTH / VEC); UNROLL of them are kept in registers.

#define START(j) min((j) * VEC, WIDTH - VEC)
#define AT(u) START(min(base + (u) * LANES, VECTORS - 1))
// Columns of the last vector that the one before it has, too: what is added must be added once.
#define TWICE (VECTORS * VEC - WIDTH)

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void accumulate(
    __global const int *restrict rows, __global const int *restrict starts, __global const int *restrict columns,
    __global const float *restrict x, __global const float *restrict row_scale,
    __global const float *restrict column_scale, __global float *restrict out, const int count)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, count);
    for (int n = get_group_id(0) * GRAIN; n < stop; n++) {
        const int i = rows[n], first = starts[n], end = starts[n + 1];
        __global float *to = out + (size_t)i * OUT_STRIDE + OUT_AT;
        for (int base = get_local_id(0); base < VECTORS; base += UNROLL * LANES) {
            vec sum[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u] = 0;
            for (int e = first; e < end; e++) {
                const int j = columns[e];
                __global const float *row = x + (size_t)j * X_STRIDE + X_AT;
#if HAS_COLUMN
                const float factor = column_scale[j];
#pragma unroll
                for (int u = 0; u < UNROLL; u++) sum[u] += factor * LOAD(row + AT(u));
#else
#pragma unroll
                for (int u = 0; u < UNROLL; u++) sum[u] += LOAD(row + AT(u));
#endif
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int vector = base + u * LANES;
#if HAS_ROW
                const vec total = sum[u] * row_scale[i];
#else
                const vec total = sum[u];
#endif
#if TWICE
                if (vector == VECTORS - 1) {
                    float value[VEC];
                    STORE(total, value);
                    for (int k = TWICE; k < VEC; k++) to[WIDTH - VEC + k] += value[k];
                    continue;
                }
#endif
                if (vector < VECTORS) STORE(LOAD(to + AT(u)) + total, to + AT(u));
            }
        }
    }
}
