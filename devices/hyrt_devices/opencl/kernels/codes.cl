// Rows in a narrow format as numbers. FORMAT: 0 float32, 1 float16, 2 bfloat16, 3 int8, whose codes are still to be
// multiplied with the scale of their row or column (ROW_SCALED, COLUMN_SCALED). Goes with `vectors`.
#if FORMAT == 0
typedef float code;
#define NUMBERS(p) LOAD(p)
#elif FORMAT == 1
typedef half code;
#if VEC == 1
#define NUMBERS(p) vload_half(0, p)
#else
#define NUMBERS(p) JOIN(vload_half, VEC)(0, p)
#endif
#elif FORMAT == 2
typedef ushort code;
#if VEC == 1
#define NUMBERS(p) as_float((uint)*(p) << 16)
#else
#define NUMBERS(p) JOIN(as_float, VEC)(JOIN(convert_uint, VEC)(JOIN(vload, VEC)(0, p)) << 16)
#endif
#else
typedef char code;
#if VEC == 1
#define NUMBERS(p) ((float)*(p))
#else
#define NUMBERS(p) JOIN(convert_float, VEC)(JOIN(vload, VEC)(0, p))
#endif
#endif
#if ROW_SCALED
#define ROW_SCALE(j) row_scales[j] *
#else
#define ROW_SCALE(j)
#endif
#if COLUMN_SCALED
#define COLUMN_SCALE(at) LOAD(column_scales + (at)) *
#else
#define COLUMN_SCALE(at)
#endif
