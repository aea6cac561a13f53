/* KL(P||Q), KL(Q||P), JS, the likeliest categories and the log-probabilities of one of them, of rows of two arrays: in two passes over a row,
   which stay in the cache. Plain C, in loops that compilers turn into vector instructions; no Python objects, no threads, no state. Each row is good
   to KULLBACK_GOAL of itself, or said not to be `decided`: Python then takes it in float64.

   With weights e of P (e/z = p), q/p = e^v = 1 + g, X = E_P[g], which is 0 but for rounding, and m = 1 + g/2, there are four sums whose terms
   are all >= 0, and vanish where p = q:

     S = E[g - v],   C = E[(1 + g) v - g],   A = E[g/2 - log m],   B = E[(1 + g) (v - log m) - g/2],
     KL(P||Q) = S - X + log1p(X),   KL(Q||P) = (C + X)/(1 + X) - log1p(X),
     JS = log1p(X/2) - log1p(X)/2 + (A - X/2 + (B + X/2)/(1 + X))/2,

   the last but for the square of X, beside JS: it is KL(P||R)/2 + KL(Q||R)/2 with R ~ e (1 + g/2), which is the middle of both where X = 0.
   Terms are of second order in v, and v has its own digits, however small it is: from logarithms by a difference without rounding error, from
   probabilities as log1p((q - p)/p). So a sum of terms in float32 is good to some units of 2^-24, whatever the size of the divergence. An
   error in e changes P and Q alike, and so every figure, by no more than itself.  */

#if defined(__has_include)
#if __has_include(<Python.h>)
#include <Python.h>
#endif
#endif
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One function for each generation of x86 processors, chosen when the library is loaded, where system and compiler can do that. */
#if defined(KULLBACK_ONE_TARGET) || !defined(__x86_64__) || !defined(__GLIBC__) || !defined(__GNUC__)
#define FOR_EACH_TARGET
#elif !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_TARGET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif !defined(__clang__) || __clang_major__ >= 14
#define FOR_EACH_TARGET __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_TARGET
#endif
#if !defined(__GNUC__)
#error "sums are taken in lanes, which only GCC and Clang are told to do: float32 adds up too few numbers one by one"
#endif
#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "roundings are counted on, NaN and infinities told apart: no -ffast-math, no float32 that is computed in more digits, as by the x87"
#endif
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64))) /* to lines of the cache: else half of all accesses take two of them */

#define KULLBACK_GOAL 1e-5

/* Numbers that are taken at a time: float32 adds up so many, and they stay in the first cache. And the most that an instruction takes. */
#define CHUNK 256
#define LANES 16
/* e^x of this is about the smallest normal number of float32; of this, times x, it is one of float32. */
#define LOWEST (-87.0f)
#define HIGHEST 80.0f
/* The largest log(q/p) that is taken, as JS loses its digits to it, where Q's weight counts for more than e^NEGLIGIBLE. */
#define STEEPEST 30.0f
#define NEGLIGIBLE (-50.0f)
#define E_STEEPEST 1.0686475e13f
#define E_NEGLIGIBLE 1.9287498e-22f
/* Where P's weight is below e^LOWEST, and Q's below e^NOTHING, neither counts. */
#define NOTHING (-80.0f)
/* Probabilities below this, on both sides, count for nothing: their ratio might not be one of float32. */
#define LEAST 1e-33

enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };

