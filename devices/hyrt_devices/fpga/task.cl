// OpenCL C model of the HLS trainer: one work item computes a task of hyrt_hls/task_layout.py: forward, loss, backward.
// It reads and writes the same arrays as the HLS kernel, and stores its matrices at the same offsets of an arena of PES
// banks of ARENA_WORDS words, which here is in global memory (`onchip`).
#define LANES 16
#define HEADER 16
#define RECORD 24
#define MAX_CHUNKS 512
// Register tiles: rows of the left matrix in `update`, and rows of the result in `weight_gradient`.
#define UPDATE_ROWS 4
#define GRADIENT_ROWS 8
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

static Layer read_layer(__global const int *task, const int index)
{
    __global const int *r = task + HEADER + index * RECORD;
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

// Row `row` of a matrix with `chunks` words per row that starts at word `offset` of every bank.
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

// Dropout with the generator of hyrt.runtime.rng: 16 random bits per column, four columns per 64-bit draw.
static inline float16 drop(const float16 values, const Dropout dropout, const ulong stream, const int chunk)
{
    int draws[LANES];
    for (int quarter = 0; quarter < 4; quarter++) {
        const ulong bits = mix64(stream + (ulong)(4 * chunk + quarter + 1) * GOLDEN);
        for (int lane = 0; lane < 4; lane++) draws[4 * quarter + lane] = (int)(bits >> (16 * lane) & 0xFFFF);
    }
    return select((float16)0, values * dropout.scale, vload16(0, draws) >= (int16)dropout.threshold);
}

static inline ulong stream_of(const Dropout dropout, const long vertex)
{
    return mix64(dropout.key + ((ulong)vertex + 1) * GOLDEN);
}

static void clear(__global float *onchip, const int offset, const int chunks, const int rows)
{
    for (int row = 0; row < rows; row++) {
        __global float *out_row = row_of(onchip, offset, chunks, row);
        for (int c = 0; c < chunks; c++) vstore16((float16)0, c, out_row);
    }
}

// out_row += weight * in_row.
static inline void add_row(const __global float *in_row, __global float *out_row, const float weight, const int chunks)
{
    for (int c = 0; c < chunks; c++) vstore16(vload16(c, out_row) + weight * vload16(c, in_row), c, out_row);
}

// Chunk `chunk` of a feature row as float32. Values may be smaller than float32: `codes` is the format in the header.
static inline float16 features_of(__global const int *row, const int codes, const int chunk)
{
    if (codes == 1) {
        float16 values;
        __global const ushort *halves = (__global const ushort *)row + chunk * LANES;
        for (int lane = 0; lane < LANES; lane++) {
            const uint half_bits = halves[lane], exponent = half_bits >> 10 & 0x1F, fraction = half_bits & 0x3FF;
            const uint sign = (half_bits & 0x8000) << 16;
            const float subnormal = (float)fraction * 5.9604644775390625e-8f;
            const float normal = as_float((exponent + 112) << 23 | fraction << 13);
            ((float *)&values)[lane] = as_float(as_uint(exponent ? normal : subnormal) | sign);
        }
        return values;
    }
    if (codes == 2) return as_float16(convert_uint16(vload16(chunk, (__global const ushort *)row)) << 16);
    if (codes == 3) return convert_float16(vload16(chunk, (__global const char *)row));
    return vload16(chunk, (__global const float *)row);
}

// Weighted sums of feature rows in memory. Edges are sorted by source, so that each row is read once, and its dropout
// applied once.
static void aggregate_features(
    __global const float *features, __global const long *vertices, const int codes, const Dropout dropout,
    __global const int *edges, const Layer layer, __global float *onchip)
{
    float row[MAX_CHUNKS * LANES];
    const int chunks = layer.in_chunks, chunks_per_word = codes == 0 ? 1 : codes == 3 ? 4 : 2;
    const int row_words = (chunks + chunks_per_word - 1) / chunks_per_word;
    clear(onchip, layer.combined, chunks, layer.rows * layer.parts);
    int cached_source = -1;
    for (int e = layer.first_edge; e < layer.first_edge + layer.num_edges; e++) {
        const int4 edge = vload4(e, edges);
        if (edge.x != cached_source) {
            cached_source = edge.x;
            __global const int *in_row = (__global const int *)features + (size_t)cached_source * row_words * LANES;
            const ulong stream = dropout.threshold ? stream_of(dropout, vertices[cached_source]) : 0;
            for (int c = 0; c < chunks; c++) {
                const float16 values = features_of(in_row, codes, c);
                vstore16(dropout.threshold ? drop(values, dropout, stream, c) : values, c, row);
            }
        }
        __global float *out_row = row_of(onchip, layer.combined, chunks, edge.y);
        const float weight = as_float(edge.z);
        for (int c = 0; c < chunks; c++) vstore16(vload16(c, out_row) + weight * vload16(c, row), c, out_row);
    }
}

static void aggregate(
    __global const int *edges, const int first, const int count, const int in, const int out, const int chunks,
    const int rows, __global float *onchip)
{
    clear(onchip, out, chunks, rows);
    for (int e = first; e < first + count; e++) {
        const int4 edge = vload4(e, edges);
        add_row(row_of(onchip, in, chunks, edge.x), row_of(onchip, out, chunks, edge.y), as_float(edge.z), chunks);
    }
}

// output = dropout(relu(combined @ weight + bias)), UPDATE_ROWS rows and one word of columns at a time.
static void update(
    const Layer layer, __global const float *weights, __global const long *vertices, __global float *scores,
    const int is_last, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global const float *matrix = weights + (size_t)layer.weights * LANES;
    for (int c = 0; c < columns; c++) {
        const float16 bias = vload16((size_t)layer.parts * depth * columns + c, matrix);
        for (int first = 0; first < layer.rows; first += UPDATE_ROWS) {
            float16 sums[UPDATE_ROWS];
            for (int i = 0; i < UPDATE_ROWS; i++) sums[i] = bias;
            for (int part = 0; part < layer.parts; part++) {
                __global const float *in_rows[UPDATE_ROWS];
                for (int i = 0; i < UPDATE_ROWS; i++) {
                    // Repeat the last row beyond the end; these sums are not stored.
                    const int row = min(first + i, layer.rows - 1) * layer.parts + part;
                    in_rows[i] = row_of(onchip, layer.combined, layer.in_chunks, row);
                }
                __global const float *weight = matrix + ((size_t)part * depth * columns + c) * LANES;
                for (int k = 0; k < depth; k++) {
                    const float16 values = vload16((size_t)k * columns, weight);
                    for (int i = 0; i < UPDATE_ROWS; i++) sums[i] += in_rows[i][k] * values;
                }
            }
            for (int i = 0; i < UPDATE_ROWS && first + i < layer.rows; i++) {
                const int row = first + i;
                float16 values = sums[i];
                // NaN is retained.
                if (layer.relu) values = select(values, (float16)0, values < 0);
                if (layer.dropout.threshold)
                    values = drop(values, layer.dropout, stream_of(layer.dropout, vertices[row]), c);
                vstore16(values, c, row_of(onchip, layer.output, columns, row));
                if (is_last) vstore16(values, (size_t)row * columns + c, scores);
            }
        }
    }
}

// Softmax cross-entropy over `classes` columns and its gradient; the losses are added by Kahan summation.
static void cross_entropy(
    const Layer last, const int classes, __global const int *labels, __global const float *target_weights,
    __global float *results, __global float *onchip)
{
    float loss_sum = 0, compensation = 0;
    int correct = 0;
    for (int row = 0; row < last.rows; row++) {
        __global const float *score = row_of(onchip, last.output, last.out_chunks, row);
        __global float *gradient = row_of(onchip, last.output_gradient, last.out_chunks, row);
        const int label = labels[row];
        const float weight = target_weights[row];
        float max_score = score[0];
        int argmax = 0;
        for (int k = 1; k < classes; k++) {
            // Ties: the first index wins. NaN is larger than any number.
            if (score[k] > max_score || (isnan(score[k]) && !isnan(max_score))) {
                max_score = score[k];
                argmax = k;
            }
        }
        float total = 0;
        for (int k = 0; k < classes; k++) {
            const float e = exp(score[k] - max_score);
            gradient[k] = e;
            total += e;
        }
        const float factor = weight / total;
        for (int k = 0; k < classes; k++) gradient[k] *= factor;
        for (int k = classes; k < last.out_chunks * LANES; k++) gradient[k] = 0;
        gradient[label] -= weight;
        const float loss = weight * (log(total) - (score[label] - max_score)) - compensation;
        const float added = loss_sum + loss;
        compensation = (added - loss_sum) - loss;
        loss_sum = added;
        correct += argmax == label;
    }
    results[0] = loss_sum;
    results[1] = correct;
}

// Gradient of ReLU and dropout, in place. With a ReLU, the output shows which elements were retained (the positive
// ones); without one, the dropout mask is generated again.
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
            const float16 masked = layer.relu ? select((float16)0, values * scale, vload16(c, output) > 0)
                                              : drop(values, layer.dropout, stream, c);
            vstore16(masked, c, gradient);
        }
    }
}

