// Packing of weights into panels, and reduction of partial sums to weight gradients; BLOCK rows per work item, PANEL
// columns.

// panels[p][r][j] = w[r * row_step + (PANEL p + j) * column_step], zero-padded beyond `columns`.
__kernel __attribute__((reqd_work_group_size(1, ITEMS, 1))) void pack(
    __global const float *restrict parameters, const int weight_at, const int rows, const int columns,
    const int row_step, const int column_step, __global float *restrict panels)
{
    const int p = get_global_id(0), stop = min((int)(get_global_id(1) + 1) * BLOCK, rows);
    const int count = min(columns - p * PANEL, PANEL);
    __global const float *w = parameters + weight_at + (size_t)p * PANEL * column_step;
    for (int r = get_global_id(1) * BLOCK; r < stop; r++) {
        __global float *panel_row = panels + ((size_t)p * rows + r) * PANEL;
        for (int j = 0; j < PANEL; j++)
            panel_row[j] = j < count ? w[(size_t)r * row_step + (size_t)j * column_step] : 0;
    }
}

// Sum parts[chunk][panel][k_rows + 1][PANEL] over the chunks, in order, into gradients[weight_at + n * k_rows + k], and
// the last row into gradients[bias_at + n] if bias_at is not negative. With `add`, accumulate onto existing gradients.
__kernel __attribute__((reqd_work_group_size(1, ITEMS, 1))) void reduce_parts(
    __global const float *restrict parts, const int chunks, const int panels, const int k_rows, const int n_columns,
    __global float *restrict gradients, const int weight_at, const int bias_at, const int add)
{
    const int p = get_global_id(0), k0 = get_global_id(1) * BLOCK;
    const int columns = min(n_columns - p * PANEL, PANEL), count = min(k_rows + 1 - k0, BLOCK);
    if (count <= 0) return;
    float sum[BLOCK][PANEL];
    for (int k = 0; k < count; k++)
        for (int n = 0; n < PANEL; n++) sum[k][n] = 0;
    for (int c = 0; c < chunks; c++) {
        __global const float *part = parts + (((size_t)c * panels + p) * (k_rows + 1) + k0) * PANEL;
        for (int k = 0; k < count; k++)
            for (int n = 0; n < PANEL; n++) sum[k][n] += part[k * PANEL + n];
    }
    const int weight_rows = min(count, k_rows - k0);
    for (int n = 0; n < columns; n++) {
        __global float *out = gradients + weight_at + (size_t)(p * PANEL + n) * k_rows + k0;
        for (int k = 0; k < weight_rows; k++) out[k] = add ? out[k] + sum[k][n] : sum[k][n];
    }
    if (bias_at >= 0 && weight_rows < count)
        for (int n = 0; n < columns; n++) {
            __global float *out = gradients + bias_at + p * PANEL + n;
            *out = add ? *out + sum[weight_rows][n] : sum[weight_rows][n];
        }
}
