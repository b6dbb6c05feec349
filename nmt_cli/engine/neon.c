// 8-bit products on aarch64, included by engine.c. All levels compute the same integer sums, so their results are
// bit-identical.
//
// base     ARMv8.0: `smull` and pairwise sums
// dotprod  ARMv8.2 (Graviton2, Cortex-A76, Apple M1): `sdot`, 16 products per instruction
// i8mm     ARMv8.6 (Graviton3, Apple M2): `usmmla`, 32 products per instruction
#include <arm_neon.h>

#ifdef __ARM_FEATURE_MATMUL_INT8
enum { GROUP = 8 };  // bytes of an output's 8-bit weights that are adjacent in memory
enum { FLIP = 0 };  // inputs are unsigned bytes

static int in_tiles(const Linear *l, int eight_bits, int64_t rows) { return (void)l, (void)rows, eight_bits; }
static void begin_tiles(void) {}
static void end_tiles(void) {}
INLINE ints dot(ints sum, ints x, ints w) { return (void)x, (void)w, sum; }  // never called, because of `in_tiles`

// Like `tile` for all steps, with bytes x[rows][inputs]. usmmla adds x[2][8] . w[2][8] to 2 x 2 sums: a pair of rows by
// a pair of outputs. If the number of rows is odd, the last row is paired with itself; the copy's results are dropped.
INLINE void tile_of_pairs(const int rows, const Linear *l, int64_t first, const uint8_t *x, const float *row_scale,
                          float *out, int64_t stride) {
    enum { PAIRS = LANES / 2 };
    const int8_t *w = (const int8_t *)l->weights + first * l->inputs;
    int32x4_t sums[(ROWS + 1) / 2][PAIRS];
    UNROLL for (int r = 0; r < rows; r += 2)
        UNROLL for (int o = 0; o < PAIRS; o++) {
            const int32x2_t start = vld1_s32(l->start + first + 2 * o);
            sums[r / 2][o] = vcombine_s32(start, start);
        }
    for (int64_t k = 0; k < l->inputs; k += GROUP, w += LANES * GROUP) {
        uint8x16_t pairs[(ROWS + 1) / 2];
        UNROLL for (int r = 0; r < rows; r += 2) {
            const uint8_t *at = x + r * l->inputs + k;
            pairs[r / 2] = vcombine_u8(vld1_u8(at), vld1_u8(r + 1 < rows ? at + l->inputs : at));
        }
        UNROLL for (int o = 0; o < PAIRS; o++) {
            const int8x16_t weights = vld1q_s8(w + o * 2 * GROUP);
            UNROLL for (int r = 0; r < rows; r += 2)
                sums[r / 2][o] = vusmmlaq_s32(sums[r / 2][o], pairs[r / 2], weights);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        union { ints whole; int64x2_t parts[4]; } sum;
        UNROLL for (int i = 0; i < 4; i++) {
            const int64x2_t a = (int64x2_t)sums[r / 2][2 * i], b = (int64x2_t)sums[r / 2][2 * i + 1];
            sum.parts[i] = r % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b);
        }
        const floats scale = load(l->scale + first) * row_scale[r];
        const floats y = __builtin_convertvector(sum.whole, floats) * scale + load(l->bias + first);
        store(out + r * stride, activate(y, l->activation));
    }
}

static void product_in_tiles(const Linear *l, int64_t from, int64_t to, const uint8_t *x, const float *row_scale,
                             float *out, int64_t stride, int64_t rows) {
    for (int64_t output = from; output < to; output += LANES)
        for (int64_t row = 0, count; row < rows; row += count) {
            count = rows - row < ROWS ? rows - row : ROWS;
            CALL(count, ROWS, tile_of_pairs, l, output, x + row * l->inputs, row_scale + row,
                 out + row * stride + output - from, stride)
        }
}
#else
enum { GROUP = 4 };
enum { FLIP = 128 };  // these instructions multiply signed bytes, so inputs are stored minus 128

INLINE ints dot(ints sum, ints x, ints w) {
    union { ints whole; int32x4_t sums[4]; int8x16_t bytes[4]; } s = {sum}, a = {x}, b = {w};
    UNROLL for (int i = 0; i < 4; i++) {
#ifdef __ARM_FEATURE_DOTPROD
        s.sums[i] = vdotq_s32(s.sums[i], a.bytes[i], b.bytes[i]);
#else  // the sum of two products fits in 16 bits: at most 2 x 128 x 127
        const int16x8_t low = vmull_s8(vget_low_s8(a.bytes[i]), vget_low_s8(b.bytes[i]));
        const int16x8_t high = vmull_high_s8(a.bytes[i], b.bytes[i]);
        s.sums[i] = vpadalq_s16(s.sums[i], vpaddq_s16(low, high));
#endif
    }
    return s.whole;
}
#endif
