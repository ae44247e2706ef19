// Sample neighbours of the given vertices uniformly without replacement, with the same results as
// hyrt.sampling.kernels.sample_neighbors: Floyd's algorithm up to FLOYD_LIMIT samples, selection sampling beyond. ID:
// type of the vertex ids. EDGE_ID: type of the graph's stored edges.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void pick(
    __global const long *restrict indptr, __global const EDGE_ID *restrict indices,
    __global const ID *restrict vertices, __global const int *restrict offsets, const ulong key,
    __global ID *restrict neighbors, const int count_vertices)
{
    const int stop = min((int)(get_global_id(0) + 1) * GRAIN, count_vertices);
    for (int i = get_global_id(0) * GRAIN; i < stop; i++) {
        const long first = indptr[vertices[i]];
        const long degree = indptr[vertices[i] + 1] - first;
        __global const EDGE_ID *row = indices + first;
        __global ID *out_row = neighbors + offsets[i];
        const int count = offsets[i + 1] - offsets[i];
        if (count == degree) {
            for (int k = 0; k < count; k++) out_row[k] = row[k];
            continue;
        }
        const ulong stream = vertex_stream(key, (ulong)vertices[i]);
        if (count <= FLOYD_LIMIT) {
            long samples[FLOYD_LIMIT];
            for (int k = 0; k < count; k++) {
                const long last = degree - count + k;
                long sample = (long)random_below(random_bits(stream, k), (ulong)(last + 1));
                int is_duplicate = 0;
                for (int j = 0; j < k; j++) is_duplicate |= samples[j] == sample;
                samples[k] = is_duplicate ? last : sample;
            }
            for (int k = 0; k < count; k++) out_row[k] = row[samples[k]];
        } else {
            int k = 0;
            for (long candidate = 0; candidate < degree && k < count; candidate++)
                if (random_below(random_bits(stream, (ulong)candidate), (ulong)(degree - candidate)) <
                    (ulong)(count - k))
                    out_row[k++] = row[candidate];
        }
    }
}
