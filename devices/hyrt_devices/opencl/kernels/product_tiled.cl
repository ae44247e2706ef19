// Matrix products for devices with many work items and local memory: a work group of 16 x 16 items computes a tile of
// 64 x 64 results from slices of both matrices in local memory, and each item accumulates 4 x 4 of them in registers.
// Rows of the slices are padded by one element (TILE + 1) to avoid bank conflicts.
//
// K, N: compile-time sizes. The weight is read in its parameter layout, [N, K], or [K, N] if TRANSPOSED (the gradient
// of the product with respect to its rows).

#define TILE 64
#define SLICE 16
#define SIDE 16
#define PER_ITEM 4

#if TRANSPOSED
#define WEIGHT(k, n) parameters[weight_at + (size_t)(k) * N + (n)]
#else
#define WEIGHT(k, n) parameters[weight_at + (size_t)(n) * K + (k)]
#endif

static inline void multiply_slices(__local const float (*a)[TILE + 1], __local const float (*b)[TILE + 1],
                                   float (*sum)[PER_ITEM])
{
    const int tx = get_local_id(0), ty = get_local_id(1);
    for (int k = 0; k < SLICE; k++) {
        float left[PER_ITEM], right[PER_ITEM];
        for (int i = 0; i < PER_ITEM; i++) {
            left[i] = a[k][ty + i * SIDE];
            right[i] = b[k][tx + i * SIDE];
        }
        for (int i = 0; i < PER_ITEM; i++)
            for (int j = 0; j < PER_ITEM; j++) sum[i][j] = fma(left[i], right[j], sum[i][j]);
    }
}

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void product(
    __global const float *restrict x, __global const float *restrict parameters, const int weight_at, const int bias_at,
    __global const float *restrict activated, const float scale, __global float *restrict y, const int rows)
{
    __local float a[SLICE][TILE + 1], b[SLICE][TILE + 1];
    const int tx = get_local_id(0), ty = get_local_id(1), item = ty * SIDE + tx;
    const int n0 = get_group_id(0) * TILE, m0 = get_group_id(1) * TILE;
    float sum[PER_ITEM][PER_ITEM];
    for (int i = 0; i < PER_ITEM; i++)
        for (int j = 0; j < PER_ITEM; j++) sum[i][j] = 0;
    for (int k0 = 0; k0 < K; k0 += SLICE) {
        for (int index = item; index < SLICE * TILE; index += SIDE * SIDE) {
            const int k = index % SLICE, m = index / SLICE;
            a[k][m] = m0 + m < rows && k0 + k < K ? x[(size_t)(m0 + m) * K + k0 + k] : 0;
        }
        for (int index = item; index < SLICE * TILE; index += SIDE * SIDE) {
#if TRANSPOSED
            const int k = index / TILE, n = index % TILE;
#else
            const int k = index % SLICE, n = index / SLICE;
#endif
            b[k][n] = n0 + n < N && k0 + k < K ? WEIGHT(k0 + k, n0 + n) : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply_slices(a, b, sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < PER_ITEM; i++) {
        const int m = m0 + ty + i * SIDE;
        for (int j = 0; j < PER_ITEM; j++) {
            const int n = n0 + tx + j * SIDE;
            if (m < rows && n < N) {
                float value = sum[i][j];
#if HAS_BIAS
                value += parameters[bias_at + n];
#endif
#if RELU
                value = fmax(value, 0.0f);
#endif
#if MASKED
                value = activated[(size_t)m * N + n] > 0 ? value * scale : 0;
#endif
                y[(size_t)m * N + n] = value;
            }
        }
    }
}

// Partial sums of x' g over chunks of CHUNK rows: parts[chunk][panel][K + 1][PANEL]. Row K is the bias gradient: x is
// extended by a column of ones.
__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void product_weights(
    __global const float *restrict x, __global const float *restrict g, __global float *restrict parts, const int rows)
{
    __local float a[SLICE][TILE + 1], b[SLICE][TILE + 1];
    const int tx = get_local_id(0), ty = get_local_id(1), item = ty * SIDE + tx;
    const int n0 = get_group_id(0) * TILE, k0 = get_group_id(1) * TILE, chunk = get_group_id(2);
    const int begin = chunk * CHUNK, stop = min(begin + CHUNK, rows);
    const int panels = (N + PANEL - 1) / PANEL;
    float sum[PER_ITEM][PER_ITEM];
    for (int i = 0; i < PER_ITEM; i++)
        for (int j = 0; j < PER_ITEM; j++) sum[i][j] = 0;
    for (int first_row = begin; first_row < stop; first_row += SLICE) {
        for (int index = item; index < SLICE * TILE; index += SIDE * SIDE) {
            const int m = index / TILE, column = index % TILE;
            const int in_range = first_row + m < stop;
            a[m][column] = !in_range || k0 + column > K ? 0
                           : k0 + column == K           ? 1
                                                        : x[(size_t)(first_row + m) * K + k0 + column];
            b[m][column] = in_range && n0 + column < N ? g[(size_t)(first_row + m) * N + n0 + column] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply_slices(a, b, sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < PER_ITEM; i++) {
        const int k = k0 + ty + i * SIDE;
        for (int j = 0; j < PER_ITEM; j++) {
            const int n = n0 + tx + j * SIDE;
            if (k <= K && n < panels * PANEL)
                parts[(((size_t)chunk * panels + n / PANEL) * (K + 1) + k) * PANEL + n % PANEL] = sum[i][j];
        }
    }
}
