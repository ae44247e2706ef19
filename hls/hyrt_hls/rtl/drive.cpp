// Testbench of the RTL models: reads cases from standard input, and prints the cycles and results of each on one line.
//
//   network PES DEPTH LATENCY CHUNKS ROWS GROUPS   then for each group: source, PES rows (-1 for none), PES weights
//   array SHAPE ROWS COLS STEPS TILES INTERVAL     then for each tile: STEPS x ROWS of a, STEPS x COLS of b
//
// The value of chunk c of source s is 1 + (31 * s + c) % 97.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "Vtwins.h"
#include "verilated.h"

namespace {

constexpr int kLanes = 8;

void fail(const std::string &message) {
    std::cerr << message << "\n";
    std::exit(1);
}

int read_int() {
    int value = 0;
    if (!(std::cin >> value)) fail("the case ends early");
    return value;
}

void tick(Vtwins &top) {
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
}

void reset(Vtwins &top) {
    top.group_valid = 0;
    top.step_valid = 0;
    top.step_first = 0;
    top.step_last = 0;
    top.rst = 1;
    tick(top);
    top.rst = 0;
    top.eval();
}

// Rows are 16 bits wide in the port: two per 32-bit word.
template <typename Port> void set_row(Port &port, int lane, std::uint32_t row) {
    const int shift = 16 * (lane % 2);
    port[lane / 2] = (port[lane / 2] & ~(0xffffu << shift)) | (row << shift);
}

void run_network(Vtwins &top) {
    const int pes = read_int(), depth = read_int(), latency = read_int(), chunks = read_int(), rows = read_int();
    const int num_groups = read_int();
    if ((pes != 4 && pes != 8) || depth < 1 || depth > 32 || latency < 1 || latency > 8)
        fail("network: not built for this");
    std::vector<int> groups(static_cast<std::size_t>(num_groups) * (2 * pes + 1));
    for (int &value : groups) value = read_int();
    top.wide = pes == 8;
    top.depth = depth;
    top.latency = latency;
    top.chunks = chunks;
    reset(top);
    int group = 0;
    long cycle = 0;
    while (true) {
        top.group_valid = group < num_groups;
        int source = 0;
        if (group < num_groups) {
            const int *fields = &groups[static_cast<std::size_t>(group) * (2 * pes + 1)];
            source = fields[0];
            top.group_edges = 0;
            for (int lane = 0; lane < pes; lane++) {
                if (fields[1 + lane] >= 0) top.group_edges |= 1 << lane;
                set_row(top.group_rows, lane, fields[1 + lane] < 0 ? 0u : static_cast<std::uint32_t>(fields[1 + lane]));
                top.group_weights[lane] = static_cast<std::uint32_t>(fields[1 + pes + lane]);
            }
        }
        top.eval();
        top.feature = 1 + (31 * source + top.chunk) % 97;
        top.eval();
        if (!top.busy) break;
        const bool done = top.group_done;
        tick(top);
        if (done) group++;
        cycle++;
    }
    std::cout << cycle;
    for (int row = 0; row < rows; row++) {
        for (int chunk = 0; chunk < chunks; chunk++) {
            top.read_row = row;
            top.read_chunk = chunk;
            top.eval();
            std::cout << ' ' << static_cast<std::int32_t>(top.read_value);
        }
    }
    std::cout << "\n";
}

void run_array(Vtwins &top) {
    const int shape = read_int(), rows = read_int(), cols = read_int(), steps = read_int(), tiles = read_int();
    const int interval = read_int();
    if (shape < 0 || shape > 2 || rows > kLanes || cols > kLanes) fail("array: not built for this");
    std::vector<int> values(static_cast<std::size_t>(tiles) * steps * (rows + cols));
    for (int &value : values) value = read_int();
    top.shape = shape;
    reset(top);
    int complete = 0;
    long cycle = 0;
    while (complete < tiles) {
        const long step = cycle / interval;
        const bool valid = cycle % interval == 0 && step < static_cast<long>(tiles) * steps;
        top.step_valid = valid;
        if (valid) {
            const long tile = step / steps, k = step % steps;
            const int *operands = &values[static_cast<std::size_t>(tile) * steps * (rows + cols)];
            top.step_first = k == 0;
            top.step_last = k == steps - 1;
            for (int r = 0; r < rows; r++) top.a[r] = static_cast<std::uint32_t>(operands[k * rows + r]);
            for (int c = 0; c < cols; c++) top.b[c] = static_cast<std::uint32_t>(operands[steps * rows + k * cols + c]);
        }
        top.eval();
        tick(top);
        cycle++;
        if (top.complete) complete++;
    }
    std::cout << cycle;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            top.read_r = r;
            top.read_c = c;
            top.eval();
            std::cout << ' ' << static_cast<std::int32_t>(top.read_sum);
        }
    }
    std::cout << "\n";
}

}  // namespace

int main() {
    Vtwins top;
    top.clk = 0;
    std::string kind;
    while (std::cin >> kind) {
        if (kind == "network") run_network(top);
        else if (kind == "array") run_array(top);
        else fail("unknown case " + kind);
    }
    top.final();
    return 0;
}
