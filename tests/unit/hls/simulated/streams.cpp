// Small dataflow regions for the tests of the simulation itself, compiled in both modes.
#include <cstdint>
#include <string>

#include "dataflow.h"
#include "hls_stream.h"

using Value = std::uint32_t;
using Stream = hls::stream<Value>;

// ---- A data-driven pipeline: every process executes its list of reads and writes in order.

struct Step {
    std::int32_t writes, stream, count;
};

constexpr int MAX_STREAMS = 24;

static void process(int number, const Step *steps, int count, Stream *streams, std::uint64_t *sum) {
    Value written = 0;
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < steps[i].count; ++j)
            if (steps[i].writes)
                streams[steps[i].stream].write(static_cast<Value>(number) * 1000003u + ++written);
            else
                *sum = *sum * 31 + streams[steps[i].stream].read();
}

static void run_pipeline(int processes, const Step *steps, const int *firsts, int streams, const int *depths,
                         std::uint64_t *sums) {
    HYRT_DATAFLOW(pipeline);
    Stream all[MAX_STREAMS];
    for (int i = 0; i < streams; ++i)
        hyrt::set_depth(all[i], "s" + std::to_string(i), depths[i]);
    HYRT_PROCESSES(pipeline, i, processes, process(i, steps + firsts[i], firsts[i + 1] - firsts[i], all, sums + i));
    HYRT_JOIN(pipeline);
}

// ---- A fork and a join: one branch needs a whole group before it emits a total, and the join reads that first.

constexpr int GROUP = 8;

static void fork(int groups, Stream &bypass, Stream &summed) {
    for (int i = 0; i < groups * GROUP; ++i) {
        bypass.write(i);
        summed.write(i);
    }
}

static void total(int groups, Stream &summed, Stream &totals) {
    for (int group = 0; group < groups; ++group) {
        Value sum = 0;
        for (int i = 0; i < GROUP; ++i)
            sum += summed.read();
        totals.write(sum);
    }
}

static void join(int groups, Stream &bypass, Stream &totals, std::uint64_t *result) {
    for (int group = 0; group < groups; ++group) {
        const std::uint64_t sum = totals.read();
        for (int i = 0; i < GROUP; ++i)
            *result += sum * bypass.read();
    }
}

template <int DEPTH> static void fork_join(int groups, std::uint64_t *result) {
    HYRT_DATAFLOW(normalise);
    Stream bypass("bypass"), summed("summed"), totals("totals");
    HYRT_DEPTH(bypass, DEPTH);
    HYRT_DEPTH(summed, 2);
    HYRT_DEPTH(totals, 2);
    HYRT_PROCESS(normalise, fork(groups, bypass, summed));
    HYRT_PROCESS(normalise, total(groups, summed, totals));
    HYRT_PROCESS(normalise, join(groups, bypass, totals, result));
    HYRT_JOIN(normalise);
}

// ---- The same region, nested as a process of an outer region.

static void source(int count, Stream &out) {
    for (int i = 0; i < count; ++i)
        out.write(i);
}

static void sink(int count, Stream &in, std::uint64_t *result) {
    for (int i = 0; i < count; ++i)
        *result = *result * 31 + in.read();
}

static void inner(int depth, int groups, Stream &in, Stream &out) {
    std::uint64_t result = in.read();
    if (depth == 4)
        fork_join<4>(groups, &result);
    else
        fork_join<16>(groups, &result);
    out.write(static_cast<Value>(result));
}

static void nested(int depth, int groups, std::uint64_t *result) {
    HYRT_DATAFLOW(outer);
    Stream in("in"), out("out");
    HYRT_PROCESS(outer, source(1, in));
    HYRT_PROCESS(outer, inner(depth, groups, in, out));
    HYRT_PROCESS(outer, sink(1, out, result));
    HYRT_JOIN(outer);
}

// ---- Processes that poll.

constexpr int WAYS = 3;

static void produce(int number, int count, bool ends, Stream &out) {
    for (int i = 0; i < count; ++i)
        out.write(number * 1000 + i + 1);
    if (ends)
        out.write(0);
}

// Round robin over its inputs; the value 0 ends an input.
static void merge(Stream (&in)[WAYS], std::uint64_t *result) {
    bool open[WAYS] = {true, true, true};
    int left = WAYS;
    for (int way = 0; left > 0; way = (way + 1) % WAYS) {
        if (!open[way] || in[way].empty())
            continue;
        const Value value = in[way].read();
        *result += value;
        if (value == 0) {
            open[way] = false;
            --left;
        }
    }
}

static void merged(int count, bool ends, std::uint64_t *result) {
    HYRT_DATAFLOW(merging);
    Stream ways[WAYS];
    HYRT_DEPTH(ways, 3);
    HYRT_PROCESSES(merging, i, WAYS, produce(i, count, ends || i != 1, ways[i]));
    HYRT_PROCESS(merging, merge(ways, result));
    HYRT_JOIN(merging);
}

// Replies `delay` rounds after its input, by counting rounds in which nothing arrives. The requester waits for each
// reply.
static void delayed(int count, int delay, Stream &in, Stream &out) {
    int age = -1;
    for (Value value = 0; count > 0;) {
        if (age < 0 && in.read_nb(value))
            age = 0;
        else if (age < 0 || ++age < delay)
            (void)in.empty();
        else {
            while (!out.write_nb(value))
                ;
            age = -1;
            --count;
        }
    }
}

static void request(int count, Stream &out, Stream &in, std::uint64_t *result) {
    for (int i = 0; i < count; ++i) {
        out.write(i + 1);
        *result = *result * 31 + in.read();
    }
}

