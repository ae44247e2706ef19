// The systolic array: MAC_ROWS x COL_WORDS cells, each one word (LANES multiply-accumulates) wide, output stationary. A
// value of the left matrix enters at the first word of its row and moves right, a word of the right matrix enters at
// the first row and moves down.
#pragma once

#include "design.hpp"

namespace hyrt {

// A step's operands: one value for each row of cells, one word for each column of cells.
template <class D>
struct Left {
    float value[D::MAC_ROWS];
};

template <class D>
struct Right {
    Word word[D::COL_WORDS];
};

// Results of a region: `tiles` tiles of MAC_ROWS rows from tile `first` on, COL_WORDS words from `first_word` on.
struct Tiles {
    int first, tiles, first_word;
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

// `tiles` products of `depth` steps each; the results of a tile leave row by row. A tile takes
//     depth + MAC_ROWS + COL_WORDS - 2    steps until the last operands have met,
//     FOLD_STEPS                          until the partial sums are added up, by the same adders,
//     MAC_ROWS                            until its results have left.
// The sums of a window leave the adders before the next one reads them.
constexpr int FOLD_WINDOW = PARTIAL_SUMS + PARTIAL_SUMS / 2;
constexpr int FOLD_STEPS = 3 * FOLD_WINDOW;
static_assert(PARTIAL_SUMS == 8, "three windows halve eight sums to one");

template <class D>
void systolic(hls::stream<Left<D>> &lefts, hls::stream<Right<D>> &rights, hls::stream<Right<D>> &results, int tiles,
              int depth) {
    constexpr int ROWS = D::MAC_ROWS, WORDS = D::COL_WORDS;
    Word sum[PARTIAL_SUMS][ROWS][WORDS];
    float left[ROWS][WORDS];  // what each cell has just used, and hands on
    Word right[ROWS][WORDS];
    float late_left[ROWS][ROWS];  // row i waits i steps: [age][row]
    Word late_right[WORDS][WORDS];
#pragma HLS array_partition variable = sum dim = 2 type = complete
#pragma HLS array_partition variable = sum dim = 3 type = complete
#pragma HLS bind_storage variable = sum type = ram_1wnr impl = lutram
#pragma HLS array_partition variable = left dim = 0 type = complete
#pragma HLS array_partition variable = right dim = 0 type = complete
#pragma HLS array_partition variable = late_left dim = 0 type = complete
#pragma HLS array_partition variable = late_right dim = 0 type = complete
    // Zeros before a tile's operands and behind them: what a cell multiplies outside of them adds nothing.
    for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
        for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
            left[i][w] = 0;
            right[i][w] = Word(0.0f);
        }
        for (int age = 0; age < ROWS; age++) {
#pragma HLS UNROLL
            late_left[age][i] = 0;
        }
    }
    for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
        for (int age = 0; age < WORDS; age++) {
#pragma HLS UNROLL
            late_right[age][w] = Word(0.0f);
        }
    }
    const int skewed = depth + ROWS + WORDS - 2;
    const int steps = skewed > PARTIAL_SUMS ? skewed : PARTIAL_SUMS;
    for (int tile = 0; tile < tiles; tile++) {
        for (int step = 0; step < steps + FOLD_STEPS; step++) {
#pragma HLS PIPELINE II = 1
#pragma HLS dependence variable = sum type = inter direction = RAW distance = HYRT_PARTIAL_SUMS true
            const bool folds = step >= steps;
            const int window = (step - steps) / FOLD_WINDOW, half = PARTIAL_SUMS / 2 >> window;
            const int folded = (step - steps) % FOLD_WINDOW - PARTIAL_SUMS;
            const int slot = folds ? folded : step % PARTIAL_SUMS;
            const int other = folds ? folded + half : slot;
            if (folds && (folded < 0 || folded >= half)) continue;
            for (int age = ROWS - 1; age > 0; age--) {
#pragma HLS UNROLL
                for (int i = 0; i < ROWS; i++) {
#pragma HLS UNROLL
                    late_left[age][i] = late_left[age - 1][i];
                }
            }
            for (int age = WORDS - 1; age > 0; age--) {
#pragma HLS UNROLL
                for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                    late_right[age][w] = late_right[age - 1][w];
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
                late_left[0][i] = new_left.value[i];
            }
            for (int w = 0; w < WORDS; w++) {
#pragma HLS UNROLL
                late_right[0][w] = new_right.word[w];
            }
            // From the last cell to the first, so that each finds what its neighbours used in the step before.
            for (int i = ROWS - 1; i >= 0; i--) {
#pragma HLS UNROLL
                for (int w = WORDS - 1; w >= 0; w--) {
#pragma HLS UNROLL
                    const float a = w > 0 ? left[i][w - 1] : late_left[i][i];
                    const Word b = i > 0 ? right[i - 1][w] : late_right[w][w];
                    for (int lane = 0; lane < LANES; lane++) {
#pragma HLS UNROLL
                        const float before = step < PARTIAL_SUMS ? 0.0f : sum[slot][i][w][lane];
                        sum[slot][i][w][lane] = before + (folds ? sum[other][i][w][lane] : a * b[lane]);
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