INLINE float as_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE int32_t as_int(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* --- functions of float32 ---------------------------------------------------------------------------------------------------------------
   Polynomials through the Chebyshev nodes of their interval; tests/kernels/test_comparison_kernel.py compares them with mpmath. */

/* (e^r - 1 - r)/r^2 for |r| <= log(2)/2, to 3e-9 of itself. */
INLINE float curvature(float r) {
    float y = 1.989198131397769e-4f;
    y = y * r + 1.3934541928270264e-3f;
    y = y * r + 8.3333100242252924e-3f;
    y = y * r + 4.1666456809677876e-2f;
    y = y * r + 1.6666666682534356e-1f;
    return y * r + 5.0000000142862234e-1f;
}

/* x = n log 2 + r; returns r, and 2^n. The first part of log 2 has so few bits that its product with n is exact; for n = 0, r is x itself. */
INLINE float reduced(float x, float *power) {
    const float shifter = 12582912.0f; /* 1.5 2^23: what is added to it is rounded to a whole number, in its lowest bits */
    float t = x * 1.44269504f + shifter, n = t - shifter;
    *power = as_float((int32_t)(((uint32_t)as_int(t) << 23) + 0x3f800000u));
    return (x - n * 0.693359375f) + n * 2.12194440e-4f;
}

/* e^x, for x from LOWEST, which smaller ones count as, to 88. */
INLINE float exponential(float x) {
    float power, r = reduced(x > LOWEST ? x : LOWEST, &power);
    return power * (r * r * curvature(r) + r) + power;
}

/* f - log(1 + f) for f from sqrt(1/2) - 1 to sqrt(2) - 1, to 8e-9 of itself. */
INLINE float bend(float f) {
    float f2 = f * f, f4 = f2 * f2;
    float a = 4.9999999943641415e-1f - 3.3333322500801125e-1f * f, b = 2.500001041761481e-1f - 2.0001477386218623e-1f * f;
    float c = 1.6667603666106054e-1f - 1.4231559773074557e-1f * f, d = 1.2418791610422756e-1f - 1.1816737288292293e-1f * f;
    float e = 1.1573863143504695e-1f - 6.7788308732520855e-2f * f;
    return f2 * ((a + f2 * b) + f4 * ((c + f2 * d) + f4 * e));
}

/* The exponent of x/sqrt(1/2), in its place among the bits. */
INLINE int32_t exponent(float x) { return (int32_t)(((uint32_t)as_int(x) - 0x3f3504f3u) & 0xff800000u); }

INLINE int is_near(float x) { return exponent(x) == 0; } /* within a factor of sqrt(2) of 1, that is */

/* log(1 + x), and x - log(1 + x), given y = 1 + x too, a normal number: near 1 by x, which has more digits, else by y. */
INLINE float logarithm(float y, float x, float *rest) {
    float f = is_near(y) ? x : as_float((int32_t)((uint32_t)as_int(y) - (uint32_t)exponent(y))) - 1.0f, b = bend(f);
    float log = (f - b) + (float)(exponent(y) >> 23) * 0.693147181f;
    *rest = is_near(y) ? b : x - log;
    return log;
}

/* --- reading ------------------------------------------------------------------------------------------------------------------------------
   Of an array of any type, up to CHUNK numbers from `at` on: n, and after these `pad`, up to a multiple of LANES. */

INLINE float from_half(uint16_t x) {
    /* The exponent of float32 is 112 more; inf and NaN have the highest of all. Subnormal ones by their fraction: where a process flushes
       such numbers of float32 to 0, as PyTorch may be told to, these must not be lost. */
    uint32_t rest = x & 0x7fff, bits = (rest << 13) + (112u << 23) + (rest >= 0x7c00 ? 112u << 23 : 0);
    float size = rest < 0x400 ? (float)rest * 0x1p-24f : as_float((int32_t)bits);
    return as_float(as_int(size) | (int32_t)((uint32_t)(x & 0x8000) << 16));
}

/* The upper half of a float32. */
INLINE float from_bfloat(uint16_t x) { return as_float((int32_t)((uint32_t)x << 16)); }

INLINE size_t padded(size_t n) { return (n + LANES - 1) / LANES * LANES; }

INLINE const float *singles(const void *x, int type, size_t at, size_t n, float pad, float *room) {
    size_t i;
    if (type == FLOAT32 && n % LANES == 0)
        return (const float *)x + at;
    if (type == FLOAT32)
        memcpy(room, (const float *)x + at, n * sizeof *room);
    else if (type == FLOAT16)
        for (i = 0; i < n; i++)
            room[i] = from_half(((const uint16_t *)x)[at + i]);
    else
        for (i = 0; i < n; i++)
            room[i] = from_bfloat(((const uint16_t *)x)[at + i]);
    for (i = n; i < padded(n); i++)
        room[i] = pad;
    return room;
}

INLINE const double *doubles(const void *x, int type, size_t at, size_t n, double pad, double *room) {
    size_t i;
    if (type == FLOAT64 && n % LANES == 0)
        return (const double *)x + at;
    if (type == FLOAT64) {
        memcpy(room, (const double *)x + at, n * sizeof *room);
        for (i = n; i < padded(n); i++)
            room[i] = pad;
    } else {
        float narrow[CHUNK];
        const float *from = singles(x, type, at, n, (float)pad, narrow);
        for (i = 0; i < padded(n); i++)
            room[i] = from[i];
    }
    return room;
}

INLINE double number(const void *x, int type, size_t at) {
    if (type == FLOAT64)
        return ((const double *)x)[at];
    if (type == FLOAT32)
        return ((const float *)x)[at];
    return type == FLOAT16 ? from_half(((const uint16_t *)x)[at]) : from_bfloat(((const uint16_t *)x)[at]);
}

/* --- the first pass -----------------------------------------------------------------------------------------------------------------------
   The largest number of a row, the first place where it is, and the sum of the weights: of e^(x - top), or of x. An error in the sum, of
   some 2^-24, is only another X. */

typedef struct {
    double top, sum, rest; /* of logarithms, the sum without the largest weight, which is 1 */
    int64_t place;
    int negative; /* is one below 0? */
} Side;

/* The largest, by their bits, in an order that whole numbers have too: not every compiler makes vector instructions of a maximum of floats.
   NaN is above all, or below. And is a sign among them? */
INLINE float largest_single(const float *a, size_t n, int *sign) {
    int32_t top = INT32_MIN, signs = 0;
    size_t i;
#pragma omp simd reduction(max : top) reduction(| : signs)
    for (i = 0; i < n; i++) {
        int32_t bits = as_int(a[i]), key = bits ^ ((bits >> 31) & INT32_MAX);
        top = key > top ? key : top;
        signs |= bits;
    }
    *sign = signs < 0;
    return as_float(top ^ ((top >> 31) & INT32_MAX));
}

INLINE double largest_double(const double *a, size_t n, int *sign) {
    int64_t top = INT64_MIN, signs = 0;
    double found;
    size_t i;
#pragma omp simd reduction(max : top) reduction(| : signs)
    for (i = 0; i < n; i++) {
        int64_t bits, key;
        memcpy(&bits, a + i, sizeof bits);
        key = bits ^ ((bits >> 63) & INT64_MAX);
        top = key > top ? key : top;
        signs |= bits;
    }
    *sign = signs < 0;
    top ^= (top >> 63) & INT64_MAX;
    memcpy(&found, &top, sizeof found);
    return found;
}

INLINE Side seen(const void *x, int type, int logs, size_t start, size_t columns, double *tops, double *sums) {
    Side side = {-INFINITY, 0.0, 0.0, 0, 0};
    size_t chunks = 0, at, i;
    ALIGNED float below[CHUNK], narrow[CHUNK];
    ALIGNED double wide[CHUNK];
    for (at = 0; at < columns; at += CHUNK, chunks++) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK, all = padded(n);
        double top, base, sum = 0.0;
        float total = 0.0f, low;
        int sign;
        if (type == FLOAT64) {
            const double *a = doubles(x, type, start + at, n, logs ? -INFINITY : 0.0, wide);
            top = largest_double(a, all, &sign);
            base = top > -INFINITY ? top : 0.0;
            if (logs)
                for (i = 0; i < all; i++)
                    below[i] = (float)(a[i] - base);
            else
#pragma omp simd reduction(+ : sum)
                for (i = 0; i < all; i++)
                    sum += a[i];
        } else {
            const float *a = singles(x, type, start + at, n, logs ? -INFINITY : 0.0f, narrow);
            top = largest_single(a, all, &sign);
            low = top > -INFINITY ? (float)top : 0.0f;
            if (logs)
                for (i = 0; i < all; i++)
                    below[i] = a[i] - low;
            else
#pragma omp simd reduction(+ : total)
                for (i = 0; i < all; i++)
                    total += a[i];
        }
        if (sign && !logs) /* maybe that of a zero */
            for (i = 0; i < n; i++)
                side.negative |= number(x, type, start + at + i) < 0.0;
        if (logs)
#pragma omp simd reduction(+ : total)
            for (i = 0; i < all; i++)
                total += exponential(below[i]);
        tops[chunks] = top;
        sums[chunks] = sum + total;
        side.top = top > side.top ? top : side.top;
    }
    for (i = chunks; i-- > 0;)
        if (tops[i] == side.top)
            side.place = (int64_t)(i * CHUNK);
    at = (size_t)side.place;
    while (side.place + 1 < (int64_t)columns && number(x, type, start + (size_t)side.place) != side.top)
        side.place++;
    if (!logs) {
        for (i = 0; i < chunks; i++)
            side.sum += sums[i];
    } else {
        /* The chunk of the largest once more, without that: beside a weight of 1 float32 loses what is much smaller. */
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK;
        float others = 0.0f;
        for (i = 0; i < n; i++)
            below[i] = at + i == (size_t)side.place ? -INFINITY : (float)(number(x, type, start + at + i) - side.top);
#pragma omp simd reduction(+ : others)
        for (i = 0; i < n; i++)
            others += below[i] < LOWEST ? 0.0f : exponential(below[i]);
        side.rest = others;
        for (i = 0; i < chunks; i++)
            if (i * CHUNK != at)
                side.rest += sums[i] * exponential((float)(tops[i] - side.top));
        side.sum = 1.0 + side.rest;
    }
    return side;
}

