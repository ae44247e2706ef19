// Simulation of the trainer's kernels, called through ctypes: memory ports that check bounds and count accesses, and
// on-chip memories that persist between calls.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "trainer.hpp"

namespace {

using Trainer = hyrt::Design<HYRT_PES, HYRT_MAC_ROWS, HYRT_MAC_COLS, HYRT_ARENA_WORDS>;

struct Memories {
    Trainer::Sums sums;
    Trainer::Rows rows;
    Trainer::Panel panel;
    hyrt::Word row[hyrt::MAX_CHUNKS];
};

// Traffic of a port. `rewrites` counts writes to a word that was written before: a result is written once, so that any
// further write means that an intermediate matrix is stored in memory.
struct Traffic {
    int64_t reads = 0, rows = 0, writes = 0, rewrites = 0;
};

template <class T>
class ReadPort {
  public:
    // `data` may have any alignment: NumPy arrays are not aligned to words. Each read of the first value of a group of
    // `stride` values counts as one row.
    ReadPort(const char *name, const void *data, int64_t size, Traffic &traffic, int64_t stride = 1)
        : name_(name), data_((const char *)data), size_(size), traffic_(&traffic), stride_(stride) {}

    T operator[](int64_t index) const {
        if (index < 0 || index >= size_)
            throw hyrt::SimulationError(hyrt::current_process_name() + " reads " + name_ + "[" +
                                        std::to_string(index) + "] of " + std::to_string(size_));
        traffic_->reads++;
        traffic_->rows += index % stride_ == 0;
        T value;
        std::memcpy(&value, data_ + index * (int64_t)sizeof(T), sizeof(T));
        return value;
    }

  private:
    const char *name_;
    const char *data_;
    int64_t size_;
    Traffic *traffic_;
    int64_t stride_;
};

template <class T>
class WritePort {
  public:
    WritePort(const char *name, void *data, int64_t size, Traffic &traffic, std::vector<bool> &written)
        : name_(name), data_((char *)data), size_(size), traffic_(&traffic), written_(&written) {
        written.assign(size, false);
    }

    // Write-only reference to an element.
    struct Reference {
        const WritePort &port;
        int64_t index;
        void operator=(const T &value) const { port.write(index, value); }
    };

    Reference operator[](int64_t index) const { return {*this, index}; }

  private:
    const char *name_;
    char *data_;
    int64_t size_;
    Traffic *traffic_;
    std::vector<bool> *written_;

    void write(int64_t index, const T &value) const {
        if (index < 0 || index >= size_)
            throw hyrt::SimulationError(hyrt::current_process_name() + " writes " + name_ + "[" +
                                        std::to_string(index) + "] of " + std::to_string(size_));
        traffic_->writes++;
        traffic_->rewrites += (*written_)[index];
        (*written_)[index] = true;
        std::memcpy(data_ + index * (int64_t)sizeof(T), &value, sizeof(T));
    }
};

}  // namespace

// Arrays of a task and their sizes: words for features, weights, scores and gradients, elements for the other arrays.
struct Arrays {
    const void *features, *edges, *weights, *labels, *target_weights, *vertices, *task;
    void *scores, *gradients, *results;
    int64_t feature_words, num_edges, weight_words, targets, num_sources, task_words, score_words;
};

struct Counts {
    int64_t rows_read, feature_words_read, edges_read, weight_words_read, words_written, intermediate_words_written;
};

// Allocate the on-chip memories for one launch at a time; null if out of memory. Their initial contents are undefined
// in hardware. Here they are NaN, which propagates to every result that depends on them.
extern "C" void *hyrt_open() {
    void *memories = std::aligned_alloc(alignof(Memories), sizeof(Memories));
    if (memories != nullptr) {
        float *values = (float *)memories;
        for (size_t i = 0; i < sizeof(Memories) / sizeof(float); i++) values[i] = NAN;
    }
    return memories;
}

extern "C" void hyrt_close(void *memories) {
    std::free(memories);
}

// Run one launch. Returns 0, or 1 with the error in `message`.
extern "C" int hyrt_simulate(void *memories, const Arrays *arrays, Counts *counts, char *message, int size) {
    return hyrt::report_errors(message, size, [&] {
        const Arrays &a = *arrays;
        Memories &m = *(Memories *)memories;
        Traffic features, edges, weights, small, scores, gradients, results;
        std::vector<bool> scores_written, gradients_written, results_written;
        int header[hyrt::HEADER];
        std::memcpy(header, a.task, sizeof header);
        const int row_words = hyrt::ceil_div(header[5], hyrt::chunks_per_word((hyrt::Codes)header[11]));
        hyrt::train<Trainer>(
            ReadPort<hyrt::Word>("features", a.features, a.feature_words, features, row_words),
            ReadPort<hyrt::Edge>("edges", a.edges, a.num_edges, edges),
            ReadPort<hyrt::Word>("weights", a.weights, a.weight_words, weights),
            ReadPort<int>("labels", a.labels, a.targets, small),
            ReadPort<float>("target_weights", a.target_weights, a.targets, small),
            ReadPort<int64_t>("vertices", a.vertices, a.num_sources, small),
            ReadPort<int>("task", a.task, a.task_words, small),
            WritePort<hyrt::Word>("scores", a.scores, a.score_words, scores, scores_written),
            WritePort<hyrt::Word>("gradients", a.gradients, a.weight_words, gradients, gradients_written),
            WritePort<float>("results", a.results, 2, results, results_written), m.sums, m.rows, m.panel, m.row);
        *counts = {features.rows,
                   features.reads,
                   edges.reads,
                   weights.reads,
                   scores.writes + gradients.writes,
                   scores.rewrites + gradients.rewrites + results.rewrites};
    });
}
