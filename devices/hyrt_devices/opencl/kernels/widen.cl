// Convert quantized rows to float32, VEC values at a time.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void widen(
    __global const code *restrict x, __global const float *restrict row_scales,
    __global const float *restrict column_scales, __global float *restrict out, const int rows)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        __global const code *x_row = x + (size_t)i * WIDTH;
        __global float *out_row = out + (size_t)i * WIDTH;
        for (int k = 0; k < WIDTH; k += VEC) {
            const int column = min(k, WIDTH - VEC);
            STORE(COLUMN_SCALE(column) ROW_SCALE(i) LOAD_FLOATS(x_row + column), out_row + column);
        }
    }
}
