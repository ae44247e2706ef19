// One task of hyrt_hls/task/layout.py by one work item: forward, loss, backward. It reads and writes what the HLS kernel does, and keeps
// its matrices at the same places of an arena of PES banks of ARENA_WORDS words, which here lies in memory (`onchip`).
#define LANES 16
#define HEADER 16
#define RECORD 24
#define MOST_CHUNKS 512
// Rows of the left matrix, or of the result, that are kept in registers.
#define TALL 4
#define DEEP 8
#define GOLDEN 0x9E3779B97F4A7C15UL

typedef struct {
    int threshold;
    float scale;
    ulong key;
} Dropout;

typedef struct {
    int rows, parts, num_src, in_chunks, out_chunks, relu;
    Dropout dropout;
    int first_edge, num_edges, first_backward_edge, num_backward_edges;
    int weights, combined, output, output_gradient, combined_gradient;
} Layer;

static Dropout read_dropout(__global const int *words)
{
    Dropout dropout;
    dropout.threshold = words[0];
    dropout.scale = as_float(words[1]);
    dropout.key = (ulong)(uint)words[2] | (ulong)(uint)words[3] << 32;
    return dropout;
}

static Layer read_layer(__global const int *task, const int number)
{
    __global const int *r = task + HEADER + number * RECORD;
    Layer layer;
    layer.rows = r[0];
    layer.parts = r[1];
    layer.num_src = r[2];
    layer.in_chunks = r[3];
    layer.out_chunks = r[4];
    layer.relu = r[5];
    layer.dropout = read_dropout(r + 6);
    layer.first_edge = r[10];
    layer.num_edges = r[11];
    layer.first_backward_edge = r[12];
    layer.num_backward_edges = r[13];
    layer.weights = r[14];
    layer.combined = r[15];
    layer.output = r[16];
    layer.output_gradient = r[17];
    layer.combined_gradient = r[18];
    return layer;
}

// Row `row` of the matrix of `chunks` words a row that starts at word `offset` of every bank.
static inline __global float *row_of(__global float *onchip, const int offset, const int chunks, const int row)
{
    return onchip + ((size_t)(row % PES) * ARENA_WORDS + offset + (size_t)(row / PES) * chunks) * LANES;
}

static inline ulong mix64(ulong z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9UL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBUL;
    return z ^ (z >> 31);
}

// The generator of hyrt.runtime.rng: 16 bits a column, four columns a draw.
static inline float16 drop(const float16 values, const Dropout dropout, const ulong stream, const int chunk)
{
    int drawn[LANES];
    for (int quarter = 0; quarter < 4; quarter++) {
        const ulong bits = mix64(stream + (ulong)(4 * chunk + quarter + 1) * GOLDEN);
        for (int lane = 0; lane < 4; lane++) drawn[4 * quarter + lane] = (int)(bits >> (16 * lane) & 0xFFFF);
    }
    return select((float16)0, values * dropout.scale, vload16(0, drawn) >= (int16)dropout.threshold);
}

static inline ulong stream_of(const Dropout dropout, const long vertex)
{
    return mix64(dropout.key + ((ulong)vertex + 1) * GOLDEN);
}

static void clear(__global float *onchip, const int offset, const int chunks, const int rows)
{
    for (int row = 0; row < rows; row++) {
        __global float *to = row_of(onchip, offset, chunks, row);
        for (int c = 0; c < chunks; c++) vstore16((float16)0, c, to);
    }
}

// to += weight * from, a row.
static inline void add_row(const __global float *from, __global float *to, const float weight, const int chunks)
{
    for (int c = 0; c < chunks; c++) vstore16(vload16(c, to) + weight * vload16(c, from), c, to);
}

// Chunk `chunk` of a row of the features, whose values may be smaller than float32: `codes` is the header's.
static inline float16 features_of(__global const int *row, const int codes, const int chunk)
{
    if (codes == 1) {
        float16 values;
        __global const ushort *halves = (__global const ushort *)row + chunk * LANES;
        for (int lane = 0; lane < LANES; lane++) {
            const uint half_bits = halves[lane], exponent = half_bits >> 10 & 0x1F, fraction = half_bits & 0x3FF;
            const uint sign = (half_bits & 0x8000) << 16;
            const float small = (float)fraction * 5.9604644775390625e-8f;
            const float usual = as_float((exponent + 112) << 23 | fraction << 13);
            ((float *)&values)[lane] = as_float(as_uint(exponent ? usual : small) | sign);
        }
        return values;
    }
    if (codes == 2) return as_float16(convert_uint16(vload16(chunk, (__global const ushort *)row)) << 16);
    if (codes == 3) return convert_float16(vload16(chunk, (__global const char *)row));
    return vload16(chunk, (__global const float *)row);
}

