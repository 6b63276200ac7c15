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

/* e^x for x <= 0: 2^n times a polynomial on [-ln2/2, ln2/2] (Cody and Waite's reduction). */
INLINE vec exponential(vec x) {
    const vec zero = {0};
    x = larger(x, zero - 80.0f);
    const vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the low bits now hold the nearest integer */
    const vec n = shifted - 12582912.0f;
    const vec r = x - n * 0.693145752f - n * 1.42860677e-6f;
    vec p = zero + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (vec)((ivec)p + ((ivec)shifted << 23));
}