/* --- the second pass ----------------------------------------------------------------------------------------------------------------------
   In short loops over a chunk: of long ones a processor cannot begin the next step before the last has ended. */

typedef struct {
    float weight[CHUNK], ratio[CHUNK], near[CHUNK]; /* e, or its logarithm; log(q/p), or q/p; q/p - 1 with its own digits */
    float g[CHUNK], rest[CHUNK], back[CHUNK];       /* q/p - 1, and the terms of S and of C */
} Chunk;

typedef struct {
    double z, x, s, c, a, b;
    double strange, below; /* how many numbers are out of the range of float32; and how many too small to count */
} Sums;

/* From logarithms, of which `base` and `shift` are taken off. */
INLINE void differences(const float *a, const float *b, size_t n, double base, double shift, Chunk *to) {
    const float high = (float)shift, low = (float)(shift - high), base_high = (float)base, base_low = (float)(base - base_high);
    size_t i;
    for (i = 0; i < n; i++) {
        /* b - a = d + error, exactly. */
        float d = b[i] - a[i], sum = d + a[i], error = (b[i] - sum) - (a[i] - (sum - d));
        int none = (a[i] == -INFINITY) & (b[i] == -INFINITY);
        to->ratio[i] = none ? 0.0f : (d - high) + (error - low);
        to->weight[i] = (a[i] - base_high) - base_low;
    }
}

