// Top-level kernel for v++: the trainer of the design set by compiler macros, with its AXI ports and on-chip memories.
#include "trainer.hpp"

namespace {

using Trainer = hyrt::Design<HYRT_PES, HYRT_MAC_ROWS, HYRT_MAC_COLS, HYRT_ARENA_WORDS>;

}  // namespace

extern "C" void hyrt_train(const hyrt::Word *features, const hyrt::Edge *edges, const hyrt::Word *weights,
                           const int *labels, const float *target_weights, const int64_t *vertices, const int *task,
                           hyrt::Word *scores, hyrt::Word *gradients, float *results) {
#pragma HLS INTERFACE m_axi port = features offset = slave bundle = features num_read_outstanding = 32
#pragma HLS INTERFACE m_axi port = edges offset = slave bundle = edges
#pragma HLS INTERFACE m_axi port = weights offset = slave bundle = weights
#pragma HLS INTERFACE m_axi port = labels offset = slave bundle = small
#pragma HLS INTERFACE m_axi port = target_weights offset = slave bundle = small
#pragma HLS INTERFACE m_axi port = vertices offset = slave bundle = vertices
#pragma HLS INTERFACE m_axi port = task offset = slave bundle = small
#pragma HLS INTERFACE m_axi port = scores offset = slave bundle = scores
#pragma HLS INTERFACE m_axi port = gradients offset = slave bundle = gradients
#pragma HLS INTERFACE m_axi port = results offset = slave bundle = small
#pragma HLS INTERFACE s_axilite port = features
#pragma HLS INTERFACE s_axilite port = edges
#pragma HLS INTERFACE s_axilite port = weights
#pragma HLS INTERFACE s_axilite port = labels
#pragma HLS INTERFACE s_axilite port = target_weights
#pragma HLS INTERFACE s_axilite port = vertices
#pragma HLS INTERFACE s_axilite port = task
#pragma HLS INTERFACE s_axilite port = scores
#pragma HLS INTERFACE s_axilite port = gradients
#pragma HLS INTERFACE s_axilite port = results
#pragma HLS INTERFACE s_axilite port = return
    static Trainer::Sums sums;
    static Trainer::Rows rows;
    static Trainer::Panel panel;
    static hyrt::Word row[hyrt::MAX_CHUNKS];
#pragma HLS array_partition variable = sums dim = 1 type = complete
#pragma HLS array_partition variable = rows dim = 1 type = complete
#pragma HLS array_partition variable = panel dim = 1 type = complete
#pragma HLS bind_storage variable = sums type = ram_t2p impl = uram
#pragma HLS bind_storage variable = rows type = ram_t2p impl = uram
#pragma HLS bind_storage variable = panel type = ram_s2p impl = uram
#pragma HLS bind_storage variable = row type = ram_s2p impl = bram
    hyrt::train<Trainer>(features, edges, weights, labels, target_weights, vertices, task, scores, gradients, results,
                         sums, rows, panel, row);
}
