// The aggregate kernel: sums = A rows, for a sparse A given as edges sorted by source.
//
//   edges -> duplicator -> n scatter units -> n x n queues -> n gather units, each with its bank of sums
//
// Each source row is read once and shown to the scatter units once for every n edges that leave it. A gather unit owns
// the rows r with r % n == its number and adds a message a cycle, round robin over its queues, unless the sum it adds
// to is still in the adder.
#pragma once

#include <utility>

#include "design.hpp"
#include "dropout.hpp"

namespace hyrt {

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
template <class D, class Features, class Vertices>
void read_rows(hls::stream<int> &sources, hls::stream<Word> &words, int chunks, Features features, Vertices vertices,
               Dropout dropout) {
    for (int row = sources.read(); row >= 0; row = sources.read()) {
        const int64_t vertex = dropout.threshold > 0 ? vertices[row] : 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
            const Word word = features[(int64_t)row * chunks + chunk];
            words.write(dropout.threshold > 0 ? drop(word, dropout, vertex, chunk) : word);
        }
    }
}

// Source rows on chip: a matrix in the memory of rows.
template <class D>
void read_rows(hls::stream<int> &sources, hls::stream<Word> &words, int chunks, const typename D::Rows &rows,
               int offset) {
    for (int row = sources.read(); row >= 0; row = sources.read()) {
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma HLS PIPELINE II = 1
            words.write(rows[row % D::PES][offset - D::ROW_BASE + row / D::PES * chunks + chunk]);
        }
    }
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

// The edges of one region. S are the numbers of the scatter units; `source` is what read_rows reads from.
template <class D, class Edges, size_t... S, class... Source>
void aggregate_region(Edges edges, int first, int count, int chunks, int offset, int &held, Word (&row)[MOST_CHUNKS],
                      typename D::Sums &sums, std::index_sequence<S...>, Source &...source) {
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
    HYRT_PROCESS(aggregation, read_rows<D>(sources, words, chunks, source...));
    HYRT_PROCESS(aggregation, duplicate<D::PES>(groups, words, chunks, row, copies));
    HYRT_PROCESSES(aggregation, s, D::PES, scatter<D::PES>(lanes[s], copies[s], chunks, queues[s]));
    HYRT_PROCESSES(aggregation, g, D::PES, gather(offset, sums[g], queues[S][g]...));
    HYRT_JOIN(aggregation);
}

// Rows 0 .. num_to - 1 of `chunks` words at `offset` of the sums become the weighted sums of the edges first .. first +
// count - 1.
template <class D, class Edges, class... Source>
void aggregate(Edges edges, int first, int count, int chunks, int num_to, int offset, Word (&row)[MOST_CHUNKS],
               typename D::Sums &sums, Source &...source) {
    for (int g = 0; g < D::PES; g++) {
#pragma HLS UNROLL
        clear(offset, ceil_div(num_to, D::PES) * chunks, sums[g]);
    }
    const int most = REGION_WORDS / chunks > 0 ? REGION_WORDS / chunks : 1;
    int held = -1;
    for (int done = 0; done < count; done += most) {
        const int part = count - done < most ? count - done : most;
        aggregate_region<D>(edges, first + done, part, chunks, offset, held, row, sums,
                            std::make_index_sequence<D::PES>(), source...);
    }
}

}  // namespace hyrt