INLINE void wide_differences(const double *a, const double *b, size_t n, double base, double shift, Chunk *to) {
    size_t i;
    for (i = 0; i < n; i++) {
        int none = (a[i] == -INFINITY) & (b[i] == -INFINITY);
        to->ratio[i] = none ? 0.0f : (float)(b[i] - a[i] - shift);
        to->weight[i] = (float)(a[i] - base);
    }
}

/* `weights`: e, where that is known; or NULL. */
INLINE void terms_of_logs(Chunk *of, const double *weights, size_t n, Sums *sums) {
    int32_t steepest = 0;
    uint32_t deepest = 0;
    float missed = 0.0f, small = 0.0f;
    size_t i;
    /* The extremes by their bits: of numbers above 0, here v, the larger has the larger, of those below, here w, the lower. */
#pragma omp simd reduction(max : steepest, deepest)
    for (i = 0; i < n; i++) {
        float v = of->ratio[i], above = v > LOWEST ? v : LOWEST, within = above < HIGHEST ? above : HIGHEST;
        float power, r = reduced(within, &power), bent = r * r * curvature(r), g = power * (bent + r) + (power - 1.0f);
        float rest = power * bent + (power * r - v) + (power - 1.0f);
        uint32_t w = (uint32_t)as_int(of->weight[i]);
        of->g[i] = g;
        of->rest[i] = rest;
        of->back[i] = power == 1.0f ? g * v - rest : (1.0f + g) * within - g;
        steepest = as_int(v) > steepest ? as_int(v) : steepest;
        deepest = w > deepest ? w : deepest;
    }
    if (deepest <= (uint32_t)as_int(LOWEST) && steepest <= as_int(STEEPEST)) {
        for (i = 0; i < n; i++)
            of->weight[i] = weights ? (float)weights[i] : exponential(of->weight[i]);
        return;
    }
#pragma omp simd reduction(+ : missed, small)
    for (i = 0; i < n; i++) {
        /* Below these bounds weights count for nothing, unless they meet a mask of the other side: a huge logarithm times a tiny weight. */
        float w = of->weight[i], v = of->ratio[i];
        int below = w < LOWEST, masked = ((w > -750.0f) & (v < -1e4f)) | ((w + v > -750.0f) & (v > 1e4f));
        int counts = below ? (w + v > NOTHING) | masked : (v > STEEPEST) & (w + v > NEGLIGIBLE);
        missed += counts ? 1.0f : 0.0f;
        small += below ? 1.0f : 0.0f;
        of->weight[i] = below ? 0.0f : weights ? (float)weights[i] : exponential(w);
    }
    sums->strange += missed;
    sums->below += small;
}

