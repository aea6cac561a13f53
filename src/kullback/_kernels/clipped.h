/* Pairs of rows of which one, or both, are llama.cpp's: log p = scale code + low, and code 0 hides a category if the row spans so much that it
   was clipped. What either hides is one bucket on both sides. Part of comparison.c, whose `compared` takes the row with its bucket; what is
   meant, and why, is in _compare/llama.py, which does the same in NumPy, for rows that are not decided here. */

/* The least window, in nats, at which a writer clips; and what llama.cpp leaves out of its own sum. */
#define WINDOW 15.9f
#define DROPPED (-16.0)

typedef struct {
    const uint16_t *codes; /* rows of them are `stride` apart; or NULL, and `numbers`, logarithms of weights, one row after another */
    int64_t stride;
    const float *scale, *low; /* one a row */
    const void *numbers;
    int32_t type;
    double tolerance; /* of the sum of the weights, from 1 */
} Stored;

typedef struct {
    Stored p, q;
    int64_t columns;
    const int64_t *chosen; /* a category a row, or NULL: P's likeliest */
} Clipped;

typedef struct {
    Row row;
    double bucket_p, bucket_q, theirs; /* masses; llama.cpp's own figure, if P is its file */
} Pooled;

/* One row of one side. */
typedef struct {
    const uint16_t *codes;
    const void *numbers;
    size_t start;
    int32_t type;
    double scale, low; /* of numbers, `low` is minus the logarithm of their weights' sum */
    int clipped, sound;
} Line;

/* e^x for x up to 700, 0 below -700, to 1e-13 of itself: the mass of what is hidden is 1 less the rest. As `exponential`, with more of the polynomial. */
INLINE double wide_exponential(double x) {
    const double shifter = 6755399441055744.0; /* 1.5 2^52 */
    double t = x * 1.4426950408889634 + shifter, n = t - shifter, r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double y = 2.76175647858760859e-6, power;
    int64_t bits;
    y = y * r + 2.48678701796877261e-5;
    y = y * r + 1.98412245996560124e-4;
    y = y * r + 1.38888391105720083e-3;
    y = y * r + 8.33333334420297993e-3;
    y = y * r + 4.16666667862657343e-2;
    y = y * r + 1.66666666666625866e-1;
    y = y * r + 4.99999999999551067e-1;
    memcpy(&bits, &t, sizeof bits);
    bits = (int64_t)(((uint64_t)bits << 52) + 0x3ff0000000000000u);
    memcpy(&power, &bits, sizeof power);
    return x < -700.0 ? 0.0 : power * (r * r * y + r) + power;
}

INLINE Line line_of(const Stored *of, int64_t row, int64_t columns) {
    Line line = {NULL, NULL, 0, 0, 0.0, 0.0, 0, 1};
    double top = -INFINITY, sum = 0.0;
    ALIGNED double room[CHUNK];
    size_t at, i;
    int sign;
    if (of->codes != NULL) {
        line.codes = of->codes + row * of->stride;
        line.scale = of->scale[row];
        line.low = of->low[row];
        line.clipped = of->scale[row] * 65535.0f >= WINDOW;
        return line;
    }
    line.numbers = of->numbers;
    line.type = of->type;
    line.start = (size_t)(row * columns);
    for (at = 0; at < (size_t)columns; at += CHUNK) {
        const size_t n = (size_t)columns - at < CHUNK ? (size_t)columns - at : CHUNK;
        const double highest = largest_double(doubles(of->numbers, of->type, line.start + at, n, -INFINITY, room), padded(n), &sign);
        top = highest > top ? highest : top;
    }
    for (at = 0; at < (size_t)columns; at += CHUNK) {
        const size_t n = (size_t)columns - at < CHUNK ? (size_t)columns - at : CHUNK, all = padded(n);
        const double *a = doubles(of->numbers, of->type, line.start + at, n, -INFINITY, room);
#pragma omp simd reduction(+ : sum)
        for (i = 0; i < all; i++)
            sum += wide_exponential(a[i] - top);
    }
    line.low = -(top + log(sum));
    line.sound = fabs(top) <= 1e6 && fabs(expm1(-line.low)) <= of->tolerance; /* larger ones would round the logarithm of the sum */
    return line;
}

/* Of n categories from `at` on: logarithms, which of them are shown, as 1 or 0, and the highest code. */
INLINE int32_t decode(const Line *of, size_t at, size_t n, double *logs, double *shown) {
    int32_t top = 0;
    size_t i;
    if (of->codes == NULL) {
        ALIGNED double room[CHUNK];
        const double *a = doubles(of->numbers, of->type, of->start + at, n, -INFINITY, room);
        for (i = 0; i < n; i++) {
            logs[i] = a[i] + of->low;
            shown[i] = 1.0;
        }
    } else {
        const int32_t least = of->clipped;
#pragma omp simd reduction(max : top)
        for (i = 0; i < n; i++) {
            int32_t code = of->codes[at + i];
            logs[i] = of->scale * code + of->low;
            shown[i] = code >= least ? 1.0 : 0.0;
            top = code > top ? code : top;
        }
    }
    return top;
}

