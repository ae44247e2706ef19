// Neighbours of given vertices, uniformly without replacement, equal to hyrt.sampling.kernels.draw_neighbors: Floyd's
// algorithm up to FLOYD_LIMIT of them, selection sampling beyond. ID: type of the vertex ids.
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
        __global ID *to = neighbors + offsets[i];
        const int count = offsets[i + 1] - offsets[i];
        if (count == degree) {
            for (int k = 0; k < count; k++) to[k] = row[k];
            continue;
        }
        const ulong stream = vertex_stream(key, (ulong)vertices[i]);
        if (count <= FLOYD_LIMIT) {
            long taken[FLOYD_LIMIT];
            for (int k = 0; k < count; k++) {
                const long last = degree - count + k;
                long choice = (long)below(random_bits(stream, k), (ulong)(last + 1));
                int known = 0;
                for (int other = 0; other < k; other++) known |= taken[other] == choice;
                taken[k] = known ? last : choice;
            }
            for (int k = 0; k < count; k++) to[k] = row[taken[k]];
        } else {
            int k = 0;
            for (long candidate = 0; candidate < degree && k < count; candidate++)
                if (below(random_bits(stream, (ulong)candidate), (ulong)(degree - candidate)) < (ulong)(count - k))
                    to[k++] = row[candidate];
        }
    }
}
