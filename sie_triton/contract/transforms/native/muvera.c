/* Fixed-dimensional encodings of late-interaction vectors: see sie_triton/contract/transforms/muvera.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY 1
#define BAD_ENDS 2
#define SIGN 0x80000000u
#define CHUNK 64 /* entries that are scattered together */

static float flipped(float value, uint32_t sign)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits ^= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `left` may be `sum`. */
static const float *add(float *sum, const float *left, const float *right, int width)
{
    for (int i = 0; i < width; i++)
        sum[i] = left[i] + right[i];
    return sum;
}

/* Unrolled and separate from the arithmetic: takes a third less time than a single loop. */
static void scatter(float *restrict row, const float *restrict value, const uint32_t *restrict place, int count)
{
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        row[place[i]] += value[i];
        row[place[i + 1]] += value[i + 1];
        row[place[i + 2]] += value[i + 2];
        row[place[i + 3]] += value[i + 3];
    }
    for (; i < count; i++)
        row[place[i]] += value[i];
}

static void put(float *restrict row, const float *restrict sum, const uint32_t *restrict places, long at, int width,
                float scale)
{
    if (!places)
        for (int i = 0; i < width; i++)
            row[at + i] = scale * sum[i];
    else
        for (int start = 0; start < width; start += CHUNK) {
            const int count = width - start < CHUNK ? width - start : CHUNK;
            uint32_t place[CHUNK];
            float value[CHUNK];
            for (int i = 0; i < count; i++) {
                place[i] = places[start + i] & ~SIGN;
                value[i] = flipped(scale * sum[start + i], places[start + i] & SIGN);
            }
            scatter(row, value, place, count);
        }
}

/* The Gray-code rank of a sign pattern. */
static int partition(const float *restrict products, int k)
{
    int rank = 0;
    for (int i = 0; i < k; i++)
        rank = (rank << 1) + ((products[i] > 0) ^ (rank & 1));
    return rank;
}

/* values: [tokens, width] shared by all repetitions (value_step 0), or [tokens, reps, width] (value_step width).
   products: [tokens, reps, k] with the hyperplanes; ends: [items], the first token of the next item.
   places: [reps, parts, width], the place of each entry of the blocks in out [items, dim], with the highest bit set if
   its sign changes; NULL: the blocks as they are. Returns NO_MEMORY, or BAD_ENDS unless the ends rise from 0 to
   `tokens`. */
int sie_muvera(const float *values, long tokens, long token_step, long value_step, const float *products,
               const long *ends, long items, int reps, int k, int width, int mean, const uint32_t *places, float *out,
               long dim)
{
    const int parts = 1 << k;
    for (long item = 0, start = 0; item < items; start = ends[item++])
        if (ends[item] < start || ends[item] > tokens)
            return BAD_ENDS;
    float *block = malloc(sizeof(float) * parts * width);
    int *counts = malloc(sizeof(int) * parts);
    const float **sums = malloc(sizeof(float *) * parts); /* of a single token: a pointer to its values */
    if (!block || !counts || !sums) {
        free(block);
        free(counts);
        free(sums);
        return NO_MEMORY;
    }
    for (long item = 0, start = 0; item < items; start = ends[item++])
        for (int rep = 0; rep < reps; rep++) {
            memset(counts, 0, sizeof(int) * parts);
            for (long token = start; token < ends[item]; token++) {
                const int part = partition(products + (token * reps + rep) * k, k);
                const float *value = values + token * token_step + rep * value_step;
                sums[part] = counts[part]++ ? add(block + (long)part * width, sums[part], value, width) : value;
            }
            for (int part = 0; part < parts; part++) {
                const long at = ((long)rep * parts + part) * width;
                if (counts[part])
                    put(out + item * dim, sums[part], places ? places + at : NULL, at, width,
                        mean ? 1.0f / counts[part] : 1.0f);
            }
        }
    free(block);
    free(counts);
    free(sums);
    return 0;
}
