// Assemble a mini-batch's rows as float32: place p >= 0 is row p of the device's feature cache, place -1 - k is row k
// of the sent rows.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void join(
    __global const int *restrict places, __global const code *restrict cached,
    __global const float *restrict cached_scales, __global const code *restrict sent,
    __global const float *restrict sent_scales, __global const float *restrict column_scales,
    __global float *restrict out, const int rows)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        const int place = places[i];
        const int j = place < 0 ? -1 - place : place;
        __global const code *x_row = (place < 0 ? sent : cached) + (size_t)j * WIDTH;
        __global const float *row_scales = place < 0 ? sent_scales : cached_scales;
        __global float *out_row = out + (size_t)i * WIDTH;
        for (int k = 0; k < WIDTH; k += VEC) {
            const int column = min(k, WIDTH - VEC);
            STORE(COLUMN_SCALE(column) ROW_SCALE(j) LOAD_FLOATS(x_row + column), out_row + column);
        }
    }
}
