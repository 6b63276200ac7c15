/* Fixed-dimensional encodings of late-interaction vectors: see sie_triton/transforms/muvera.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIGN 0x80000000u

static float flipped(float value, uint32_t sign)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits ^= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* values: [tokens, width] shared by all repetitions (value_step 0), or [tokens, reps, width] (value_step width).
   partitions: [tokens, reps]; ends: [items], the first token of the next item.
   places: [reps, parts, width], where each entry of the blocks goes in out [items, dim], the highest bit set where it
   changes sign; NULL: blocks as they are. Repetitions come outermost, so that their places stay in the cache for all
   items. Returns nonzero if there is no memory. */
int sie_muvera(const float *values, long token_step, long value_step, const int *partitions, const long *ends,
               long items, int reps, int parts, int width, int mean, const uint32_t *places, float *out, long dim)
{
    float *block = malloc(sizeof(float) * parts * width);
    int *counts = malloc(sizeof(int) * parts);
    if (!block || !counts) {
        free(block);
        free(counts);
        return 1;
    }
    for (int rep = 0; rep < reps; rep++) {
        long start = 0;
        for (long item = 0; item < items; start = ends[item++]) {
            float *row = out + item * dim;
            memset(counts, 0, sizeof(int) * parts);
            for (long token = start; token < ends[item]; token++) {
                int part = partitions[token * reps + rep];
                const float *value = values + token * token_step + rep * value_step;
                float *sum = block + (long)part * width;
                if (!counts[part]++)
                    memcpy(sum, value, sizeof(float) * width);
                else
                    for (int i = 0; i < width; i++)
                        sum[i] += value[i];
            }
            for (int part = 0; part < parts; part++) {
                if (!counts[part])
                    continue;
                const float *sum = block + (long)part * width;
                float scale = mean ? 1.0f / counts[part] : 1.0f;
                long at = ((long)rep * parts + part) * width;
                if (!places)
                    for (int i = 0; i < width; i++)
                        row[at + i] = scale * sum[i];
                else
                    for (int i = 0; i < width; i++)
                        row[places[at + i] & ~SIGN] += flipped(scale * sum[i], places[at + i] & SIGN);
            }
        }
    }
    free(block);
    free(counts);
    return 0;
}