/* The mass of what a row hides: 1 less the rest, which the codes leave open by half a step, and at most e^low a category. */
INLINE double tail(const Line *of, double rest, double count) {
    const double most = count * exp(of->low), slack = 0.5 * of->scale;
    const double high = fmin(fmax(rest + slack, 0.0), most), low = fmin(fmax(rest - slack, 0.0), high);
    return of->codes == NULL ? 0.0 : 0.5 * (low + high);
}

/* The first place of the highest number; of codes, of the highest code, which is in the chunk that begins there. */
INLINE int64_t likeliest(const Line *of, size_t columns, int32_t top, size_t begin) {
    size_t place = begin, i;
    if (of->codes != NULL) {
        while (of->codes[place] != top)
            place++;
    } else {
        double top = number(of->numbers, of->type, of->start);
        for (i = 1; i < columns; i++) {
            const double x = number(of->numbers, of->type, of->start + i);
            place = x > top ? i : place;
            top = x > top ? x : top;
        }
    }
    return (int64_t)place;
}

INLINE double logarithm_at(const Line *of, int64_t place) {
    return of->low + (of->codes == NULL ? number(of->numbers, of->type, of->start + (size_t)place) : of->scale * of->codes[place]);
}

INLINE Pooled pooled(const Clipped *of, int64_t row) {
    const size_t columns = (size_t)of->columns;
    const Line p = line_of(&of->p, row, of->columns), q = line_of(&of->q, row, of->columns);
    /* As stored, rows sum to 1 but for the rounding of the codes, which is the X of comparison.c: one pass is enough. */
    const double tolerances[2] = {1e-3, 1e-3};
    const Frame frame = {(double)columns, 0.0, 0.0, 0.0, 1, 0, 0, tolerances};
    double seen_p = 0.0, seen_q = 0.0, moved_p = 0.0, moved_q = 0.0, shown_p = 0.0, shown_q = 0.0, theirs = 0.0;
    int32_t top_p = -1, top_q = -1;
    size_t begin_p = 0, begin_q = 0, at, i;
    Sums sums = {0};
    ALIGNED Chunk chunk;
    ALIGNED double logs_p[CHUNK], logs_q[CHUNK], here_p[CHUNK], here_q[CHUNK];
    Pooled found;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK, all = padded(n);
        const int32_t highest_p = decode(&p, at, n, logs_p, here_p), highest_q = decode(&q, at, n, logs_q, here_q);
        if (highest_p > top_p)
            top_p = highest_p, begin_p = at;
        if (highest_q > top_q)
            top_q = highest_q, begin_q = at;
#pragma omp simd reduction(+ : seen_p, moved_p, shown_p, theirs)
        for (i = 0; i < n; i++) {
            const double whole = wide_exponential(logs_p[i]), part = whole * here_p[i];
            seen_p += part;
            moved_p += part - part * here_q[i]; /* into the bucket, for the other side's sake */
            shown_p += here_p[i];
            theirs += logs_p[i] > DROPPED ? whole * (logs_p[i] - logs_q[i]) : 0.0;
        }
#pragma omp simd reduction(+ : seen_q, moved_q, shown_q)
        for (i = 0; i < n; i++) {
            const double part = wide_exponential(logs_q[i]) * here_q[i];
            seen_q += part;
            moved_q += part - part * here_p[i];
            shown_q += here_q[i];
        }
        for (i = 0; i < n; i++) {
            const int both = here_p[i] * here_q[i] > 0.0;
            logs_p[i] = both ? logs_p[i] : -INFINITY;
            logs_q[i] = both ? logs_q[i] : -INFINITY;
        }
        for (i = n; i < all; i++)
            logs_p[i] = logs_q[i] = -INFINITY;
        wide_differences(logs_p, logs_q, all, 0.0, 0.0, &chunk);
        terms_of_logs(&chunk, all, &sums);
        add(&chunk, all, &sums);
    }
    found.bucket_p = tail(&p, 1.0 - seen_p, (double)columns - shown_p) + moved_p;
    found.bucket_q = tail(&q, 1.0 - seen_q, (double)columns - shown_q) + moved_q;
    found.theirs = theirs;
    for (i = 0; i < LANES; i++)
        logs_p[i] = logs_q[i] = -INFINITY;
    logs_p[0] = log(found.bucket_p);
    logs_q[0] = log(found.bucket_q);
    wide_differences(logs_p, logs_q, LANES, 0.0, 0.0, &chunk);
    terms_of_logs(&chunk, LANES, &sums);
    add(&chunk, LANES, &sums);

    found.row = concluded(&sums, &frame, sums.s == 0.0 && sums.x == 0.0);
    found.row.decided = found.row.decided && p.sound && q.sound;
    found.row.top_p = likeliest(&p, columns, top_p, begin_p);
    found.row.top_q = likeliest(&q, columns, top_q, begin_q);
    const int64_t token = of->chosen ? of->chosen[row] : found.row.top_p;
    found.row.log_p = logarithm_at(&p, token);
    found.row.log_q = logarithm_at(&q, token);
    return found;
}

FOR_EACH_TARGET static void pool_each(const Clipped *of, int64_t rows, Pooled *found) {
    int64_t i;
    for (i = 0; i < rows; i++)
        found[i] = pooled(of, i);
}

/* All rows, into `found`. */
void kullback_compare_clipped(const Clipped *of, int64_t rows, Pooled *found) { pool_each(of, rows, found); }
