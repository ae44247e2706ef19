// Weighted sums of the rows of one interval, added to rows of another interval, along the edges of a chunk. No atomics:
// only rows with edges are listed, each once, and a row is written by one work item (CPU: LANES 1) or by the LANES work
// items of one work group (GPU).
//
// WIDTH: columns of the sum. X_STRIDE, OUT_STRIDE: columns of an input row and of an output row; X_AT, OUT_AT: offsets
// of the sum's columns in them. VECTORS = ceil(WIDTH / VEC), of which UNROLL are accumulated in registers at a time.

#define START(j) min((j) * VEC, WIDTH - VEC)
#define AT(u) START(min(base + (u) * LANES, VECTORS - 1))
// Columns that the last vector shares with the previous one: they must be accumulated only once.
#define OVERLAP (VECTORS * VEC - WIDTH)

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void accumulate(
    __global const int *restrict rows, __global const int *restrict starts, __global const int *restrict columns,
    __global const float *restrict x, __global const float *restrict row_scale,
    __global const float *restrict column_scale, __global float *restrict out, const int count)
{
    const int stop = min((int)(get_group_id(0) + 1) * GRAIN, count);
    for (int n = get_group_id(0) * GRAIN; n < stop; n++) {
        const int i = rows[n], first = starts[n], end = starts[n + 1];
        __global float *out_row = out + (size_t)i * OUT_STRIDE + OUT_AT;
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
#if OVERLAP
                if (vector == VECTORS - 1) {
                    float value[VEC];
                    STORE(total, value);
                    for (int k = OVERLAP; k < VEC; k++) out_row[WIDTH - VEC + k] += value[k];
                    continue;
                }
#endif
                if (vector < VECTORS) STORE(LOAD(out_row + AT(u)) + total, out_row + AT(u));
            }
        }
    }
}
