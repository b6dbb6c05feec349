// Compare the products of one level with plain C that does the same arithmetic: `engine_products SHAPES SEED`. Prints the
// levels that this CPU can run and, if all bits are equal, the number of products; exits with 1 at the first difference.
#include "engine.c"

#include <stdio.h>

const char *runnable(void);

static uint32_t state = 1;

static int64_t between(int64_t from, int64_t to) {
    state = state * 1664525u + 1013904223u;
    return from + (int64_t)((uint64_t)(state >> 8) * (uint64_t)(to - from + 1) >> 24);
}

static float number(void) { return (float)between(-(1 << 20), 1 << 20) / (float)(1 << between(10, 20)); }

static float greatest(const float *x, int64_t size, float least) {
    for (int64_t i = 0; i < size; i++)
        if (fabsf(x[i]) > least) least = fabsf(x[i]);
    return least;
}

// Quantize a row of inputs, and return the size of a step. `zero` is the byte that stands for input 0.
static float plain_inputs(const float *x, int64_t size, int positive, int32_t *bytes) {
    const float steps = positive ? HIGHEST : HIGHEST / 2, zero = positive ? 0 : HIGHEST / 2 + 1;
    const float top = greatest(x, size, 0), inverse = top > 1e-30f ? steps / top : 0;
    for (int64_t i = 0; i < size; i++) {
        const float byte = x[i] * inverse + (zero + 0.5f);
        bytes[i] = (int32_t)(floorf(byte < HIGHEST ? byte : HIGHEST) - zero);
    }
    return top / steps;
}

static float plain_weights(const float *w, int64_t size, int32_t *bytes) {
    const float scale = greatest(w, size, 1e-12f) / 127;
    for (int64_t i = 0; i < size; i++) bytes[i] = (int32_t)rintf(w[i] / scale);
    return scale;
}

// y = sum of x[i] * w[i]. Where the processor has fused multiply-add, a product and its sum are rounded once.
static float plain(const float *x, const float *w, int64_t size, float bias) {
    float sum = bias;
#pragma clang loop vectorize(disable) interleave(disable)  // a vectorized loop would round the products separately
    for (int64_t i = 0; i < size; i++) sum = x[i] * w[i] + sum;
    return sum;
}

// The same sum for quantized numbers.
static float plain_of_bytes(const int32_t *x, const int32_t *w, int64_t size, float scale, float bias) {
    int32_t products = 0;
    for (int64_t i = 0; i < size; i++) products += x[i] * w[i];
    return (float)products * scale + bias;
}

static int compare(void) {
    const int eight_bits = between(0, 3) > 0, positive = between(0, 1), rows = between(0, 3) ? between(1, 20) : between(1, 80);
    const int64_t inputs = between(0, 2) ? between(1, 200) : between(1, 1100), outputs = between(1, 150);
    const int64_t width = round_up(inputs, LANES);
    const Model m = {.eight_bits = eight_bits};
    int failed = 0;
    float *w = allocate(inputs * outputs * 4), *bias = allocate(outputs * 4), *x = allocate(rows * width * 4);
    for (int64_t i = 0; i < inputs * outputs; i++) w[i] = between(0, 9) ? number() : 0;
    for (int64_t i = 0; i < outputs; i++) bias[i] = number();
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < inputs; i++) x[r * width + i] = positive ? fabsf(number()) : number();
    const Axis in = {1, inputs, width}, out = {1, outputs, outputs};
    Linear l = pack_linear(&m, &failed, w, bias, in, &out, 1, 0);
    l.activation = between(0, 1) ? RELU : NONE, l.positive = positive;
    set_start(&l);
    Search s = {.row_scale = allocate((rows + PANEL) * 4), .quantized = allocate((rows + PANEL) * width)};
    s.interleaved = allocate(rows * width * 4);
    float *results = allocate(rows * l.stride * 4);
    apply(&s, &m, &l, x, results, rows);
    int32_t *x_bytes = allocate(rows * inputs * 4), *w_bytes = allocate(inputs * 4);
    float *x_steps = allocate(rows * 4);
    if (eight_bits)
        for (int64_t r = 0; r < rows; r++)
            x_steps[r] = plain_inputs(x + r * width, inputs, positive, x_bytes + r * inputs);
    for (int64_t o = 0; o < outputs; o++) {
        const float scale = eight_bits ? plain_weights(w + o * inputs, inputs, w_bytes) : 0;
        for (int64_t r = 0; r < rows; r++) {
            const float y = eight_bits
                ? plain_of_bytes(x_bytes + r * inputs, w_bytes, inputs, scale * x_steps[r], bias[o])
                : plain(x + r * width, w + o * inputs, inputs, bias[o]);
            const float expected = l.activation == RELU && y < 0 ? 0 : y, found = results[r * l.stride + o];
            if (memcmp(&expected, &found, 4)) {
                printf("%s, %d rows, %lld inputs, output %lld of %lld, positive %d: %a, not %a\n",
                       eight_bits ? "int8" : "fp32", rows, (long long)inputs, (long long)o, (long long)outputs,
                       positive, found, expected);
                return 0;
            }
        }
    }
    void *all[] = {w, bias, x, l.weights, l.start, l.scale, l.bias, s.row_scale, s.quantized, s.interleaved, results,
                   x_bytes, w_bytes, x_steps};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
    return 1;
}

int main(int count, char **arguments) {
    const int shapes = count > 1 ? atoi(arguments[1]) : 1;
    if (count > 2) state = (uint32_t)atoi(arguments[2]);
    printf("%s\n", runnable());
    begin_tiles();
    for (int i = 0; i < shapes; i++)
        if (!compare()) return 1;
    end_tiles();
    printf("%d products\n", shapes);
    return 0;
}
