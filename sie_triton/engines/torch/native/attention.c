/* Attention over items laid end to end, for CPUs: float32, one item and head at a time, scores kept in cache.
 *
 * softmax(scale * Q K^T) V within each item; query i attends to key j of its own item if i - left <= j <= i + right.
 * Scores are stored transposed, each vector across queries, so that softmax never reduces within a vector and the
 * length of an item need not be a multiple of the vector width.
 */
#include "vector.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ROWS x TILE accumulators, TILE operands and a broadcast fill AVX-512's 32 registers, or AVX2's 16. */
#define ROWS 6
#define TILE (LANES / 4)
#define BLOCK 64             /* queries at a time, a multiple of TILE vectors */
#define VALUES 128           /* values at a time, to stay in the L1 cache */

/* out[r] (+)= sum over c of a[r][c * step] * b[c], times factor[r], for ROWS rows and n vectors. */
INLINE void tile(const float *const *a, long step, const float *b, long stride, int count, float *const *out, int more,
                 const float *factor, int n) {
    vec acc[ROWS][TILE] = {0};
    if (more)
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < n; t++) acc[r][t] = load(out[r] + t * LANES);
    for (int c = 0; c < count; c++) {
        vec row[TILE];
        for (int t = 0; t < n; t++) row[t] = load(b + c * stride + t * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < n; t++) acc[r][t] += a[r][c * step] * row[t];
    }
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < n; t++) store(out[r] + t * LANES, factor ? acc[r][t] * factor[r] : acc[r][t]);
}

INLINE void product(const float *const *a, long step, const float *b, long stride, int count, float *const *out,
                    int more, const float *factor, int width) {
    for (int j = 0; j < width; j += TILE * LANES) {
        float *to[ROWS];
        for (int r = 0; r < ROWS; r++) to[r] = out[r] + j;
        switch (MIN(TILE, (width - j) / LANES)) {
#if TILE == 4
        case 4: tile(a, step, b + j, stride, count, to, more, factor, 4); break;
        case 3: tile(a, step, b + j, stride, count, to, more, factor, 3); break;
#endif
        case 2: tile(a, step, b + j, stride, count, to, more, factor, 2); break;
        default: tile(a, step, b + j, stride, count, to, more, factor, 1);
        }
    }
}

typedef struct {
    const float *query, *key, *value;
    float *out;
    long query_token, query_head, key_token, key_head, value_token, value_head; /* strides in elements */
    int heads, kv_heads, width;
    float scale;
    long left, right;
} Layer;

/* Replaces scores [keys][BLOCK] of queries [start, start + queries) by exp(score - largest), and sets norm[query] to
 * 1 / their sum. Columns beyond `queries` are undefined. */
INLINE void softmax(float *scores, float *norm, int first, int last, int start, int queries, const Layer *l) {
    const vec zero = {0}, hidden = zero - FLT_MAX;
    const int end = start + queries - 1;
    for (int column = 0; column < queries; column += LANES) {
        ivec query;
        for (int i = 0; i < LANES; i++) query[i] = start + column + i;
        vec top = hidden, sum = zero;
        for (int j = first; j < last; j++) {
            float *at = scores + (long)(j - first) * BLOCK + column;
            vec s = load(at);
            if (j < end - l->left || j > start + l->right) {
                const int low = (int)MAX(0, j - l->right), high = (int)MIN(INT32_MAX, j + l->left);
                s = pick((query >= low) & (query <= high), s, hidden);
                store(at, s);
            }
            top = larger(top, s);
        }
        for (int j = first; j < last; j++) {
            float *at = scores + (long)(j - first) * BLOCK + column;
            const vec s = load(at), p = pick(s > hidden, exponential(s - top), zero);
            store(at, p);
            sum += p;
        }
        store(norm + column, 1.0f / larger(sum, zero + FLT_MIN)); /* a query without keys gets 0 */
    }
}

static size_t scratch_size(int width) {
    return (size_t)width * BLOCK + BLOCK + LANES + MAX(width, BLOCK);
}

