// A small kernel that compiles with any vendor's hls_stream.h.
#include "dataflow.h"
#include "hls_stream.h"
#include "hls_vector.h"

using Word = hls::vector<float, 16>;

static void read(int count, hls::stream<float> &values) {
    for (int i = 0; i < count; ++i)
        values.write(static_cast<float>(i));
}

static void widen(int count, hls::stream<float> &values, hls::stream<Word> words[2]) {
    Word lanes;
    for (int lane = 0; lane < 16; ++lane)
        lanes[lane] = static_cast<float>(lane);
    for (int i = 0; i < count; ++i)
        words[i % 2].write(Word(values.read()) * 0.5f + lanes);
}

static void add(int count, hls::stream<Word> words[2], float *out) {
    Word sum = 0.0f;
    for (int i = 0; i < count; ++i)
        sum += words[i % 2].read();
    for (int lane = 0; lane < 16; ++lane)
        out[lane] = sum[lane];
}

extern "C" {

int vendor_streams() {
    return !hyrt::is_described<hls::stream<float>>::value;
}

int chain(float *out, int count, char *message, int size) {
    return hyrt::report_errors(message, size, [&] {
        HYRT_DATAFLOW(chain);
        hls::stream<float> values("values");
        hls::stream<Word> words[2];
        HYRT_DEPTH(values, 4);
        HYRT_DEPTH(words, 2);
        HYRT_PROCESS(chain, read(count, values));
        HYRT_PROCESS(chain, widen(count, values, words));
        HYRT_PROCESS(chain, add(count, words, out));
        HYRT_JOIN(chain);
    });
}

} // extern "C"
