// Zero elements with probability threshold / 65536 and scale the rest: 16 bits a column, four columns a draw. A mask is
// a function of (key, vertex, column). `out` may be x.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void drop(
    __global const float *x, __global const long *restrict vertices, const ulong key, const int threshold,
    const float scale, __global float *out, const int rows, const int width)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        const ulong stream = vertex_stream(key, (ulong)vertices[i]);
        __global const float *from = x + (size_t)i * width;
        __global float *to = out + (size_t)i * width;
        int k = 0;
#ifdef __ENDIAN_LITTLE__
        for (; k + 16 <= width; k += 16) {
            const ulong4 counter = (ulong4)(1, 2, 3, 4) + (ulong)(k / 4);
            const ushort16 bits = as_ushort16(mix64_of_4(stream + counter * GOLDEN));
            const float16 kept = vload16(0, from + k) * scale;
            vstore16(select((float16)0, kept, convert_int16(bits) >= (int16)threshold), 0, to + k);
        }
#endif
        for (; k + 4 <= width; k += 4) {
            const ulong bits = random_bits(stream, k / 4);
            for (int lane = 0; lane < 4; lane++)
                to[k + lane] = (int)((bits >> (16 * lane)) & 0xFFFF) >= threshold ? from[k + lane] * scale : 0;
        }
        if (k < width) {
            const ulong bits = random_bits(stream, k / 4);
            for (int lane = 0; k + lane < width; lane++)
                to[k + lane] = (int)((bits >> (16 * lane)) & 0xFFFF) >= threshold ? from[k + lane] * scale : 0;
        }
    }
}

// The gradient of a ReLU and of the dropout that scaled its result by `scale`. `out` may be grad.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void mask(
    __global const float *grad, __global const float *activated, const float scale, __global float *out, const int rows,
    const int width)
{
    const size_t stop = min((size_t)(get_global_id(0) + 1) * GRAIN, (size_t)rows) * width;
    for (size_t i = (size_t)get_global_id(0) * GRAIN * width; i < stop; i++)
        out[i] = activated[i] > 0 ? grad[i] * scale : 0;
}