// Of rows in memory, each read (and dropped from) once, since edges are sorted by source.
static void aggregate_features(
    __global const float *features, __global const long *vertices, const int codes, const Dropout dropout,
    __global const int *edges, const Layer layer, __global float *onchip)
{
    float row[MOST_CHUNKS * LANES];
    const int chunks = layer.in_chunks, together = codes == 0 ? 1 : codes == 3 ? 4 : 2;
    const int row_words = (chunks + together - 1) / together;
    clear(onchip, layer.combined, chunks, layer.rows * layer.parts);
    int held = -1;
    for (int e = layer.first_edge; e < layer.first_edge + layer.num_edges; e++) {
        const int4 edge = vload4(e, edges);
        if (edge.x != held) {
            held = edge.x;
            __global const int *from = (__global const int *)features + (size_t)held * row_words * LANES;
            const ulong stream = dropout.threshold ? stream_of(dropout, vertices[held]) : 0;
            for (int c = 0; c < chunks; c++) {
                const float16 values = features_of(from, codes, c);
                vstore16(dropout.threshold ? drop(values, dropout, stream, c) : values, c, row);
            }
        }
        __global float *to = row_of(onchip, layer.combined, chunks, edge.y);
        const float weight = as_float(edge.z);
        for (int c = 0; c < chunks; c++) vstore16(vload16(c, to) + weight * vload16(c, row), c, to);
    }
}

static void aggregate(
    __global const int *edges, const int first, const int count, const int from, const int to, const int chunks,
    const int rows, __global float *onchip)
{
    clear(onchip, to, chunks, rows);
    for (int e = first; e < first + count; e++) {
        const int4 edge = vload4(e, edges);
        add_row(row_of(onchip, from, chunks, edge.x), row_of(onchip, to, chunks, edge.y), as_float(edge.z), chunks);
    }
}

// output = dropout(relu(combined @ weight + bias)), TALL rows and one word of columns at a time.
static void update(
    const Layer layer, __global const float *weights, __global const long *vertices, __global float *scores,
    const int is_last, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global const float *matrix = weights + (size_t)layer.weights * LANES;
    for (int c = 0; c < columns; c++) {
        const float16 bias = vload16((size_t)layer.parts * depth * columns + c, matrix);
        for (int first = 0; first < layer.rows; first += TALL) {
            float16 sums[TALL];
            for (int i = 0; i < TALL; i++) sums[i] = bias;
            for (int part = 0; part < layer.parts; part++) {
                __global const float *from[TALL];
                for (int i = 0; i < TALL; i++) {
                    // Past the end the last row again: its sums are not stored.
                    const int row = min(first + i, layer.rows - 1) * layer.parts + part;
                    from[i] = row_of(onchip, layer.combined, layer.in_chunks, row);
                }
                __global const float *weight = matrix + ((size_t)part * depth * columns + c) * LANES;
                for (int k = 0; k < depth; k++) {
                    const float16 values = vload16((size_t)k * columns, weight);
                    for (int i = 0; i < TALL; i++) sums[i] += from[i][k] * values;
                }
            }
            for (int i = 0; i < TALL && first + i < layer.rows; i++) {
                const int row = first + i;
                float16 values = sums[i];
                // What is not a number stays.
                if (layer.relu) values = select(values, (float16)0, values < 0);
                if (layer.dropout.threshold)
                    values = drop(values, layer.dropout, stream_of(layer.dropout, vertices[row]), c);
                vstore16(values, c, row_of(onchip, layer.output, columns, row));
                if (is_last) vstore16(values, (size_t)row * columns + c, scores);
            }
        }
    }
}

// Softmax cross-entropy over `classes` columns and its gradient; the rounding errors of the sum of losses are carried along.
static void cross_entropy(
    const Layer last, const int classes, __global const int *labels, __global const float *target_weights,
    __global float *results, __global float *onchip)
{
    float loss_sum = 0, lost = 0;
    int correct = 0;
    for (int row = 0; row < last.rows; row++) {
        __global const float *score = row_of(onchip, last.output, last.out_chunks, row);
        __global float *gradient = row_of(onchip, last.output_gradient, last.out_chunks, row);
        const int label = labels[row];
        const float weight = target_weights[row];
        float top = score[0];
        int best = 0;
        for (int k = 1; k < classes; k++) {
            // The first of equal ones wins; what is not a number is larger than all.
            if (score[k] > top || (isnan(score[k]) && !isnan(top))) {
                top = score[k];
                best = k;
            }
        }
        float total = 0;
        for (int k = 0; k < classes; k++) {
            const float e = exp(score[k] - top);
            gradient[k] = e;
            total += e;
        }
        const float factor = weight / total;
        for (int k = 0; k < classes; k++) gradient[k] *= factor;
        for (int k = classes; k < last.out_chunks * LANES; k++) gradient[k] = 0;
        gradient[label] -= weight;
        const float loss = weight * (log(total) - (score[label] - top)) - lost;
        const float added = loss_sum + loss;
        lost = (added - loss_sum) - loss;
        loss_sum = added;
        correct += best == label;
    }
    results[0] = loss_sum;
    results[1] = correct;
}

