// The aggregate kernel: sums = A rows, for a sparse A given as edges sorted by source.
//
//   edges -> duplicator -> n scatter units -> n x n queues -> n gather units, each with its bank of sums
//
// Each source row is read once and shown to the scatter units once for every n edges that leave it. A gather unit owns
// the rows r with r % n == its number and adds a message a cycle, round robin over its queues, unless the sum it adds
// to is still in the adder.
#pragma once

#include <utility>

#include "codes.hpp"
#include "design.hpp"
#include "dropout.hpp"
#include "phase.hpp"

namespace hyrt {

// What an aggregation reads and writes. The one network takes source rows from memory as well as from the chip.
struct Aggregation {
    int first_edge, num_edges, chunks;
    int num_to, to;  // rows of the matrix of sums, its offset
    bool features;   // whether the source rows are the features, with their dropout
    Codes codes;     // what the features are in memory
    Dropout dropout;
    int from;  // else the offset of their matrix in the memory of rows
};

// `words` holds the header and the records of a task.
inline Aggregation aggregation_of(Phase phase, const int *words) {
#pragma HLS INLINE
    const bool forward = phase.work == Work::AGGREGATE, first = phase.layer == 0;
    const Layer layer = read_layer(words, phase.layer);
    const Layer below = read_layer(words, first ? 0 : phase.layer - 1);
    Aggregation what;
    what.first_edge = forward ? layer.first_edge : layer.first_backward_edge;
    what.num_edges = forward ? layer.num_edges : layer.num_backward_edges;
    what.chunks = layer.in_chunks;
    what.num_to = forward ? layer.rows * layer.parts : layer.num_src;
    what.to = forward ? layer.combined : below.output_gradient;
    what.features = forward && first;
    what.codes = (Codes)words[11];
    what.dropout = read_dropout(words + 6);
    what.from = forward ? below.output : layer.combined_gradient;
    return what;
}

// Up to n edges of one source, at the duplicator.
struct Group {
    int edges;
    bool fresh;  // the first of its source: the row comes from the reader, and is kept for the others
};

// One of a group's edges, at its scatter unit.
struct Lane {
    int to;
    float weight;
    bool end;  // no edge: no more come
};

struct Message {
    int address;  // in the bank, from the matrix's offset
    bool end;
    Word value;
};

// Cuts the edges into groups. `held` is the source whose row the duplicator has, from the region before and for the
// next.
template <int PES, class Edges>
void read_edges(Edges edges, int first, int count, int &held, hls::stream<int> &sources, hls::stream<Group> &groups,
                hls::stream<Lane> lanes[PES]) {
    int from = held, size = 0;
    bool fresh = false;
    for (int e = 0; e < count; e++) {
#pragma HLS PIPELINE II = 1
        const Edge edge = edges[first + e];
        const bool change = edge.from != from;
        if (size > 0 && (change || size == PES)) {
            groups.write({size, fresh});
            size = 0;
            fresh = false;
        }
        if (change) {
            sources.write(edge.from);
            from = edge.from;
            fresh = true;
        }
        for (int lane = 0; lane < PES; lane++) {
#pragma HLS UNROLL
            if (lane == size) lanes[lane].write({edge.to, edge.weight, false});
        }
        size++;
    }
    if (size > 0) groups.write({size, fresh});
    groups.write({0, false});
    sources.write(-1);
    held = from;
    for (int lane = 0; lane < PES; lane++) {
#pragma HLS UNROLL
        lanes[lane].write({0, 0.0f, true});
    }
}

// Source rows from memory: the features, with the dropout of the input.
template <class Features, class Vertices>
void read_features(hls::stream<int> &sources, hls::stream<Word> &words, int chunks, Features features,
                   Vertices vertices, Codes codes, Dropout dropout) {
    const int together = chunks_of_word(codes), row_words = ceil_div(chunks, together);
    for (int row = sources.read(); row >= 0; row = sources.read()) {
        const int64_t vertex = dropout.threshold > 0 ? vertices[row] : 0;
        Word packed;
        int part = 0, at = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
            if (part == 0) packed = features[(int64_t)row * row_words + at++];
            const Word word = widened(packed, codes, part);
            words.write(dropout.threshold > 0 ? drop(word, dropout, vertex, chunk) : word);
            part = part + 1 == together ? 0 : part + 1;
        }
    }
}

// Source rows on chip: a matrix in the memory of rows.
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
void read_rows(hls::stream<int> &sources, hls::stream<Word> &words, Aggregation what, Features features,
               Vertices vertices, const typename D::Rows &rows) {
    if (what.features)
        read_features(sources, words, what.chunks, features, vertices, what.codes, what.dropout);
    else
        read_matrix<D>(sources, words, what.chunks, rows, what.from);
}

