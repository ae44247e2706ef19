"""Differences between OpenCL C and CUDA C++ in generated edge loops."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.nn.fused.edge_loop import EdgeLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiling:
    """Division of a loop among the threads of a device. Equal tilings give equal orders of sums."""

    lanes: int
    """Number of threads that share a row; a power of two."""
    vector: int
    """Number of columns per vector; a power of two that divides the width of a head, and 1 in CUDA."""
    slots: int
    """Number of vectors of each value that a thread holds."""
    grain: int
    """Number of rows that a thread group computes one after the other."""

    @property
    def columns(self) -> int:
        """Return the number of columns that a thread group computes at a time."""
        return self.lanes * self.vector * self.slots


def choose_tiling(loop: EdgeLoop, *, lanes: int, vector: int, slots: int, grain: int) -> LoopTiling:
    """Choose the tiling of a loop for a device with the given maximum `lanes`, `vector` and `slots`.

    If a head cannot be split, it may need more slots. `grain` is the number of rows per thread group.
    """
    width = loop.form.width
    while width % vector:
        vector //= 2
    vectors = width // vector
    lanes = min(lanes, 1 << (vectors - 1).bit_length())
    needed = -(-vectors // lanes)
    return LoopTiling(
        lanes=lanes, vector=vector, slots=needed if loop.is_whole else min(slots, needed), grain=grain
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """Syntax of a C dialect."""

    kernel: str
    """Keywords that begin a kernel definition."""
    memory: str
    """Address space qualifier of pointers to device memory."""
    restrict: str
    """Qualifier of pointers that have no aliases."""
    group: str
    """Expression for the index of the thread group."""
    lane: str
    """Expression for the index of a thread in its group."""
    functions: str
    """Definitions of functions for sums over lanes and for barriers between lanes."""
    scratch: str
    """Declaration of the scratch memory that these functions use in a kernel."""
    long: str
    """Name of the 64-bit integer type."""
    inline: str
    """Keywords that begin a function definition."""

    def vector_definitions(self, vector: int, real: str) -> list[str]:
        """Return the definitions of vector types and their operations."""
        if vector == 1:
            return [
                f"typedef {real} real_t;",
                "typedef real_t row_t;",
                "typedef int flags_t;",
                "#define LOAD(p) (*(p))",
                "#define LOAD_FLAGS(p) (*(p))",
                "#define STORE(v, p) (*(p) = (v))",
                "#define STORE_FLAGS(v, p) (*(p) = (v))",
                "#define OVER(v) (v)",
            ]
        lines = [
            f"typedef {real} real_t;",
            f"typedef {real}{vector} row_t;",
            f"typedef int{vector} flags_t;",
            f"#define LOAD(p) vload{vector}(0, p)",
            f"#define LOAD_FLAGS(p) vload{vector}(0, p)",
            f"#define STORE(v, p) vstore{vector}(v, 0, p)",
            f"#define STORE_FLAGS(v, p) vstore{vector}(v, 0, p)",
            f"real_t over_{vector}(row_t v)",
            "{",
        ]
        name, half = "v", vector // 2
        while half > 1:
            lines.append(f"    const {real}{half} v{half} = {name}.lo + {name}.hi;")
            name, half = f"v{half}", half // 2
        return [*lines, f"    return {name}.x + {name}.y;", "}", f"#define OVER(v) over_{vector}(v)"]


OPENCL = Dialect(
    kernel="__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void",
    memory="__global ",
    restrict="restrict",
    group="(int)get_group_id(0)",
    lane="(int)get_local_id(0)",
    functions="""\
#if LANES > 1
real_t across(real_t v, __local real_t *scratch)
{
    const int lane = get_local_id(0);
    scratch[lane] = v;
    for (int step = LANES / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < step) scratch[lane] += scratch[lane + step];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    v = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return v;
}
#define ACROSS(v) across(v, scratch)
#define TOGETHER barrier(CLK_GLOBAL_MEM_FENCE)
#else
#define ACROSS(v) (v)
#define TOGETHER
#endif
""",
    scratch="#if LANES > 1\n    __local real_t scratch[LANES];\n#endif",
    long="long",
    inline="",
)

CUDA = Dialect(
    kernel='extern "C" __global__ void',
    memory="",
    restrict="__restrict__",
    group="(int)(blockIdx.x * blockDim.y + threadIdx.y)",
    lane="(int)threadIdx.x",
    functions="""\
#if LANES > 1
// The threads of a warp that share rows: others may have left.
__device__ __forceinline__ unsigned sharers() {
    const unsigned mine = LANES == 32 ? 0xffffffffu : (1u << (LANES & 31)) - 1u;
    return mine << (threadIdx.y * LANES & 31u);
}
__device__ __forceinline__ real_t across(real_t v) {
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(sharers(), v, step);
    return v;
}
#define ACROSS(v) across(v)
#define TOGETHER __syncwarp(sharers())
#else
#define ACROSS(v) (v)
#define TOGETHER
#endif
""",
    scratch="",
    long="long long",
    inline="__device__ __forceinline__ ",
)
