// Output-stationary systolic array of MAC_ROWS x COL_WORDS cells, each one word (LANES multiply-accumulate units) wide.
// A value of the left matrix enters at the first cell of its row and moves right; a word of the right matrix enters at
// the first row and moves down.
#pragma once

#include "design.hpp"

namespace hyrt {

// Operands of a step: one value per row of cells, one word per column of cells.
template <class D>
struct Left {
    float value[D::MAC_ROWS];
};

template <class D>
struct Right {
    Word word[D::COL_WORDS];
};

// Output range of a dataflow region: `count` tiles of MAC_ROWS rows starting at tile `first`, and COL_WORDS words
// starting at `first_word`.
struct Tiles {
    int first, count, first_word;
};

// One word from each bank.
template <class D>
struct Packet {
    Word word[D::PES];
};

inline int part_of(int index, int parts) {
#pragma HLS INLINE
    return parts == 2 ? index & 1 : 0;
}

inline int row_of(int index, int parts) {
#pragma HLS INLINE
    return parts == 2 ? index >> 1 : index;
}

// `tiles` products of `depth` steps each; a tile's results are written row by row. The steps of a tile:
//     depth + MAC_ROWS + COL_WORDS - 2    until the last operands have reached the farthest cell;
//     FOLD_STEPS                          to reduce the partial sums, with the same adders;
//     MAC_ROWS                            to write the results.
// The reduction runs in windows; the sums of a window have left the adder pipeline before the next window reads them.
constexpr int FOLD_WINDOW = PARTIAL_SUMS + PARTIAL_SUMS / 2;
constexpr int FOLD_STEPS = 3 * FOLD_WINDOW;
static_assert(PARTIAL_SUMS == 8, "three windows halve eight sums to one");

template <class D>
void systolic(hls::stream<Left<D>> &lefts, hls::stream<Right<D>> &rights, hls::stream<Right<D>> &results, int tiles,
              int depth) {
    constexpr int ROWS = D::MAC_ROWS, WORDS = D::COL_WORDS;
    Word sum[PARTIAL_SUMS][ROWS][WORDS];
    float left[ROWS][WORDS];  // operand registers: used by the cell in this step, passed to its neighbour in the next
    Word right[ROWS][WORDS];
    float left_delay[ROWS][ROWS];  // skew: row i is delayed by i steps; [age][row]
    Word right_delay[WORDS][WORDS];
#pragma HLS array_partition variable = sum dim = 2 type = complete
#pragma HLS array_partition variable = sum dim = 3 type = complete
#pragma HLS bind_storage variable = sum type = ram_1wnr impl = lutram
#pragma HLS array_partition variable = left dim = 0 type = complete
#pragma HLS array_partition variable = right dim = 0 type = complete
#pragma HLS array_partition variable = left_delay dim = 0 type = complete
#pragma HLS array_partition variable = right_delay dim = 0 type = complete
    // Zeros precede and follow the operands of a tile, so that products outside of them add nothing.
    for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
        for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
            left[i][w] = 0;
            right[i][w] = Word(0.0f);
        }
        for (int age = 0; age < ROWS; age++) {
#pragma HLS UNROLL
            left_delay[age][i] = 0;
        }
    }
    for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
        for (int age = 0; age < WORDS; age++) {
#pragma HLS UNROLL
            right_delay[age][w] = Word(0.0f);
        }
    }
    const int skewed = depth + ROWS + WORDS - 2;
    const int steps = skewed > PARTIAL_SUMS ? skewed : PARTIAL_SUMS;
    for (int tile = 0; tile < tiles; tile++) {
        for (int step = 0; step < steps + FOLD_STEPS; step++) {
#pragma HLS PIPELINE II = 1
#pragma HLS dependence variable = sum type = inter direction = RAW distance = HYRT_PARTIAL_SUMS true
            const bool is_folding = step >= steps;
            const int window = (step - steps) / FOLD_WINDOW, num_folded = PARTIAL_SUMS / 2 >> window;
            const int fold_slot = (step - steps) % FOLD_WINDOW - PARTIAL_SUMS;
            const int slot = is_folding ? fold_slot : step % PARTIAL_SUMS;
            const int addend_slot = is_folding ? fold_slot + num_folded : slot;
            if (is_folding && (fold_slot < 0 || fold_slot >= num_folded)) continue;
            for (int age = ROWS - 1; age > 0; age--) {
#pragma HLS UNROLL
                for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
                    left_delay[age][i] = left_delay[age - 1][i];
                }
            }
            for (int age = WORDS - 1; age > 0; age--) {
#pragma HLS UNROLL
                for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                    right_delay[age][w] = right_delay[age - 1][w];
                }
            }
            Left<D> new_left;
            Right<D> new_right;
            if (step < depth) {
                new_left = lefts.read();
                new_right = rights.read();
            } else {
                for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
                    new_left.value[i] = 0;
                }
                for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                    new_right.word[w] = Word(0.0f);
                }
            }
            for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
                left_delay[0][i] = new_left.value[i];
            }
            for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                right_delay[0][w] = new_right.word[w];
            }
            // From the last cell to the first, so that each cell reads its neighbours' operands of the previous step.
            for (int i = ROWS - 1; i >= 0; i--) {
#pragma HLS UNROLL
                for (int w = WORDS - 1; w >= 0; w--) {
#pragma HLS UNROLL
                    const float a = w > 0 ? left[i][w - 1] : left_delay[i][i];
                    const Word b = i > 0 ? right[i - 1][w] : right_delay[w][w];
                    for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                        const float previous = step < PARTIAL_SUMS ? 0.0f : sum[slot][i][w][lane];
                        sum[slot][i][w][lane] = previous + (is_folding ? sum[addend_slot][i][w][lane] : a * b[lane]);
                    }
                    left[i][w] = a;
                    right[i][w] = b;
                }
            }
        }
        for (int i = 0; i < ROWS; i++) {
#pragma HLS PIPELINE II = 1
            Right<D> row;
            for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                row.word[w] = sum[0][i][w];
            }
            results.write(row);
        }
    }
}

}  // namespace hyrt
