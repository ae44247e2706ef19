// Neighbour sampling, bit-equal to hyrt/sampling/kernels.py. HYRT_ID is the type of vertex ids, HYRT_INDEX the type of
// the graph's stored edges. Only integer atomics are used: the result does not depend on the thread order.

typedef unsigned long long u64;

// Same generator as hyrt/runtime/rng.py.
#define GOLDEN 0x9E3779B97F4A7C15ull
// Above this fan-out, searching the list of sampled positions costs more than a pass over the neighbours.
#define FLOYD_LIMIT 64

__device__ __forceinline__ u64 mix64(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ u64 random_bits(u64 stream, u64 counter) {
    return mix64(stream + (counter + 1) * GOLDEN);
}

__device__ __forceinline__ u64 random_below(u64 bits, u64 bound) { return ((bits >> 32) * bound) >> 32; }

__device__ __forceinline__ long long thread_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

// Degree and number of sampled neighbours of each vertex; fanout -1 samples all neighbours.
extern "C" __global__ void count_neighbors(const long long* indptr, const HYRT_ID* vertices, long long num, int fanout,
                                           int* degrees, int* counts) {
    long long i = thread_index();
    if (i >= num) return;
    long long degree = indptr[vertices[i] + 1] - indptr[vertices[i]];
    degrees[i] = (int)degree;
    counts[i] = fanout < 0 || degree < fanout ? (int)degree : fanout;
}

// Edge positions of the sampled neighbours, for vertices with more neighbours than samples: Floyd's algorithm for small
// fan-outs, selection sampling for large fan-outs.
extern "C" __global__ void pick_positions(const long long* indptr, const HYRT_ID* vertices, const int* offsets,
                                          long long num, u64 key, long long* positions) {
    long long i = thread_index();
    if (i >= num) return;
    long long first = indptr[vertices[i]];
    long long degree = indptr[vertices[i] + 1] - first;
    int begin = offsets[i];
    int count = offsets[i + 1] - begin;
    if (count == degree) return;
    long long* samples = positions + begin;
    u64 stream = mix64(key + ((u64)vertices[i] + 1) * GOLDEN);
    if (count <= FLOYD_LIMIT) {
        for (int k = 0; k < count; k++) {
            long long last = degree - count + k;
            long long pick = first + (long long)random_below(random_bits(stream, k), last + 1);
            for (int j = 0; j < k; j++) {
                if (samples[j] == pick) {
                    pick = first + last;
                    break;
                }
            }
            samples[k] = pick;
        }
    } else {
        int k = 0;
        for (long long candidate = 0; candidate < degree && k < count; candidate++) {
            if (random_below(random_bits(stream, candidate), degree - candidate) < (u64)(count - k)) {
                samples[k] = first + candidate;
                k++;
            }
        }
    }
}

// One thread per edge, so that vertices of very high degree do not cause load imbalance.
extern "C" __global__ void read_neighbors(const long long* indptr, const HYRT_INDEX* indices, const HYRT_ID* vertices,
                                          const int* offsets, long long num, const long long* positions,
                                          long long num_edges, HYRT_ID* neighbors) {
    long long e = thread_index();
    if (e >= num_edges) return;
    long long low = 0, high = num - 1;  // Binary search for the last vertex whose offset is at most e.
    while (low < high) {
        long long middle = (low + high + 1) / 2;
        if (offsets[middle] <= e) low = middle;
        else high = middle - 1;
    }
    long long first = indptr[vertices[low]];
    long long degree = indptr[vertices[low] + 1] - first;
    bool all = offsets[low + 1] - offsets[low] == degree;
    neighbors[e] = (HYRT_ID)indices[all ? first + (e - offsets[low]) : positions[e]];
}

// First occurrence of each vertex of a block; destinations precede edges. `first` has one entry per vertex of the
// graph, initially INT_MAX.
extern "C" __global__ void find_first(const HYRT_ID* vertices, long long num, const HYRT_ID* neighbors,
                                      long long num_edges, int* first) {
    long long i = thread_index();
    if (i >= num + num_edges) return;
    atomicMin(&first[i < num ? vertices[i] : neighbors[i - num]], (int)i);
}

// is_new[e] = 1 if edge e is the first occurrence of its source, otherwise 0.
extern "C" __global__ void mark_new(const HYRT_ID* neighbors, long long num, long long num_edges, const int* first,
                                    int* is_new) {
    long long e = thread_index();
    if (e >= num_edges) return;
    is_new[e] = first[neighbors[e]] == num + e;
}

// Assign source numbers, in order of first occurrence, from `rank`, the inclusive prefix sums of `is_new`.
extern "C" __global__ void number_sources(const HYRT_ID* neighbors, long long num, long long num_edges,
                                          const int* first, const int* rank, HYRT_ID* sources, int* columns) {
    long long e = thread_index();
    if (e >= num_edges) return;
    int position = first[neighbors[e]];
    int column = position < num ? position : (int)num + rank[position - num] - 1;
    columns[e] = column;
    if (position == num + e) sources[column] = neighbors[e];
}
