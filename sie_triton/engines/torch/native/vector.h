/* The compiler's vector types. A vector fills one register of AVX-512, or else of AVX2: GCC keeps wider vectors in
 * memory, which takes 18 times as long. */
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

INLINE float total(vec v) {
    float s[LANES], sum = 0;
    store(s, v);
    for (int i = 0; i < LANES; i++) sum += s[i];
    return sum;
}
