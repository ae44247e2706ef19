// Rows of a feature matrix, read straight from the host memory it lies in: a warp reads a row, so that every transaction
// on the link is full. HYRT_ID is the type of vertex ids.

__device__ __forceinline__ float widened(unsigned short half) {
    // The exponent is moved from a bias of 15 to one of 127 by a product, which is exact and takes subnormals along.
    unsigned int bits = (unsigned int)(half & 0x7FFF) << 13;
    unsigned int sign = (unsigned int)(half & 0x8000) << 16;
    if ((half & 0x7C00) == 0x7C00) return __uint_as_float(bits | 0x7F800000u | sign);
    return __uint_as_float(__float_as_uint(__uint_as_float(bits) * 5.192296858534828e33f) | sign);
}

extern "C" __global__ void gather_float(const float* x, const HYRT_ID* rows, float* out, long long num, int width) {
    long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num) return;
    const float* from = x + (long long)rows[i] * width;
    for (int k = threadIdx.x; k < width; k += blockDim.x) out[i * width + k] = from[k];
}

// From the 16 bits of halves.
extern "C" __global__ void gather_half(const unsigned short* x, const HYRT_ID* rows, float* out, long long num,
                                       int width) {
    long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= num) return;
    const unsigned short* from = x + (long long)rows[i] * width;
    for (int k = threadIdx.x; k < width; k += blockDim.x) out[i * width + k] = widened(from[k]);
}