/* From probabilities, where neither has anything as if they were equal. Q's sum is P's times 1 + excess. */
INLINE void quotients(const float *p, const float *q, size_t n, double excess, Chunk *to) {
    const float high = (float)excess, low = (float)(excess - high), scale = (float)(1.0 / (1.0 + excess));
    size_t i;
    for (i = 0; i < n; i++) {
        float inverse = scale / p[i];
        int none = (p[i] < (float)LEAST) & (q[i] < (float)LEAST) & ((p[i] == 0.0f) == (q[i] == 0.0f));
        to->weight[i] = p[i];
        to->ratio[i] = none ? 1.0f : q[i] * inverse;
        to->near[i] = none ? 0.0f : ((q[i] - p[i]) - high * p[i] - low * p[i]) * inverse;
    }
}

INLINE void wide_quotients(const double *x, const double *y, size_t n, double scale_p, double scale_q, Chunk *to) {
    size_t i;
    for (i = 0; i < n; i++) {
        double p = x[i] * scale_p, q = y[i] * scale_q;
        float inverse = 1.0f / (float)p;
        int none = (p < LEAST) & (q < LEAST) & ((x[i] == 0.0) == (y[i] == 0.0));
        to->weight[i] = (float)p;
        to->ratio[i] = none ? 1.0f : (q < FLT_MIN ? 0.0f : (float)q) * inverse; /* a subnormal number would have lost digits */
        to->near[i] = none ? 0.0f : (float)(q - p) * inverse;
    }
}

INLINE void terms_of_probs(Chunk *of, size_t n, Sums *sums) {
    int32_t lowest = INT32_MAX, highest = 0;
    float steep = 0.0f;
    size_t i;
#pragma omp simd reduction(min : lowest) reduction(max : highest)
    for (i = 0; i < n; i++) {
        float ratio = of->ratio[i], g = of->near[i], rest, v = logarithm(ratio, g, &rest);
        of->g[i] = g;
        of->rest[i] = rest;
        of->back[i] = is_near(ratio) ? g * v - rest : ratio * v - g;
        lowest = as_int(ratio) < lowest ? as_int(ratio) : lowest;
        highest = as_int(ratio) > highest ? as_int(ratio) : highest;
    }
    sums->strange += lowest < as_int(FLT_MIN); /* 0, or a number that has lost digits, or negative */
    if (highest > as_int(E_STEEPEST)) {
#pragma omp simd reduction(+ : steep)
        for (i = 0; i < n; i++)
            steep += ((of->ratio[i] > E_STEEPEST) & (of->weight[i] * of->ratio[i] > E_NEGLIGIBLE)) ? 1.0f : 0.0f;
        sums->strange += steep;
    }
}

INLINE void add(const Chunk *of, size_t n, Sums *to) {
    float z = 0.0f, x = 0.0f, s = 0.0f, c = 0.0f, a = 0.0f, b = 0.0f;
    size_t i;
#pragma omp simd reduction(+ : z, x, s, c, a, b)
    for (i = 0; i < n; i++) {
        float e = of->weight[i], g = of->g[i], back = of->back[i], half, mixed = logarithm(1.0f + 0.5f * g, 0.5f * g, &half);
        z += e;
        x += e * g;
        s += e * of->rest[i];
        c += e * back;
        a += e * half;
        b += e * (back + half - g * mixed);
    }
    to->z += z;
    to->x += x;
    to->s += s;
    to->c += c;
    to->a += a;
    to->b += b;
}

