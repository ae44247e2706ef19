// Feature rows of a mini-batch, read from sent rows, from the device's feature cache, or from mapped host memory. One
// warp reads one row, so that accesses are coalesced and every transaction on the link is full. HYRT_ID is the type of
// `places`, HYRT_FORMAT the row format: 0 float32, 1 float16, 2 bfloat16, 3 int8.

__device__ __forceinline__ float half_to_float(unsigned short half) {
    // Convert the exponent bias from 15 to 127 by a multiplication, which is exact and also handles subnormals.
    unsigned int bits = (unsigned int)(half & 0x7FFF) << 13;
    unsigned int sign = (unsigned int)(half & 0x8000) << 16;
    if ((half & 0x7C00) == 0x7C00) return __uint_as_float(bits | 0x7F800000u | sign);
    return __uint_as_float(__float_as_uint(__uint_as_float(bits) * 5.192296858534828e33f) | sign);
}

#if HYRT_FORMAT == 0
typedef float code;
__device__ __forceinline__ float to_float(code value) { return value; }
#elif HYRT_FORMAT == 1
typedef unsigned short code;
__device__ __forceinline__ float to_float(code value) { return half_to_float(value); }
#elif HYRT_FORMAT == 2
typedef unsigned short code;
__device__ __forceinline__ float to_float(code value) { return __uint_as_float((unsigned int)value << 16); }
#else
typedef signed char code;
__device__ __forceinline__ float to_float(code value) { return (float)value; }
#endif

struct Row {
    const code* codes;
    float scale;
};

// Row j of a mini-batch: cached row places[j] if that is not negative, otherwise sent row -1 - places[j]. If `places`
// is null, sent row j.
__device__ __forceinline__ Row row_of(long long j, const code* sent, const float* sent_scales, const code* cached,
                                      const float* cached_scales, const HYRT_ID* places, int width) {
    long long place = places ? (long long)places[j] : -1 - j;
    bool is_cached = place >= 0;
    long long index = is_cached ? place : -1 - place;
    const float* scales = is_cached ? cached_scales : sent_scales;
    return {(is_cached ? cached : sent) + index * width, scales ? scales[index] : 1.0f};
}

// out[i] = row i as float32.
extern "C" __global__ void widen_rows(const code* sent, const float* sent_scales, const code* cached,
                                      const float* cached_scales, const HYRT_ID* places, const float* column_scales,
                                      float* out, long long num, int width) {
    long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num) return;
    Row row = row_of(i, sent, sent_scales, cached, cached_scales, places, width);
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float value = row.scale * to_float(row.codes[k]);
        out[i * width + k] = column_scales ? value * column_scales[k] : value;
    }
}

// `aggregate` of aggregate.cu over rows in HYRT_FORMAT.
extern "C" __global__ void aggregate_rows(const int* indptr, const int* columns, const code* sent,
                                          const float* sent_scales, const code* cached, const float* cached_scales,
                                          const HYRT_ID* places, const float* column_scales, const float* row_scale,
                                          const float* source_scale, const float* weights, const float* self_scale,
                                          float* out, int num_dst, int width, int out_width, int sum_at,
                                          int self_at) {
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num_dst) return;
    float* out_row = out + (long long)i * out_width;
    int first = indptr[i], end = indptr[i + 1];
    Row self_row = row_of(i, sent, sent_scales, cached, cached_scales, places, width);
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float total = 0;
        for (int e = first; e < end; e++) {
            int j = columns[e];
            Row row = row_of(j, sent, sent_scales, cached, cached_scales, places, width);
            float factor = row.scale;
            if (source_scale) factor *= source_scale[j];
            if (weights) factor *= weights[e];
            total += factor * to_float(row.codes[k]);
        }
        float column_scale = column_scales ? column_scales[k] : 1.0f;
        float self_value = self_row.scale * to_float(self_row.codes[k]);
        total *= row_scale[i];
        if (self_scale) total += self_scale[i] * self_value;
        out_row[sum_at + k] = total * column_scale;
        if (self_at >= 0) out_row[self_at + k] = self_value * column_scale;
    }
}

// `aggregate_max` of aggregate.cu over rows in HYRT_FORMAT, without a gradient. Column scales are positive.
extern "C" __global__ void aggregate_rows_max(const int* indptr, const int* columns, const code* sent,
                                              const float* sent_scales, const code* cached,
                                              const float* cached_scales, const HYRT_ID* places,
                                              const float* column_scales, float* out, int num_dst, int width,
                                              int out_width, int sum_at, int self_at) {
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num_dst) return;
    float* out_row = out + (long long)i * out_width;
    int first = indptr[i], end = indptr[i + 1];
    Row self_row = row_of(i, sent, sent_scales, cached, cached_scales, places, width);
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float best = 0;
        for (int e = first; e < end; e++) {
            Row row = row_of(columns[e], sent, sent_scales, cached, cached_scales, places, width);
            float value = row.scale * to_float(row.codes[k]);
            if (e == first || value > best) best = value;
        }
        float column_scale = column_scales ? column_scales[k] : 1.0f;
        out_row[sum_at + k] = best * column_scale;
        if (self_at >= 0) out_row[self_at + k] = self_row.scale * to_float(self_row.codes[k]) * column_scale;
    }
}
