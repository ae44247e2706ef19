// Zero elements with probability threshold / 65536 and scale the rest. A column uses 16 random bits, so that one 64-bit
// draw covers four columns. The mask is a function of (key, vertex, column). `out` may alias x.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void drop(
    __global const float *x, __global const long *restrict vertices, const ulong key, const int threshold,
    const float scale, __global float *out, const int rows, const int width)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, rows);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        const ulong stream = vertex_stream(key, (ulong)vertices[i]);
        __global const float *x_row = x + (size_t)i * width;
        __global float *out_row = out + (size_t)i * width;
        int k = 0;
#ifdef __ENDIAN_LITTLE__
        for (; k + 16 <= width; k += 16) {
            const ulong4 counter = (ulong4)(1, 2, 3, 4) + (ulong)(k / 4);
            const ushort16 bits = as_ushort16(mix64_of_4(stream + counter * GOLDEN));
            const float16 scaled = vload16(0, x_row + k) * scale;
            vstore16(select((float16)0, scaled, convert_int16(bits) >= (int16)threshold), 0, out_row + k);
        }
#endif
        for (; k + 4 <= width; k += 4) {
            const ulong bits = random_bits(stream, k / 4);
            for (int lane = 0; lane < 4; lane++)
                out_row[k + lane] = (int)((bits >> (16 * lane)) & 0xFFFF) >= threshold ? x_row[k + lane] * scale : 0;
        }
        if (k < width) {
            const ulong bits = random_bits(stream, k / 4);
            for (int lane = 0; k + lane < width; lane++)
                out_row[k + lane] = (int)((bits >> (16 * lane)) & 0xFFFF) >= threshold ? x_row[k + lane] * scale : 0;
        }
    }
}

// Gradient of a ReLU and of the dropout that scaled its output by `scale`. `out` may alias grad.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void mask(
    __global const float *grad, __global const float *activated, const float scale, __global float *out, const int rows,
    const int width)
{
    const size_t stop = min((size_t)(get_global_id(0) + 1) * GRAIN, (size_t)rows) * width;
    for (size_t i = (size_t)get_global_id(0) * GRAIN * width; i < stop; i++)
        out[i] = activated[i] > 0 ? grad[i] * scale : 0;
}