static void request_reply(int count, int delay, std::uint64_t *result) {
    HYRT_DATAFLOW(requesting);
    Stream requests("requests"), replies("replies");
    HYRT_DEPTH(requests, 1);
    HYRT_PROCESS(requesting, request(count, requests, replies, result));
    HYRT_PROCESS(requesting, delayed(count, delay, requests, replies));
    HYRT_JOIN(requesting);
}

// Wait by polling size() and full() only.
static void patient_source(int count, Stream &out) {
    for (int i = 0; i < count; ++i) {
        while (out.full())
            ;
        out.write(i);
    }
}

static void patient_sink(int count, Stream &in, std::uint64_t *result) {
    *result = *result * 31 + in.read();
    for (int i = 1; i < count; i += 2) {
        while (in.size() < 2)
            ;
        sink(2, in, result);
    }
}

static void patient(int count, std::uint64_t *result) {
    HYRT_DATAFLOW(patience);
    Stream values("values");
    HYRT_DEPTH(values, 2);
    HYRT_PROCESS(patience, patient_source(count, values));
    HYRT_PROCESS(patience, patient_sink(count, values, result));
    HYRT_JOIN(patience);
}

// ---- Faults.

static void broken(Stream &in) {
    for (int i = 0;; ++i) {
        if (i == 3)
            throw std::runtime_error("the fourth value is bad");
        in.read();
    }
}

static void throwing(int kind, std::uint64_t *result) {
    HYRT_DATAFLOW(faulty);
    Stream values("values"), never("never"), silent("silent");
    HYRT_PROCESS(faulty, source(100, values));
    if (kind == 0)
        HYRT_PROCESS(faulty, broken(values));
    else
        HYRT_PROCESS(faulty, throw kind);
    HYRT_PROCESS(faulty, sink(1, never, result));
    HYRT_PROCESS(faulty, { for (bool empty = true; empty;) empty = silent.empty(); });
    HYRT_JOIN(faulty);
}

static void two_writers() {
    HYRT_DATAFLOW(crowd);
    Stream shared("shared");
    std::uint64_t result = 0;
    HYRT_PROCESSES(crowd, i, 2, produce(i, 5, false, shared));
    HYRT_PROCESS(crowd, sink(10, shared, &result));
    HYRT_JOIN(crowd);
}

static void leaves_values(bool in_process) {
    if (in_process) {
        HYRT_DATAFLOW(leaving);
        HYRT_PROCESS(leaving, { Stream("forgotten").write(1); });
        HYRT_JOIN(leaving);
        return;
    }
    Stream forgotten("forgotten");
    source(2, forgotten);
}

static void not_joined(std::uint64_t *result) {
    HYRT_DATAFLOW(open_region);
    HYRT_PROCESS(open_region, { *result = 1; });
}

static void bad_depth() {
    Stream values;
    HYRT_DEPTH(values, 0);
}

// ---- Streams outside any process, as in a test bench.

static void bench(std::uint64_t *result) {
    Stream in("in"), out("out");
    HYRT_DEPTH(in, 2);
    HYRT_DEPTH(out, 40);
    source(40, in); // a test bench may write more values than the depth
    HYRT_DATAFLOW(kernel);
    HYRT_PROCESS(kernel, { for (int i = 0; i < 40; ++i) out.write(2 * in.read()); });
    HYRT_JOIN(kernel);
    if (out.size() != 40 || out.empty() || out.full() || !in.empty())
        throw std::runtime_error("the streams' sizes are wrong");
    sink(39, out, result);
    Value last = 0;
    if (!out.read_nb(last) || out.read_nb(last) || !out.write_nb(last))
        throw std::runtime_error("read_nb or write_nb is wrong");
    out >> last;
    out << last;
    out.read(last);
    *result = *result * 31 + last;
}

static void empty_bench() {
    Stream nothing("nothing");
    nothing.read();
}

// Exercise growth and wrap-around of the ring buffer.
static void ring(int rounds, std::uint64_t *result) {
    Stream values("values");
    std::uint64_t written = 0, expected = 0, random = 1;
    for (int i = 0; i < rounds; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (std::uint64_t j = 0; j < (random >> 60); ++j)
            values.write(static_cast<Value>(written++));
        for (std::uint64_t j = 0; j < (random >> 56 & 15) && !values.empty(); ++j)
            *result += values.read() != static_cast<Value>(expected++);
    }
    while (!values.empty())
        *result += values.read() != static_cast<Value>(expected++);
    *result += written != expected;
}

extern "C" {

int pipeline_case(int processes, const Step *steps, const int *firsts, int streams, const int *depths,
                  std::uint64_t *sums, char *message, int size) {
    return hyrt::report_errors(message, size, [&] { run_pipeline(processes, steps, firsts, streams, depths, sums); });
}

int case_named(const char *name, int first, int second, std::uint64_t *result, char *message, int size) {
    const std::string selected = name;
    return hyrt::report_errors(message, size, [&] {
        if (selected == "fork_join")
            return second == 4 ? fork_join<4>(first, result) : fork_join<16>(first, result);
        if (selected == "nested")
            return nested(second, first, result);
        if (selected == "merged")
            return merged(first, second != 0, result);
        if (selected == "request_reply")
            return request_reply(first, second, result);
        if (selected == "patient")
            return patient(first, result);
        if (selected == "throwing")
            return throwing(first, result);
        if (selected == "two_writers")
            return two_writers();
        if (selected == "leaves_values")
            return leaves_values(first != 0);
        if (selected == "not_joined")
            return not_joined(result);
        if (selected == "bad_depth")
            return bad_depth();
        if (selected == "bench")
            return bench(result);
        if (selected == "empty_bench")
            return empty_bench();
        if (selected == "ring")
            return ring(first, result);
        throw std::runtime_error("there is no case " + selected);
    });
}

} // extern "C"
