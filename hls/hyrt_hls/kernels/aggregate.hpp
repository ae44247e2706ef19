// Aggregate kernel: sums = A rows, for a sparse matrix A given as edges sorted by source.
//
//   edges -> duplicator -> n scatter units -> n x n queues -> n gather units, each with its bank of sums
//
// Each source row is read once, and broadcast to the scatter units once per group of n of its edges. Gather unit g
// accumulates the rows r with r % n == g. It adds one message per cycle, round robin over its queues, and skips a
// message if its sum is still in the adder pipeline (read-after-write hazard).
#pragma once

#include <utility>

#include "codes.hpp"
#include "design.hpp"
#include "dropout.hpp"
#include "phase.hpp"

namespace hyrt {

// Inputs and outputs of an aggregation. The same network serves source rows from memory and from on-chip matrices.
struct Aggregation {
    int first_edge, num_edges, chunks;
    int num_sums, sum_offset;  // rows and offset of the matrix of sums
    bool features;             // whether source rows are the features, with the input dropout
    Codes codes;               // format of the features in memory
    Dropout dropout;
    int source_offset;  // offset of the source matrix in the row memory, unless `features`
};

// `words` contains the header and the records of a task.
inline Aggregation aggregation_of(Phase phase, const int *words) {
#pragma HLS INLINE
    const bool forward = phase.work == Work::AGGREGATE, first = phase.layer == 0;
    const Layer layer = read_layer(words, phase.layer);
    const Layer previous = read_layer(words, first ? 0 : phase.layer - 1);
    Aggregation desc;
    desc.first_edge = forward ? layer.first_edge : layer.first_backward_edge;
    desc.num_edges = forward ? layer.num_edges : layer.num_backward_edges;
    desc.chunks = layer.in_chunks;
    desc.num_sums = forward ? layer.rows * layer.parts : layer.num_src;
    desc.sum_offset = forward ? layer.combined : previous.output_gradient;
    desc.features = forward && first;
    desc.codes = (Codes)words[11];
    desc.dropout = read_dropout(words + 6);
    desc.source_offset = forward ? previous.output : layer.combined_gradient;
    return desc;
}

// Group at the duplicator: up to n edges of one source.
struct Group {
    int edges;
    bool new_source;  // first group of its source: its row is read from the stream, and buffered for later groups
};

// One edge of a group, at its scatter unit.
struct Lane {
    int destination;
    float weight;
    bool end;  // end marker instead of an edge
};

struct Message {
    int address;  // in the bank, relative to the matrix's offset
    bool end;
    Word value;
};

// Divide the edges into groups. `buffered` is the source whose row is in the duplicator's buffer; it is passed from one
// region to the next.
template <int PES, class Edges>
void read_edges(Edges edges, int first, int count, int &buffered, hls::stream<int> &sources, hls::stream<Group> &groups,
                hls::stream<Lane> lanes[PES]) {
    int source = buffered, size = 0;
    bool new_source = false;
    for (int e = 0; e < count; e++) {
#pragma HLS PIPELINE II = 1
        const Edge edge = edges[first + e];
        const bool change = edge.source != source;
        if (size > 0 && (change || size == PES)) {
            groups.write({size, new_source});
            size = 0;
            new_source = false;
        }
        if (change) {
            sources.write(edge.source);
            source = edge.source;
            new_source = true;
        }
        for (int lane = 0; lane < PES; lane++) {
#pragma HLS UNROLL
            if (lane == size) lanes[lane].write({edge.destination, edge.weight, false});
        }
        size++;
    }
    if (size > 0) groups.write({size, new_source});
    groups.write({0, false});
    sources.write(-1);
    buffered = source;
    for (int lane = 0; lane < PES; lane++) {
#pragma HLS UNROLL
        lanes[lane].write({0, 0.0f, true});
    }
}

// Source rows from memory: the features, with the input dropout.
template <class Features, class Vertices>
void read_features(hls::stream<int> &sources, hls::stream<Word> &words, int chunks, Features features,
                   Vertices vertices, Codes codes, Dropout dropout) {
    const int num_packed = chunks_per_word(codes), row_words = ceil_div(chunks, num_packed);
    for (int row = sources.read(); row >= 0; row = sources.read()) {
        const int64_t vertex = dropout.threshold > 0 ? vertices[row] : 0;
        Word packed;
        int part = 0, next_word = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
            if (part == 0) packed = features[(int64_t)row * row_words + next_word++];
            const Word word = unpack(packed, codes, part);
            words.write(dropout.threshold > 0 ? drop(word, dropout, vertex, chunk) : word);
            part = part + 1 == num_packed ? 0 : part + 1;
        }
    }
}

