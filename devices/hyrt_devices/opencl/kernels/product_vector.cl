// Matrix products for devices whose work items have wide vector registers. One work item multiplies rows of x by a
// panel of columns, two vectors wide, and accumulates ROWS x 2 vectors of sums in registers (register tiling).
//
// K, N: compile-time sizes. Panels: the right-hand matrix packed as [ceil(N / PANEL)][K][PANEL], zero-padded beyond N.

static inline void finish_row(vec left, vec right, __global const float *activated, const float scale,
                              __global float *out, const int columns)
{
#if RELU
    left = fmax(left, (vec)0);
    right = fmax(right, (vec)0);
#endif
    if (columns >= PANEL) {
#if MASKED
        left = POSITIVE(LOAD(activated), left * scale);
        right = POSITIVE(LOAD(activated + VEC), right * scale);
#endif
        STORE(left, out);
        STORE(right, out + VEC);
    } else {
        float value[PANEL];
        STORE(left, value);
        STORE(right, value + VEC);
        for (int n = 0; n < columns; n++)
#if MASKED
            out[n] = activated[n] > 0 ? value[n] * scale : 0;
#else
            out[n] = value[n];
#endif
    }
}

// Add factor * (two vectors of columns) to R rows of sums; `factor` may depend on the row i. Loops over k and m are
// unrolled four times by hand: compilers follow an unroll pragma only for some sizes, and warn about the others.
#define MULTIPLY_ADD(R, factor, columns)                                                                               \
    {                                                                                                                  \
        const vec c0 = LOAD(columns), c1 = LOAD(columns + VEC);                                                        \
        _Pragma("unroll") for (int i = 0; i < R; i++)                                                                  \
        {                                                                                                              \
            const vec v = (vec)(factor);                                                                               \
            left[i] = fma(v, c0, left[i]);                                                                             \
            right[i] = fma(v, c1, right[i]);                                                                           \
        }                                                                                                              \
    }

#define ROWS_OF(R)                                                                                                     \
    static inline void JOIN(rows_, R)(__global const float *restrict a, __global const float *restrict b,              \
                                      const vec bias0, const vec bias1, __global const float *restrict activated,      \
                                      const float scale, __global float *restrict out, const int columns)              \
    {                                                                                                                  \
        vec left[R], right[R];                                                                                         \
        _Pragma("unroll") for (int i = 0; i < R; i++)                                                                  \
        {                                                                                                              \
            left[i] = bias0;                                                                                           \
            right[i] = bias1;                                                                                          \
        }                                                                                                              \
        int k = 0;                                                                                                     \
        _Pragma("nounroll") for (; k + 4 <= K; k += 4)                                                                 \
        {                                                                                                              \
            MULTIPLY_ADD(R, a[i * K + k], b + k * PANEL)                                                               \
            MULTIPLY_ADD(R, a[i * K + k + 1], b + (k + 1) * PANEL)                                                     \
            MULTIPLY_ADD(R, a[i * K + k + 2], b + (k + 2) * PANEL)                                                     \
            MULTIPLY_ADD(R, a[i * K + k + 3], b + (k + 3) * PANEL)                                                     \
        }                                                                                                              \
        _Pragma("nounroll") for (; k < K; k++) MULTIPLY_ADD(R, a[i * K + k], b + k * PANEL)                            \
        _Pragma("unroll") for (int i = 0; i < R; i++)                                                                  \
            finish_row(left[i], right[i], activated + (size_t)i * N, scale, out + (size_t)i * N, columns);             \
    }

ROWS_OF(ROWS)
ROWS_OF(2)
ROWS_OF(1)

// y[rows, N] = x[rows, K] B + bias, followed by a ReLU (RELU) or by the gradient of a ReLU (MASKED).
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void product(
    __global const float *restrict x, __global const float *restrict panels, __global const float *restrict parameters,
    const int bias_at, __global const float *restrict activated, const float scale, __global float *restrict y,
    const int rows)
{
    const int first_column = get_group_id(0) * PANEL;
    const int columns = min(N - first_column, PANEL);
    const int stop = min((int)(get_group_id(1) + 1) * GRAIN, rows);
    __global const float *b = panels + (size_t)first_column * K;
    vec bias0 = 0, bias1 = 0;
#if HAS_BIAS
    float padded[PANEL];
    for (int n = 0; n < PANEL; n++) padded[n] = n < columns ? parameters[bias_at + first_column + n] : 0;
    bias0 = LOAD(padded);
    bias1 = LOAD(padded + VEC);
#endif
#if MASKED
#define ACTIVATED(r) (activated + (size_t)(r) * N + first_column)
#else
#define ACTIVATED(r) x
#endif
#define MULTIPLY(R)                                                                                                    \
    JOIN(rows_, R)(x + (size_t)r * K, b, bias0, bias1, ACTIVATED(r), scale, y + (size_t)r * N + first_column, columns)
    int r = get_group_id(1) * GRAIN;
    for (; r + ROWS <= stop; r += ROWS) MULTIPLY(ROWS);
    for (; r + 2 <= stop; r += 2) MULTIPLY(2);
    if (r < stop) MULTIPLY(1);
}

