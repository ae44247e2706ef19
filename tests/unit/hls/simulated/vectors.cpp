// Operations of hls::vector on arrays, for its tests.
#include <cstdint>

#include "hls_vector.h"

using Word = hls::vector<float, 16>;
static_assert(sizeof(Word) == 64 && alignof(Word) == 64, "a word is one 512 bit beat");
static_assert(sizeof(hls::vector<float, 3>) == 12 && alignof(hls::vector<float, 3>) == 4, "no padding");
static_assert(alignof(hls::vector<std::int32_t, 6>) == 8, "24 bytes are aligned to 8");
static_assert(Word::size() == 16, "elements");

extern "C" {

void operate(const Word *a, const Word *b, float scalar, Word *out) {
    out[0] = *a + *b;
    out[1] = *a - *b;
    out[2] = *a * *b;
    out[3] = *a / *b;
    out[4] = -*a;
    out[5] = *a * scalar;
    out[6] = scalar - *a;
    out[7] = scalar;
    out[8] = *a;
    out[8] += *b;
    out[9] = *a;
    out[9] -= scalar;
    out[10] = *a;
    (out[10] *= *b) += *a;
    out[11] = *a;
    out[11] /= *b;
    out[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int i = 0; i < 16; ++i)
        out[13][i] = (*a)[15 - i];
}

// The product is rounded before the addition: no fused multiply-add.
void multiply_add(const Word *a, const Word *b, const Word *c, Word *out) {
    *out = *a * *b + *c;
}

void integers(const std::int32_t *a, const std::int32_t *b, std::int32_t *out) {
    hls::vector<std::int32_t, 5> left, right;
    for (int i = 0; i < 5; ++i) {
        left[i] = a[i];
        right[i] = b[i];
    }
    const hls::vector<std::int32_t, 5> result = left * right - 1;
    for (int i = 0; i < 5; ++i)
        out[i] = result[i];
}

} // extern "C"
