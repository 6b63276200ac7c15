/* Linear layer in 8 bits for processors with AVX-512 VNNI; elsewhere only sie_has_int8 exists.
 *
 * A row of inputs is x = low + step * q with q from 0 to 255, between the row's own least and largest number, so that
 * its result depends on no other row. A channel's weights are w = scale * p with p from -127 to 127. Hence
 * sum(w x) = scale * step * sum(p q) + low * scale * sum(p), of which sum(p q) is computed in integers, without error.
 */
#include "vector.h"

#ifndef __AVX512VNNI__
int sie_has_int8(void) { return 0; }
#else
#include <immintrin.h>

#define ROWS 6     /* ROWS x TILE sums, TILE weights and a broadcast fill the 32 registers */
#define TILE 4
#define PANEL (TILE * LANES) /* channels at a time */
#define CHUNK 96   /* rows at a time, which stay in the L2 cache */

int sie_has_int8(void) { return 1; }

INLINE vec least_of(vec a, vec b) { return pick(a < b, a, b); }

/* Quantises rows of x, [rows][width], by their own range. A row with NaN or infinity gets the step NaN. */
void sie_int8_quantize(const float *x, long rows, int width, uint8_t *to, float *steps, float *lows, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        const float *from = x + row * width;
        vec least = load(from), most = least, odd = {0};
        for (int i = 0; i < width; i += LANES) {
            const vec v = load(from + i);
            least = least_of(v, least);
            most = larger(v, most);
            odd += v * 0.0f; /* NaN if a number is not finite */
        }
        float low = least[0], high = most[0];
        for (int i = 1; i < LANES; i++) low = MIN(low, least[i]), high = MAX(high, most[i]);
        const float step = (high - low) / 255, inverse = step > 0 ? 255 / (high - low) : 0;
        for (int i = 0; i < width; i += LANES) {
            const __m512i q = _mm512_cvtps_epi32((__m512)((load(from + i) - low) * inverse));
            _mm_storeu_si128((__m128i *)(to + row * width + i), _mm512_cvtusepi32_epi8(q));
        }
        steps[row] = step + total(odd);
        lows[row] = low;
    }
}

/* GELU with erf to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
INLINE vec gelu(vec x) {
    const vec zero = {0}, size = larger(x, -x) * 0.707106781f;
    const vec t = 1.0f / (size * 0.3275911f + 1.0f);
    vec p = zero + 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const vec rest = p * t * exponential(-size * size); /* 1 - erf(size) */
    return 0.5f * x * pick(x < zero, rest, 2.0f - rest);
}

/* sums[r][channel] = sum over the inputs of x[r] * the panel's weights, for n rows. */
INLINE void tile(const uint8_t *x, int width, const int8_t *panel, int32_t sums[ROWS][PANEL], int n) {
    __m512i acc[ROWS][TILE];
    for (int r = 0; r < n; r++)
        for (int t = 0; t < TILE; t++) acc[r][t] = _mm512_setzero_si512();
    for (int i = 0; i < width; i += 4) {
        __m512i weights[TILE];
        for (int t = 0; t < TILE; t++) weights[t] = _mm512_loadu_si512(panel + (long)i * PANEL + t * 64);
        for (int r = 0; r < n; r++) {
            int32_t four;
            memcpy(&four, x + (long)r * width + i, 4);
            const __m512i inputs = _mm512_set1_epi32(four);
            for (int t = 0; t < TILE; t++) acc[r][t] = _mm512_dpbusd_epi32(acc[r][t], inputs, weights[t]);
        }
    }
    for (int r = 0; r < n; r++)
        for (int t = 0; t < TILE; t++) _mm512_storeu_si512(sums[r] + t * LANES, acc[r][t]);
}

static void products(const uint8_t *x, int width, const int8_t *panel, int32_t sums[ROWS][PANEL], int n) {
    switch (n) {
    case 6: tile(x, width, panel, sums, 6); break;
    case 5: tile(x, width, panel, sums, 5); break;
    case 4: tile(x, width, panel, sums, 4); break;
    case 3: tile(x, width, panel, sums, 3); break;
    case 2: tile(x, width, panel, sums, 2); break;
    default: tile(x, width, panel, sums, 1);
    }
}

/* out[row][channel] = x * weights + bias, then GELU if asked for. x is as sie_int8_quantize leaves it. `panels`,
 * [channels / 64][width / 4][64][4], are the weights; `offsets` are scale * sum(p) of each channel. `bias` may be 0.
 * `channels` is a multiple of 64 and `width` one of 16. */
void sie_int8_linear(const uint8_t *x, const float *steps, const float *lows, long rows, int width,
                     const int8_t *panels, const float *scales, const float *offsets, const float *bias, float *out,
                     int channels, int has_gelu, int threads) {
    const long chunks = (rows + CHUNK - 1) / CHUNK;
    const int num_panels = channels / PANEL;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (long chunk = 0; chunk < chunks; chunk++)
        for (int panel = 0; panel < num_panels; panel++) {
            const long last = MIN(rows, (chunk + 1) * CHUNK);
            const int first = panel * PANEL;
            for (long row = chunk * CHUNK; row < last; row += ROWS) {
                int32_t sums[ROWS][PANEL];
                const int n = MIN(ROWS, last - row);
                products(x + row * width, width, panels + (long)first * width, sums, n);
                for (int r = 0; r < n; r++) {
                    float *to = out + (row + r) * channels + first;
                    const float step = steps[row + r], low = lows[row + r];
                    for (int i = 0; i < PANEL; i += LANES) {
                        const vec sum = (vec)_mm512_cvtepi32_ps(_mm512_loadu_si512(sums[r] + i));
                        vec y = sum * step * load(scales + first + i) + low * load(offsets + first + i);
                        if (bias) y += load(bias + first + i);
                        store(to + i, has_gelu ? gelu(y) : y);
                    }
                }
            }
        }
}
#endif