// Backward through ReLU and dropout, in place. After a ReLU the output shows what was kept; without one the mask is drawn again.
static void mask(const Layer layer, __global const long *vertices, __global float *onchip)
{
    if (!layer.relu && !layer.dropout.threshold) return;
    const float scale = layer.dropout.threshold ? layer.dropout.scale : 1;
    for (int row = 0; row < layer.rows; row++) {
        __global const float *output = row_of(onchip, layer.output, layer.out_chunks, row);
        __global float *gradient = row_of(onchip, layer.output_gradient, layer.out_chunks, row);
        const ulong stream = layer.relu ? 0 : stream_of(layer.dropout, vertices[row]);
        for (int c = 0; c < layer.out_chunks; c++) {
            const float16 values = vload16(c, gradient);
            const float16 kept = layer.relu ? select((float16)0, values * scale, vload16(c, output) > 0)
                                            : drop(values, layer.dropout, stream, c);
            vstore16(kept, c, gradient);
        }
    }
}

// combined^T @ output_gradient and the sums of its columns, DEEP rows of the result at a time.
static void weight_gradient(const Layer layer, __global float *gradients, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global float *matrix = gradients + (size_t)layer.weights * LANES;
    for (int part = 0; part < layer.parts; part++) {
        for (int k = 0; k < depth; k += DEEP) {
            for (int c = 0; c < columns; c++) {
                float16 sums[DEEP];
                for (int i = 0; i < DEEP; i++) sums[i] = 0;
                for (int row = 0; row < layer.rows; row++) {
                    __global const float *from =
                        row_of(onchip, layer.combined, layer.in_chunks, row * layer.parts + part) + k;
                    const float16 values = vload16(c, row_of(onchip, layer.output_gradient, columns, row));
                    for (int i = 0; i < DEEP; i++) sums[i] += from[i] * values;
                }
                for (int i = 0; i < DEEP; i++)
                    vstore16(sums[i], (size_t)(part * depth + k + i) * columns + c, matrix);
            }
        }
    }
    for (int c = 0; c < columns; c++) {
        float16 sum = 0;
        for (int row = 0; row < layer.rows; row++)
            sum += vload16(c, row_of(onchip, layer.output_gradient, columns, row));
        vstore16(sum, (size_t)layer.parts * depth * columns + c, matrix);
    }
}

// combined_gradient = output_gradient @ weight^T, a square of LANES x LANES weights at a time, turned once for all rows.
static void input_gradient(const Layer layer, __global const float *weights, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global const float *matrix = weights + (size_t)layer.weights * LANES;
    for (int part = 0; part < layer.parts; part++) {
        for (int chunk = 0; chunk < layer.in_chunks; chunk++) {
            for (int c = 0; c < columns; c++) {
                float turned[LANES * LANES];
                for (int k = 0; k < LANES; k++) {
                    const size_t at = (size_t)(part * depth + chunk * LANES + k) * columns + c;
                    for (int lane = 0; lane < LANES; lane++) turned[lane * LANES + k] = matrix[at * LANES + lane];
                }
                for (int row = 0; row < layer.rows; row++) {
                    __global const float *from = row_of(onchip, layer.output_gradient, columns, row) + c * LANES;
                    __global float *to =
                        row_of(onchip, layer.combined_gradient, layer.in_chunks, row * layer.parts + part);
                    float16 sum = c ? vload16(chunk, to) : (float16)0;
                    for (int lane = 0; lane < LANES; lane++) sum += from[lane] * vload16(lane, turned);
                    vstore16(sum, chunk, to);
                }
            }
        }
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void hyrt_train(
    __global const float *restrict features, __global const int *restrict edges, __global const float *restrict weights,
    __global const int *restrict labels, __global const float *restrict target_weights,
    __global const long *restrict vertices, __global const int *restrict task, __global float *restrict scores,
    __global float *restrict gradients, __global float *restrict results, __global float *onchip)
{
    const int layers = task[1];
    for (int l = 0; l < layers; l++) {
        const Layer layer = read_layer(task, l);
        if (l == 0) {
            aggregate_features(features, vertices, task[11], read_dropout(task + 6), edges, layer, onchip);
        } else {
            const int below = read_layer(task, l - 1).output;
            aggregate(
                edges, layer.first_edge, layer.num_edges, below, layer.combined, layer.in_chunks,
                layer.rows * layer.parts, onchip);
        }
        update(layer, weights, vertices, scores, l == layers - 1, onchip);
    }
    cross_entropy(read_layer(task, layers - 1), task[3], labels, target_weights, results, onchip);
    for (int l = layers - 1; l >= 0; l--) {
        const Layer layer = read_layer(task, l);
        mask(layer, vertices, onchip);
        weight_gradient(layer, gradients, onchip);
        if (l > 0) {
            const int below = read_layer(task, l - 1).output_gradient;
            input_gradient(layer, weights, onchip);
            aggregate(
                edges, layer.first_backward_edge, layer.num_backward_edges, layer.combined_gradient, below, layer.in_chunks,
                layer.num_src, onchip);
        }
    }
}
