// Conversion of quantized rows to float. FORMAT: 0 float32, 1 float16, 2 bfloat16, 3 int8; int8 values must afterwards
// be multiplied by the scale of their row or column (ROW_SCALED, COLUMN_SCALED). Requires vectors.cl.
#if FORMAT == 0
typedef float code;
#define LOAD_FLOATS(p) LOAD(p)
#elif FORMAT == 1
typedef half code;
#if VEC == 1
#define LOAD_FLOATS(p) vload_half(0, p)
#else
#define LOAD_FLOATS(p) JOIN(vload_half, VEC)(0, p)
#endif
#elif FORMAT == 2
typedef ushort code;
#if VEC == 1
#define LOAD_FLOATS(p) as_float((uint)*(p) << 16)
#else
#define LOAD_FLOATS(p) JOIN(as_float, VEC)(JOIN(convert_uint, VEC)(JOIN(vload, VEC)(0, p)) << 16)
#endif
#else
typedef char code;
#if VEC == 1
#define LOAD_FLOATS(p) ((float)*(p))
#else
#define LOAD_FLOATS(p) JOIN(convert_float, VEC)(JOIN(vload, VEC)(0, p))
#endif
#endif
#if ROW_SCALED
#define ROW_SCALE(j) row_scales[j] *
#else
#define ROW_SCALE(j)
#endif
#if COLUMN_SCALED
#define COLUMN_SCALE(column) LOAD(column_scales + (column)) *
#else
#define COLUMN_SCALE(column)
#endif
