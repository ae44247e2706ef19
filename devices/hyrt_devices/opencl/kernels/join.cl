// A mini-batch's rows as float32: those at a place of at least 0 are kept on the device, the one at -1 - k was sent as
// the one at k.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void join(
    __global const int *restrict places, __global const code *restrict kept,
    __global const float *restrict kept_scales, __global const code *restrict sent,
    __global const float *restrict sent_scales, __global const float *restrict column_scales,
    __global float *restrict out, const int rows)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        const int place = places[i];
        const int j = place < 0 ? -1 - place : place;
        __global const code *from = (place < 0 ? sent : kept) + (size_t)j * WIDTH;
        __global const float *row_scales = place < 0 ? sent_scales : kept_scales;
        __global float *to = out + (size_t)i * WIDTH;
        for (int k = 0; k < WIDTH; k += VEC) {
            const int at = min(k, WIDTH - VEC);
            STORE(COLUMN_SCALE(at) ROW_SCALE(j) NUMBERS(from + at), to + at);
        }
    }
}
