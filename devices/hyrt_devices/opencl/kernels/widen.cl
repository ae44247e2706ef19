// Rows in a narrow format as float32, VEC numbers at a time.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void widen(
    __global const code *restrict x, __global const float *restrict row_scales,
    __global const float *restrict column_scales, __global float *restrict out, const int rows)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        __global const code *from = x + (size_t)i * WIDTH;
        __global float *to = out + (size_t)i * WIDTH;
        for (int k = 0; k < WIDTH; k += VEC) {
            const int at = min(k, WIDTH - VEC);
            STORE(COLUMN_SCALE(at) ROW_SCALE(i) NUMBERS(from + at), to + at);
        }
    }
}