/* One head of one item: a block of queries at a time, against all keys that it attends to among the first `keys`. */
static void attend(const Layer *l, long item, int length, int keys, int head, float *scratch) {
    const int kv_head = head / (l->heads / l->kv_heads);
    const float *query = l->query + item * l->query_token + head * l->query_head;
    const float *key = l->key + item * l->key_token + kv_head * l->key_head;
    const float *value = l->value + item * l->value_token + kv_head * l->value_head;
    float *out = l->out + (item * l->heads + head) * l->width;
    float *queries = scratch, *norm = queries + l->width * BLOCK, *spare = norm + BLOCK + LANES;
    float *scores = scratch + scratch_size(l->width);
    for (int start = 0; start < length; start += BLOCK) {
        const int count = MIN(BLOCK, length - start), columns = (count + LANES - 1) / LANES * LANES;
        const int first = (int)MAX(0, start - l->left), last = (int)MIN(keys, start + count + l->right);
        if (first >= last) { /* no keys to attend to */
            for (int i = 0; i < count; i++)
                memset(out + (start + i) * (long)l->heads * l->width, 0, l->width * sizeof(float));
            continue;
        }
        for (int c = 0; c < l->width; c++) {
            float *row = queries + c * BLOCK;
            for (int i = 0; i < count; i++) row[i] = query[(start + i) * l->query_token + c] * l->scale;
            for (int i = count; i < columns; i++) row[i] = 0; /* defined values: denormals are slow */
        }
        for (int j = first; j < last; j += ROWS) {
            const float *rows[ROWS];
            float *to[ROWS];
            for (int r = 0; r < ROWS; r++) {
                rows[r] = key + MIN(j + r, last - 1) * l->key_token;
                to[r] = j + r < last ? scores + (long)(j + r - first) * BLOCK : spare;
            }
            product(rows, 1, queries, BLOCK, l->width, to, 0, NULL, columns);
        }
        softmax(scores, norm, first, last, start, count, l);
        for (int j = first; j < last; j += VALUES) {
            const int width = MIN(VALUES, last - j);
            const float *weights = scores + (long)(j - first) * BLOCK;
            for (int i = 0; i < count; i += ROWS) {
                const float *rows[ROWS];
                float *to[ROWS];
                for (int r = 0; r < ROWS; r++) {
                    rows[r] = weights + MIN(i + r, count - 1);
                    to[r] = i + r < count ? out + (start + i + r) * (long)l->heads * l->width : spare;
                }
                product(rows, BLOCK, value + j * l->value_token, l->value_token, width, to, j > first,
                        j + width == last ? norm + i : NULL, l->width);
            }
        }
    }
}

/* Computes out [tokens, heads, width] from query, key and value [tokens, heads or kv_heads, width]; the elements of one
 * head are contiguous. `strides` are those of a token and of a head, for each of the three. Returns 0; -1 if memory is
 * exhausted; -2 if the lengths do not sum to `tokens`, or an item has more keys than tokens. */
int sie_packed_attention(const float *query, const float *key, const float *value, float *out, const long strides[6],
                         long tokens, const int32_t *lengths, const int32_t *keys, int items, int heads, int kv_heads,
                         int width, float scale, long left, long right, int threads) {
    const Layer layer = {query,      key,   value,    out,   strides[0], strides[1], strides[2], strides[3], strides[4],
                         strides[5], heads, kv_heads, width, scale,      left,       right};
    int longest = 0, failed = 0;
    long total = 0;
    for (int i = 0; i < items; i++) {
        if (lengths[i] < 0 || keys[i] < 0 || keys[i] > lengths[i]) return -2;
        longest = MAX(longest, lengths[i]);
        total += lengths[i];
    }
    if (total != tokens) return -2;
    const size_t floats = scratch_size(width) + (size_t)longest * BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *scratch = aligned_alloc(64, floats * sizeof(float));
        if (!scratch) failed = 1;
        long start = 0;
        for (int item = 0; item < items; start += lengths[item++])
#pragma omp for schedule(dynamic) nowait
            for (int head = 0; head < heads; head++)
                if (scratch) attend(&layer, start, lengths[item], keys[item], head, scratch);
        free(scratch);
    }
    return failed ? -1 : 0;
}