/* --- rows -------------------------------------------------------------------------------------------------------------------------------*/

typedef struct {
    const void *x, *y;
    int32_t type_x, type_y;
    int32_t logs;      /* logarithms, or probabilities */
    double tolerances[2]; /* of the sums of probabilities, from 1 */
    int64_t columns;
    const int64_t *chosen; /* a category a row, or NULL: P's likeliest */
} Arrays;

typedef struct {
    double kl_pq, kl_qp, js, log_p, log_q;
    int64_t top_p, top_q, decided;
} Row;

/* Are the rows equal, number by number? Else a divergence of 0 is one that float32 has lost. */
INLINE int alike(const Arrays *of, size_t start) {
    int64_t i;
    for (i = 0; i < of->columns; i++)
        if (number(of->x, of->type_x, start + (size_t)i) != number(of->y, of->type_y, start + (size_t)i))
            return 0;
    return 1;
}

/* How the numbers of a row were taken. */
typedef struct {
    double columns, base, shift; /* logarithms of the sum of P's weights, and of Q's less that */
    double excess;               /* of probabilities, the latter without its logarithm */
    int logs, narrow, as_they_are;
    const double *tolerances;
} Frame;

/* The divergences, and whether they are good. `equal`: the rows are known to be. */
INLINE Row concluded(const Sums *sums, const Frame *of, int equal) {
    const double z = sums->z, x = sums->x / z, s = sums->s / z, c = sums->c / z, a = sums->a / z, b = sums->b / z, gain = log1p(x);
    /* Logarithms of the sums of P's weights and of Q's. */
    const double log_zp = of->logs || !of->as_they_are ? of->base + log(z) : log(z), log_zq = log_zp + of->shift + gain;
    Row row = {0};
    row.kl_pq = s - (x - gain);
    row.kl_qp = (c + x) / (1.0 + x) - gain;
    row.js = log1p(0.5 * x) - 0.5 * gain + 0.5 * (a - 0.5 * x + (b + 0.5 * x) / (1.0 + x));
    row.log_p = -log_zp;
    row.log_q = -log_zq;

    /* What v is off by, apart from its own rounding; what is lost of P where its weights are too small, and Q's are not. */
    const double least = fmin(fmin(row.kl_pq, row.kl_qp), 4.0 * row.js);
    const double of_logs = fabs(of->shift) * (of->narrow ? 0x1p-47 : 0x1p-51), of_probs = of->as_they_are ? fabs(of->excess) * 0x1p-23 : 0x1p-51;
    const double coarse = of->logs ? of_logs : of_probs;
    const double lost = of->logs ? sums->below * 1e4 * 2e-35 : of->columns * 100.0 * LEAST; /* a term is at most so many times its weight */
    int fine = fabs(x) <= 1e-3 && x * x <= 2.0 * least && coarse <= 0.1 * KULLBACK_GOAL * sqrt(least) && lost <= 0.01 * KULLBACK_GOAL * least;
    /* What is of first order in X cancels; and terms of float32 may have underflown. */
    fine = fine && fabs(x) * 0x1p-50 <= 0.1 * KULLBACK_GOAL * least && least >= 1e-25;
    fine = fine || equal;
    fine = fine && z > 0.0 && of->base - of->base == 0.0 && of->shift - of->shift == 0.0 && row.kl_pq + row.kl_qp + row.js < INFINITY;
    fine = fine && sums->strange == 0.0;
    fine = fine && fabs(expm1(log_zp)) <= of->tolerances[0] && fabs(expm1(log_zq)) <= of->tolerances[1];
    row.decided = fine;
    return row;
}