// combined^T @ output_gradient, GRADIENT_ROWS rows of the result at a time, and the column sums of output_gradient.
static void weight_gradient(const Layer layer, __global float *gradients, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global float *matrix = gradients + (size_t)layer.weights * LANES;
    for (int part = 0; part < layer.parts; part++) {
        for (int k = 0; k < depth; k += GRADIENT_ROWS) {
            for (int c = 0; c < columns; c++) {
                float16 sums[GRADIENT_ROWS];
                for (int i = 0; i < GRADIENT_ROWS; i++) sums[i] = 0;
                for (int row = 0; row < layer.rows; row++) {
                    __global const float *in_row =
                        row_of(onchip, layer.combined, layer.in_chunks, row * layer.parts + part) + k;
                    const float16 values = vload16(c, row_of(onchip, layer.output_gradient, columns, row));
                    for (int i = 0; i < GRADIENT_ROWS; i++) sums[i] += in_row[i] * values;
                }
                for (int i = 0; i < GRADIENT_ROWS; i++)
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

// combined_gradient = output_gradient @ weight^T, one block of LANES x LANES weights at a time, transposed once for all
// rows.
static void input_gradient(const Layer layer, __global const float *weights, __global float *onchip)
{
    const int depth = layer.in_chunks * LANES, columns = layer.out_chunks;
    __global const float *matrix = weights + (size_t)layer.weights * LANES;
    for (int part = 0; part < layer.parts; part++) {
        for (int chunk = 0; chunk < layer.in_chunks; chunk++) {
            for (int c = 0; c < columns; c++) {
                float transposed[LANES * LANES];
                for (int k = 0; k < LANES; k++) {
                    const size_t word = (size_t)(part * depth + chunk * LANES + k) * columns + c;
                    for (int lane = 0; lane < LANES; lane++) transposed[lane * LANES + k] = matrix[word * LANES + lane];
                }
                for (int row = 0; row < layer.rows; row++) {
                    __global const float *in_row = row_of(onchip, layer.output_gradient, columns, row) + c * LANES;
                    __global float *out_row =
                        row_of(onchip, layer.combined_gradient, layer.in_chunks, row * layer.parts + part);
                    float16 sum = c ? vload16(chunk, out_row) : (float16)0;
                    for (int lane = 0; lane < LANES; lane++) sum += in_row[lane] * vload16(lane, transposed);
                    vstore16(sum, chunk, out_row);
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
            const int input = read_layer(task, l - 1).output;
            aggregate(
                edges, layer.first_edge, layer.num_edges, input, layer.combined, layer.in_chunks,
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
            const int input_gradient_at = read_layer(task, l - 1).output_gradient;
            input_gradient(layer, weights, onchip);
            aggregate(
                edges, layer.first_backward_edge, layer.num_backward_edges, layer.combined_gradient,
                input_gradient_at, layer.in_chunks, layer.num_src, onchip);
        }
    }
}
