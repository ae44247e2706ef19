"""What differs between OpenCL C and CUDA C++ where loops over edges are printed in them."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.nn.fused.edge_loop import EdgeLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a loop is cut for a device. Sums have the same order for equal cuts."""

    lanes: int
    """Threads that share a row, a power of two."""
    vector: int
    """Columns of a vector, a power of two that divides those of a head; 1 in CUDA."""
    slots: int
    """Vectors that a thread holds of each value."""
    grain: int
    """Rows that the threads compute one after the other."""

    @property
    def columns(self) -> int:
        """Columns that the threads compute at a time."""
        return self.lanes * self.vector * self.slots


def cut_for(loop: EdgeLoop, *, lanes: int, vector: int, slots: int, grain: int) -> Cut:
    """How a loop is cut where a device would have so many lanes, vectors of such width, and slots.

    Parameters
    ----------
    loop
        The loop.
    lanes, vector, slots
        The most of each; slots may be more where a head cannot be cut.
    grain
        Rows of a work item.
    """
    width = loop.form.width
    while width % vector:
        vector //= 2
    vectors = width // vector
    lanes = min(lanes, 1 << (vectors - 1).bit_length())
    needed = -(-vectors // lanes)
    return Cut(lanes=lanes, vector=vector, slots=needed if loop.is_whole else min(slots, needed), grain=grain)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a language."""

    kernel: str
    """How a kernel begins."""
    memory: str
    """What pointers to the device's memory begin with."""
    restrict: str
    """What says that a pointer is the only one to its memory."""
    group: str
    """Number of the threads that share rows."""
    lane: str
    """Number of a thread among those."""
    functions: str
    """How sums over lanes are made, and how they wait for each other."""
    scratch: str
    """What a kernel declares for them."""
    long: str
    """The integer of 64 bits."""
    inline: str
    """What a function begins with."""

    def types(self, vector: int, real: str) -> list[str]:
        """Definitions of vectors of numbers, and of what is done with them."""
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
