// Code as a synthesis tool sees it: only the macros of the simulation's headers are used.
#include "dataflow.h"
#include "hls_stream.h"

static void load(const int *in, int count, hls::stream<int> lanes[2]) {
    for (int i = 0; i < count; ++i)
        lanes[i % 2].write(in[i]);
}

static void twice(int count, hls::stream<int> &lane, hls::stream<int> &out) {
    for (int i = 0; i < count; ++i)
        out.write(2 * lane.read());
}

static void store(int count, hls::stream<int> outs[2], int *out) {
    for (int i = 0; i < count; ++i)
        out[i] = outs[i % 2].read();
}

extern "C" void double_all(const int *in, int count, int *out) {
    HYRT_DATAFLOW(doubling);
    hls::stream<int> lanes[2], outs[2];
    HYRT_DEPTH(lanes, 4);
    HYRT_DEPTH(outs, 4);
    HYRT_PROCESS(doubling, load(in, count, lanes));
    HYRT_PROCESSES(doubling, i, 2, twice(count / 2, lanes[i], outs[i]));
    HYRT_PROCESS(doubling, store(count, outs, out));
    HYRT_JOIN(doubling);
}