INLINE Row compared(const Arrays *of, int64_t number_of_row, double *tops, double *chunk_sums) {
    const size_t columns = (size_t)of->columns, start = (size_t)number_of_row * columns;
    const int logs = of->logs, narrow = of->type_x != FLOAT64 && of->type_y != FLOAT64;
    const Side p = seen(of->x, of->type_x, logs, start, columns, tops, chunk_sums);
    const Side q = seen(of->y, of->type_y, logs, start, columns, tops, chunk_sums);
    const double base = logs ? p.top + log(p.sum) : log(p.sum), shift = (logs ? q.top + log(q.sum) : log(q.sum)) - base;
    const double excess = q.sum / p.sum - 1.0;
    /* Without normalising them first: where float32 would not round the excess too much, and weights not be too small. */
    const int as_they_are = narrow && fabs(excess) <= 1e-5 && p.sum >= 0.5 && p.sum <= 2.0;
    const Frame frame = {(double)columns, base, shift, excess, logs, narrow, as_they_are, of->tolerances};
    Sums sums = {0};
    ALIGNED Chunk chunk;
    ALIGNED float narrow_p[CHUNK], narrow_q[CHUNK];
    ALIGNED double wide_p[CHUNK], wide_q[CHUNK];
    size_t at;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK, all = padded(n);
        const double pad = logs ? -INFINITY : 0.0;
        if (logs ? narrow : as_they_are) {
            const float *a = singles(of->x, of->type_x, start + at, n, (float)pad, narrow_p);
            const float *b = singles(of->y, of->type_y, start + at, n, (float)pad, narrow_q);
            if (logs)
                differences(a, b, all, base, shift, &chunk);
            else
                quotients(a, b, all, excess, &chunk);
        } else {
            const double *a = doubles(of->x, of->type_x, start + at, n, pad, wide_p);
            const double *b = doubles(of->y, of->type_y, start + at, n, pad, wide_q);
            if (logs)
                wide_differences(a, b, all, base, shift, &chunk);
            else
                wide_quotients(a, b, all, 1.0 / p.sum, 1.0 / q.sum, &chunk);
        }
        if (logs)
            terms_of_logs(&chunk, NULL, all, &sums);
        else
            terms_of_probs(&chunk, all, &sums);
        add(&chunk, all, &sums);
    }

    Row row = concluded(&sums, &frame, sums.s == 0.0 && sums.x == 0.0 && alike(of, start));
    const size_t token = start + (size_t)(of->chosen ? of->chosen[number_of_row] : p.place);
    const double at_p = number(of->x, of->type_x, token), at_q = number(of->y, of->type_y, token);
    if (logs) {
        /* Without the largest, beside which the rest may be lost. Q's by P's and their ratio, where they are so close that its digits count. */
        const double others_p = log1p(p.rest), others_q = log1p(q.rest);
        const double from_p = others_p + (shift - (q.top - p.top)) + log1p(sums.x / sums.z);
        row.log_p = (at_p - p.top) - others_p;
        row.log_q = (at_q - q.top) - (row.kl_pq < others_q * others_q ? from_p : others_q);
    } else {
        row.log_p += log(at_p);
        row.log_q += log(at_q);
    }
    row.top_p = p.place;
    row.top_q = q.place;
    row.decided = row.decided && !p.negative && !q.negative;
    return row;
}

FOR_EACH_TARGET static void compare_each(const Arrays *of, int64_t first, int64_t last, Row *rows, double *tops, double *sums) {
    int64_t i;
    for (i = first; i < last; i++)
        rows[i] = compared(of, i, tops, sums);
}

/* Rows first to last - 1 of two arrays, into `rows`. Returns 0, or 1 if there is no memory. */
int kullback_compare(const Arrays *of, int64_t first, int64_t last, Row *rows) {
    const size_t chunks = ((size_t)of->columns + CHUNK - 1) / CHUNK;
    double *room = malloc(2 * chunks * sizeof *room);
    if (room == NULL)
        return 1;
    compare_each(of, first, last, rows, room, room + chunks);
    free(room);
    return 0;
}

#include "clipped.h"

/* Of what passes between here and Python, by which it knows that both are of one version. */
const int64_t kullback_sizes[] = {sizeof(Arrays), sizeof(Row), sizeof(Clipped), sizeof(Pooled)};

/* ctypes loads this library; but it is built, and found, as an extension of Python, so it is an importable one, with nothing in it. */
#if defined(PY_VERSION_HEX)
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_comparison", "The library of kullback._kernels.compiled.", 0, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__comparison(void) { return PyModuleDef_Init(&module); }
#else
void *PyInit__comparison(void) { return NULL; }
#endif