// Source rows on chip: a matrix in the row memory.
template <class D>
void read_matrix(hls::stream<int> &sources, hls::stream<Word> &words, int chunks, const typename D::Rows &rows,
                 int offset) {
    for (int row = sources.read(); row >= 0; row = sources.read()) {
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
            words.write(rows[row % D::PES][offset - D::ROW_BASE + row / D::PES * chunks + chunk]);
        }
    }
}

template <class D, class Features, class Vertices>
void read_rows(hls::stream<int> &sources, hls::stream<Word> &words, Aggregation desc, Features features,
               Vertices vertices, const typename D::Rows &rows) {
    if (desc.features)
        read_features(sources, words, desc.chunks, features, vertices, desc.codes, desc.dropout);
    else
        read_matrix<D>(sources, words, desc.chunks, rows, desc.source_offset);
}

// Feature duplicator: `row` buffers the row of the source whose edges are being processed.
template <int PES>
void duplicate(hls::stream<Group> &groups, hls::stream<Word> &words, int chunks, Word row[MAX_CHUNKS],
               hls::stream<Word> copies[PES]) {
    Group group = groups.read();
    int chunk = 0;
    while (group.edges > 0) {
#pragma HLS PIPELINE II = 1
        Word word;
        if (group.new_source) {
            word = words.read();
            row[chunk] = word;
        } else {
            word = row[chunk];
        }
        for (int lane = 0; lane < PES; lane++) {
#pragma HLS UNROLL
            if (lane < group.edges) copies[lane].write(word);
        }
        chunk++;
        if (chunk == chunks) {
            chunk = 0;
            group = groups.read();
        }
    }
}

template <int PES>
void scatter(hls::stream<Lane> &lanes, hls::stream<Word> &copies, int chunks, hls::stream<Message> queues[PES]) {
    Lane lane = lanes.read();
    int chunk = 0;
    while (!lane.end) {
#pragma HLS PIPELINE II = 1
        const Word word = copies.read();
        Message message;
        message.address = lane.destination / PES * chunks + chunk;
        message.end = false;
        for (int i = 0; i < LANES; i++) {
#pragma HLS UNROLL
            message.value[i] = word[i] * lane.weight;
        }
        for (int gather = 0; gather < PES; gather++) {
#pragma HLS UNROLL
            if (gather == lane.destination % PES) queues[gather].write(message);
        }
        chunk++;
        if (chunk == chunks) {
            chunk = 0;
            lane = lanes.read();
        }
    }
    const Message last = {0, true, Word(0.0f)};
    for (int gather = 0; gather < PES; gather++) {
#pragma HLS UNROLL
        queues[gather].write(last);
    }
}

// State of one input queue of a gather unit.
struct Head {
    Message message;
    bool valid;
    bool ended;
};

inline void refill(hls::stream<Message> &queue, Head &head) {
#pragma HLS INLINE
    if (!head.valid && !head.ended) head.valid = queue.read_nb(head.message);
    if (head.valid && head.message.end) {
        head.valid = false;
        head.ended = true;
    }
}

// Accumulate into `bank`, starting at word `offset`; one queue per scatter unit, in their order.
template <int WORDS, class... Queues>
void gather(int offset, Word (&bank)[WORDS], Queues &...queues) {
    constexpr int PES = sizeof...(Queues);
    Head heads[PES];
    int recent[ADDER_LATENCY];  // addresses of recent additions, newest first; all but the last are in the adder
#pragma HLS array_partition variable = heads type = complete
#pragma HLS array_partition variable = recent type = complete
    for (int s = 0; s < PES; s++) {
#pragma HLS UNROLL
        heads[s] = {{0, false, Word(0.0f)}, false, false};
    }
    for (int i = 0; i < ADDER_LATENCY; i++) {
#pragma HLS UNROLL
        recent[i] = -1;
    }
    int pointer = 0;
    bool running = true;
    while (running) {
#pragma HLS PIPELINE II = 1
// The arbitration below never selects an address that was selected in the previous ADDER_LATENCY - 1 iterations.
#pragma HLS dependence variable = bank type = inter direction = RAW distance = HYRT_ADDER_LATENCY true
        int queue = 0;
        const int expansion[] = {(refill(queues, heads[queue]), queue++)...};
        (void)expansion;
        int choice = -1;
        running = false;
        for (int step = PES - 1; step >= 0; step--) {
#pragma HLS UNROLL
            const int s = pointer + step < PES ? pointer + step : pointer + step - PES;
            bool eligible = heads[s].valid;
            for (int i = 0; i < ADDER_LATENCY - 1; i++) {
#pragma HLS UNROLL
                if (recent[i] == heads[s].message.address) eligible = false;
            }
            if (eligible) choice = s;
            running |= !heads[s].ended;
        }
        for (int i = ADDER_LATENCY - 1; i > 0; i--) {
#pragma HLS UNROLL
            recent[i] = recent[i - 1];
        }
        recent[0] = -1;
        if (choice >= 0) {
            const int address = heads[choice].message.address;
            bank[offset + address] = bank[offset + address] + heads[choice].message.value;
            recent[0] = address;
            heads[choice].valid = false;
            pointer = choice + 1 < PES ? choice + 1 : 0;
        }
    }
}

