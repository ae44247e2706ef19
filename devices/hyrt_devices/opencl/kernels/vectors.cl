// Vectors of VEC floats over rows of any width >= VEC: the last vector of a row overlaps the previous one, which avoids
// scalar tails. Kernels write a pure function of their inputs, so that an element written twice gets equal values;
// chunk.cl, which accumulates, adds the shared columns only once.
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if VEC == 1
typedef float vec;
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#define POSITIVE(a, v) ((a) > 0 ? (v) : 0.0f)
#else
typedef JOIN(float, VEC) vec;
#define LOAD(p) JOIN(vload, VEC)(0, p)
#define STORE(v, p) JOIN(vstore, VEC)(v, 0, p)
#define POSITIVE(a, v) select((vec)0, v, (a) > (vec)0)
#endif