// The feature duplicator: `row` is the buffer that holds the row of the source whose edges are under way.
template <int PES>
void duplicate(hls::stream<Group> &groups, hls::stream<Word> &words, int chunks, Word row[MOST_CHUNKS],
               hls::stream<Word> copies[PES]) {
    Group group = groups.read();
    int chunk = 0;
    while (group.edges > 0) {
#pragma HLS PIPELINE II = 1
        Word word;
        if (group.fresh) {
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
        message.address = lane.to / PES * chunks + chunk;
        message.end = false;
        for (int i = 0; i < LANES; i++) {
#pragma HLS UNROLL
            message.value[i] = word[i] * lane.weight;
        }
        for (int gather = 0; gather < PES; gather++) {
#pragma HLS UNROLL
            if (gather == lane.to % PES) queues[gather].write(message);
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

// What a gather unit knows of one of its queues.
struct Head {
    Message message;
    bool here;
    bool ended;
};

inline void refill(hls::stream<Message> &queue, Head &head) {
#pragma HLS INLINE
    if (!head.here && !head.ended) head.here = queue.read_nb(head.message);
    if (head.here && head.message.end) {
        head.here = false;
        head.ended = true;
    }
}

// Adds into `bank` from word `offset` on; one queue from every scatter unit, in their order.
template <int WORDS, class... Queues>
void gather(int offset, Word (&bank)[WORDS], Queues &...queues) {
    constexpr int PES = sizeof...(Queues);
    Head heads[PES];
    int recent[ADDER_LATENCY];  // addresses whose sums are in the adder, the newest first; the last has left it
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
// The choice below never takes an address that was taken in the ADDER_LATENCY - 1 iterations before.
#pragma HLS dependence variable = bank type = inter direction = RAW distance = HYRT_ADDER_LATENCY true
        int queue = 0;
        const int refilled[] = {(refill(queues, heads[queue]), queue++)...};
        (void)refilled;
        int choice = -1;
        running = false;
        for (int step = PES - 1; step >= 0; step--) {
#pragma HLS UNROLL
            const int s = pointer + step < PES ? pointer + step : pointer + step - PES;
            bool free = heads[s].here;
            for (int i = 0; i < ADDER_LATENCY - 1; i++) {
#pragma HLS UNROLL
                if (recent[i] == heads[s].message.address) free = false;
            }
            if (free) choice = s;
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
            heads[choice].here = false;
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

// Edges first .. first + count - 1, in the one network that there is. S are the numbers of the scatter units.
template <class D, class Edges, class Features, class Vertices, size_t... S>
void aggregate_region(Edges edges, int first, int count, Aggregation what, Features features, Vertices vertices,
                      const typename D::Rows &rows, int &held, Word (&row)[MOST_CHUNKS], typename D::Sums &sums,
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
    HYRT_PROCESS(aggregation, read_edges<D::PES>(edges, first, count, held, sources, groups, lanes));
    HYRT_PROCESS(aggregation, read_rows<D>(sources, words, what, features, vertices, rows));
    HYRT_PROCESS(aggregation, duplicate<D::PES>(groups, words, what.chunks, row, copies));
    HYRT_PROCESSES(aggregation, s, D::PES, scatter<D::PES>(lanes[s], copies[s], what.chunks, queues[s]));
    HYRT_PROCESSES(aggregation, g, D::PES, gather(what.to, sums[g], queues[S][g]...));
    HYRT_JOIN(aggregation);
}

// The rows of the matrix of sums become the weighted sums of the edges' source rows.
template <class D, class Edges, class Features, class Vertices>
void aggregate(Aggregation what, Edges edges, Features features, Vertices vertices, const typename D::Rows &rows,
               Word (&row)[MOST_CHUNKS], typename D::Sums &sums) {
#pragma HLS INLINE off
    for (int g = 0; g < D::PES; g++) {
#pragma HLS UNROLL
        clear(what.to, ceil_div(what.num_to, D::PES) * what.chunks, sums[g]);
    }
    const int most = REGION_WORDS / what.chunks > 0 ? REGION_WORDS / what.chunks : 1;
    int held = -1;
    for (int done = 0; done < what.num_edges; done += most) {
        const int part = what.num_edges - done < most ? what.num_edges - done : most;
        aggregate_region<D>(edges, what.first_edge + done, part, what, features, vertices, rows, held, row, sums,
                            std::make_index_sequence<D::PES>());
    }
}

}  // namespace hyrt
