// Counter-based random generator, bit-identical to hyrt.runtime.rng.
#define GOLDEN 0x9E3779B97F4A7C15UL

static inline ulong mix64(ulong z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9UL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBUL;
    return z ^ (z >> 31);
}

static inline ulong4 mix64_of_4(ulong4 z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9UL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBUL;
    return z ^ (z >> 31);
}

static inline ulong vertex_stream(const ulong key, const ulong vertex) { return mix64(key + (vertex + 1) * GOLDEN); }

static inline ulong random_bits(const ulong stream, const ulong counter) {
    return mix64(stream + (counter + 1) * GOLDEN);
}

static inline ulong random_below(const ulong bits, const ulong bound) { return ((bits >> 32) * bound) >> 32; }
