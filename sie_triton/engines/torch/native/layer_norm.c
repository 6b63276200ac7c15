/* out = LayerNorm(x + residual), row by row, so that the sum stays in the L1 cache. float32.
 * `out` may be `x`. `width` is a multiple of 16. */
#include "vector.h"

void sie_add_layer_norm(const float *x, const float *residual, const float *weight, const float *bias, float *out,
                        long rows, int width, float epsilon, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        const float *left = x + row * width, *right = residual + row * width;
        float *to = out + row * width;
        vec sum = {0}, squares = {0};
        for (int i = 0; i < width; i += LANES) {
            const vec v = load(left + i) + load(right + i);
            store(to + i, v);
            sum += v;
        }
        const float mean = total(sum) / width;
        for (int i = 0; i < width; i += LANES) {
            const vec v = load(to + i) - mean;
            squares += v * v;
        }
        const float scale = 1.0f / __builtin_sqrtf(total(squares) / width + epsilon);
        for (int i = 0; i < width; i += LANES)
            store(to + i, (load(to + i) - mean) * scale * load(weight + i) + load(bias + i));
    }
}