template <int WORDS>
void clear(int offset, int words, Word (&bank)[WORDS]) {
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II = 1
        bank[offset + i] = Word(0.0f);
    }
}

// Edges first .. first + count - 1, through the shared network. S are the indices of the scatter units.
template <class D, class Edges, class Features, class Vertices, size_t... S>
void aggregate_region(Edges edges, int first, int count, Aggregation desc, Features features, Vertices vertices,
                      const typename D::Rows &rows, int &buffered, Word (&row)[MAX_CHUNKS], typename D::Sums &sums,
                      std::index_sequence<S...>) {
#pragma HLS INLINE off
    HYRT_DATAFLOW(aggregation);
    hls::stream<int> sources("sources");
    hls::stream<Group> groups("groups");
    hls::stream<Word> words("words");
    hls::stream<Lane> lanes[D::PES];
    hls::stream<Word> copies[D::PES];
    hls::stream<Message> queues[D::PES][D::PES];  // [scatter][gather]
#pragma HLS stream variable = sources depth = 16
#pragma HLS stream variable = groups depth = 16
#pragma HLS stream variable = words depth = 64
#pragma HLS stream variable = lanes depth = 16
#pragma HLS stream variable = copies depth = 2
#pragma HLS stream variable = queues depth = HYRT_FIFO_DEPTH
    HYRT_DEPTH(sources, 16);
    HYRT_DEPTH(groups, 16);
    HYRT_DEPTH(words, 64);
    HYRT_DEPTH(lanes, 16);
    HYRT_DEPTH(copies, 2);
    HYRT_DEPTH(queues, HYRT_FIFO_DEPTH);
    HYRT_PROCESS(aggregation, read_edges<D::PES>(edges, first, count, buffered, sources, groups, lanes));
    HYRT_PROCESS(aggregation, read_rows<D>(sources, words, desc, features, vertices, rows));
    HYRT_PROCESS(aggregation, duplicate<D::PES>(groups, words, desc.chunks, row, copies));
    HYRT_PROCESSES(aggregation, s, D::PES, scatter<D::PES>(lanes[s], copies[s], desc.chunks, queues[s]));
    HYRT_PROCESSES(aggregation, g, D::PES, gather(desc.sum_offset, sums[g], queues[S][g]...));
    HYRT_JOIN(aggregation);
}

// Set the rows of the matrix of sums to the weighted sums of the edges' source rows.
template <class D, class Edges, class Features, class Vertices>
void aggregate(Aggregation desc, Edges edges, Features features, Vertices vertices, const typename D::Rows &rows,
               Word (&row)[MAX_CHUNKS], typename D::Sums &sums) {
#pragma HLS INLINE off
    for (int g = 0; g < D::PES; g++) {
#pragma HLS UNROLL
        clear(desc.sum_offset, ceil_div(desc.num_sums, D::PES) * desc.chunks, sums[g]);
    }
    const int max_edges = REGION_WORDS / desc.chunks > 0 ? REGION_WORDS / desc.chunks : 1;
    int buffered = -1;
    for (int done = 0; done < desc.num_edges; done += max_edges) {
        const int count = desc.num_edges - done < max_edges ? desc.num_edges - done : max_edges;
        aggregate_region<D>(edges, desc.first_edge + done, count, desc, features, vertices, rows, buffered, row, sums,
                            std::make_index_sequence<D::PES>());
    }
}

}  // namespace hyrt