// Sums of outer products x[m]' g[m] for R rows of the result, added to its current values unless `overwrite` is set.
#define OUTER_OF(R)                                                                                                    \
    static inline void JOIN(outer_, R)(__global const float *restrict x, const float *restrict g, const int count,     \
                                       const int overwrite, __global float *restrict part)                             \
    {                                                                                                                  \
        vec left[R], right[R];                                                                                         \
        _Pragma("unroll") for (int i = 0; i < R; i++)                                                                  \
        {                                                                                                              \
            left[i] = overwrite ? (vec)0 : LOAD(part + i * PANEL);                                                     \
            right[i] = overwrite ? (vec)0 : LOAD(part + i * PANEL + VEC);                                              \
        }                                                                                                              \
        int m = 0;                                                                                                     \
        _Pragma("nounroll") for (; m + 4 <= count; m += 4)                                                             \
        {                                                                                                              \
            MULTIPLY_ADD(R, x[(size_t)m * K + i], g + m * PANEL)                                                       \
            MULTIPLY_ADD(R, x[(size_t)(m + 1) * K + i], g + (m + 1) * PANEL)                                           \
            MULTIPLY_ADD(R, x[(size_t)(m + 2) * K + i], g + (m + 2) * PANEL)                                           \
            MULTIPLY_ADD(R, x[(size_t)(m + 3) * K + i], g + (m + 3) * PANEL)                                           \
        }                                                                                                              \
        _Pragma("nounroll") for (; m < count; m++) MULTIPLY_ADD(R, x[(size_t)m * K + i], g + m * PANEL)                \
        _Pragma("unroll") for (int i = 0; i < R; i++)                                                                  \
        {                                                                                                              \
            STORE(left[i], part + i * PANEL);                                                                          \
            STORE(right[i], part + i * PANEL + VEC);                                                                   \
        }                                                                                                              \
    }

OUTER_OF(ROWS)
OUTER_OF(4)
OUTER_OF(1)

// Partial sums of x' g over chunks of CHUNK rows: parts[chunk][panel][K + 1][PANEL]; the last row is the sum of the
// rows of g (the bias gradient). Rows of g may be read up to PANEL - 1 floats beyond their end; its buffer is padded
// accordingly.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void product_weights(
    __global const float *restrict x, __global const float *restrict g, __global float *restrict parts, const int rows)
{
    const int panel = get_group_id(0), chunk = get_group_id(1);
    const int begin = chunk * CHUNK, stop = min(begin + CHUNK, rows);
    __global float *part = parts + ((size_t)chunk * get_num_groups(0) + panel) * (K + 1) * PANEL;
    g += panel * PANEL;
    // Pack the panel's columns of g contiguously, once: strided rows would map to few sets of the L1 cache.
    float packed[PANEL * SUBCHUNK] __attribute__((aligned(64)));
    vec b0 = 0, b1 = 0;
    for (int m = begin; m < stop; m += SUBCHUNK) {
        const int count = min(SUBCHUNK, stop - m), overwrite = m == begin;
        __global const float *rows_x = x + (size_t)m * K, *rows_g = g + (size_t)m * N;
        for (int i = 0; i < count; i++) {
            const vec g0 = LOAD(rows_g + (size_t)i * N), g1 = LOAD(rows_g + (size_t)i * N + VEC);
            STORE(g0, packed + i * PANEL);
            STORE(g1, packed + i * PANEL + VEC);
            b0 += g0;
            b1 += g1;
        }
        int k = 0;
        for (; k + ROWS <= K; k += ROWS) JOIN(outer_, ROWS)(rows_x + k, packed, count, overwrite, part + k * PANEL);
        for (; k + 4 <= K; k += 4) outer_4(rows_x + k, packed, count, overwrite, part + k * PANEL);
        for (; k < K; k++) outer_1(rows_x + k, packed, count, overwrite, part + k * PANEL);
    }
    STORE(b0, part + K * PANEL);
    STORE(b1, part + K * PANEL + VEC);
}
