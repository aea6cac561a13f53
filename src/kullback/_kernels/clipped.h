/* Pairs of rows of which one, or both, are llama.cpp's: log p = scale code + low, and code 0 hides a category if the row spans so much that it
   was clipped. What either hides is one bucket on both sides. Part of comparison.c, whose `compared` takes the row with its bucket; what is
   meant, and why, is in _compare/llama.py, which does the same in NumPy, for rows that are not decided here. */

/* The least window, in nats, at which a writer clips; and what llama.cpp leaves out of its own sum. */
#define WINDOW 15.9f
#define DROPPED (-16.0)
/* What sums of float32's terms are off by, and far less. And codes that are looked at to guess how many are hidden. */
#define ROUGH 1e-5
#define SAMPLE 64
/* e^ of less is 0 here. And above what logarithms of probabilities may be. */
#define LEAST_LOGARITHM (-700.0)
#define HIGHEST_LOGARITHM 1.0

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
    double top;        /* the highest code or number, which is in the chunk that begins at `begin` */
    size_t begin;
    double hidden; /* how many */
    int clipped, sound;
} Line;

/* e^x for x from -700 to 700, to 1e-13 of itself: the mass of what is hidden is 1 less the rest. As `exponential`, with more of the polynomial; but
   nothing needs the digits of e^x - 1, and where x is small, as here, log 2 need not be in two parts. */
INLINE double wide_exponential(double x) {
    const double shifter = 6755399441055744.0; /* 1.5 2^52 */
    double t = x * 1.4426950408889634 + shifter, n = t - shifter, r = x - n * 0.6931471805599453;
    double y = 2.76175647858760859e-6, power;
    int64_t bits;
    y = y * r + 2.48678701796877261e-5;
    y = y * r + 1.98412245996560124e-4;
    y = y * r + 1.38888391105720083e-3;
    y = y * r + 8.33333334420297993e-3;
    y = y * r + 4.16666667862657343e-2;
    y = y * r + 1.66666666666625866e-1;
    y = y * r + 4.99999999999551067e-1;
    y = y * r + 1.0;
    y = y * r + 1.0;
    memcpy(&bits, &t, sizeof bits);
    bits = (int64_t)(((uint64_t)bits << 52) + 0x3ff0000000000000u);
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

INLINE Line line_of(const Stored *of, int64_t row, int64_t columns) {
    Line line = {NULL, NULL, 0, 0, 0.0, 0.0, -INFINITY, 0, 0.0, 0, 1};
    double sum = 0.0;
    ALIGNED float narrow[CHUNK];
    ALIGNED double wide[CHUNK];
    size_t at, i;
    int sign;
    if (of->codes != NULL) {
        line.codes = of->codes + row * of->stride;
        line.scale = of->scale[row];
        line.low = of->low[row];
        line.clipped = of->scale[row] * 65535.0f >= WINDOW;
        line.sound = line.low >= LEAST_LOGARITHM && line.low <= HIGHEST_LOGARITHM && line.scale >= 0.0; /* else the file is damaged */
        return line;
    }
    line.numbers = of->numbers;
    line.type = of->type;
    line.start = (size_t)(row * columns);
    for (at = 0; at < (size_t)columns; at += CHUNK) {
        const size_t n = (size_t)columns - at < CHUNK ? (size_t)columns - at : CHUNK, all = padded(n);
        const double top = of->type == FLOAT64 ? largest_double(doubles(of->numbers, of->type, line.start + at, n, -INFINITY, wide), all, &sign)
                                               : largest_single(singles(of->numbers, of->type, line.start + at, n, -INFINITY, narrow), all, &sign);
        if (top > line.top)
            line.top = top, line.begin = at;
    }
    for (at = 0; at < (size_t)columns; at += CHUNK) {
        const size_t n = (size_t)columns - at < CHUNK ? (size_t)columns - at : CHUNK, all = padded(n);
        const double *a = doubles(of->numbers, of->type, line.start + at, n, -INFINITY, wide);
#pragma omp simd reduction(+ : sum)
        for (i = 0; i < all; i++)
            sum += a[i] - line.top < LEAST_LOGARITHM ? 0.0 : wide_exponential(a[i] - line.top);
    }
    line.low = -(line.top + log(sum));
    line.sound = fabs(line.top) <= 1e6 && fabs(expm1(-line.low)) <= of->tolerance; /* larger ones would round the logarithm of the sum */
    return line;
}

/* Looks at n codes from `at` on: the highest so far, how many are hidden. Is one of them? Of numbers `line_of` knows all that. */
INLINE int looked(Line *of, size_t at, size_t n) {
    uint16_t top = 0, zeros = 0;
    size_t i;
    if (of->codes == NULL)
        return 0;
#pragma omp simd reduction(max : top) reduction(+ : zeros)
    for (i = 0; i < n; i++) {
        const uint16_t code = of->codes[at + i];
        top = code > top ? code : top;
        zeros += code == 0;
    }
    if (top > of->top)
        of->top = top, of->begin = at;
    of->hidden += of->clipped ? zeros : 0;
    return of->clipped && zeros;
}

INLINE void decode(const Line *of, size_t at, size_t n, double *logs) {
    size_t i;
    if (of->codes == NULL) {
        ALIGNED double room[CHUNK];
        const double *a = doubles(of->numbers, of->type, of->start + at, n, -INFINITY, room);
        for (i = 0; i < n; i++)
            logs[i] = a[i] + of->low;
    } else
        for (i = 0; i < n; i++)
            logs[i] = of->scale * (int32_t)of->codes[at + i] + of->low;
}

/* e^x of n logarithms. */
INLINE void exponentials(const Line *of, const double *logs, size_t n, double *to) {
    size_t i;
    for (i = 0; i < n; i++)
        to[i] = wide_exponential(logs[i]);
    if (of->codes == NULL) /* which may be anything; codes begin at `low` */
        for (i = 0; i < n; i++)
            to[i] = logs[i] < LEAST_LOGARITHM ? 0.0 : to[i];
}

typedef struct {
    double seen_p, seen_q;   /* masses of what either shows, the latter if asked for, */
    double moved_p, moved_q; /* and of what the other hides of that */
    double theirs;
} Masses;

/* Of n categories from `at` on: log p, log(q/p), and p, the last two 0 where one side hides it. Either `hides` tells whether that side does,
   `all` whether what Q shows is asked for. */
INLINE void masses(const Line *p, const Line *q, int hides_p, int hides_q, int all, size_t at, size_t n, Chunk *to, double *mass, Masses *sums) {
    const double mark_p = p->clipped ? p->low : NAN, mark_q = q->clipped ? q->low : NAN; /* the logarithms of what is hidden */
    double seen_p = 0.0, seen_q = 0.0, moved_p = 0.0, moved_q = 0.0, theirs = 0.0;
    ALIGNED double logs_p[CHUNK], logs_q[CHUNK], mass_q[CHUNK];
    size_t i;
    decode(p, at, n, logs_p);
    decode(q, at, n, logs_q);
    exponentials(p, logs_p, n, mass);
#pragma omp simd reduction(+ : seen_p, theirs)
    for (i = 0; i < n; i++) {
        const double a = logs_p[i], v = logs_q[i] - a;
        seen_p += mass[i];
        theirs -= a > DROPPED ? mass[i] * v : 0.0;
        to->ratio[i] = (float)v;
        to->weight[i] = (float)a;
    }
    if (hides_p | hides_q) {
        seen_p = 0.0;
#pragma omp simd reduction(+ : seen_p, moved_p)
        for (i = 0; i < n; i++) {
            const double part = logs_p[i] == mark_p ? 0.0 : mass[i], both = logs_q[i] == mark_q ? 0.0 : part;
            seen_p += part;
            moved_p += part - both;
            mass[i] = both;
        }
        for (i = 0; i < n; i++) {
            const double v = logs_p[i] == mark_p ? 0.0 : logs_q[i] - logs_p[i];
            to->ratio[i] = (float)(logs_q[i] == mark_q ? 0.0 : v);
        }
    }
    if (hides_p | all) {
        exponentials(q, logs_q, n, mass_q);
#pragma omp simd reduction(+ : seen_q, moved_q)
        for (i = 0; i < n; i++) {
            const double part = logs_q[i] == mark_q ? 0.0 : mass_q[i];
            seen_q += part;
            moved_q += logs_p[i] == mark_p ? part : 0.0;
        }
    }
    for (i = n; i < padded(n); i++)
        mass[i] = to->ratio[i] = to->weight[i] = 0.0f;
    sums->seen_p += seen_p;
    sums->seen_q += seen_q;
    sums->moved_p += moved_p;
    sums->moved_q += moved_q;
    sums->theirs += theirs;
}

/* The mass of what a row of codes shows. */
INLINE double shown(const Line *of, size_t columns) {
    ALIGNED double logs[CHUNK], mass[CHUNK];
    double sum = 0.0;
    size_t at, i;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK;
        decode(of, at, n, logs);
        exponentials(of, logs, n, mass);
#pragma omp simd reduction(+ : sum)
        for (i = 0; i < n; i++)
            sum += logs[i] == of->low ? 0.0 : mass[i];
    }
    return sum;
}

/* The mass of what a row hides: 1 less the rest, which the codes leave open by half a step, and at most e^low a category. */
INLINE double tail(const Line *of, double seen) {
    const double most = of->hidden * exp(of->low), slack = 0.5 * of->scale, rest = 1.0 - seen;
    const double high = fmin(fmax(rest + slack, 0.0), most), low = fmin(fmax(rest - slack, 0.0), high);
    return of->hidden > 0.0 ? 0.5 * (low + high) : 0.0;
}

/* Where few are hidden, so that e^low of each is less than the codes leave open, `tail` is half of that, and what is shown need not be known
   but to ROUGH. That spares the exponentials of a side: is it to be expected, by some of the codes? And was it so? */
INLINE int few_are_hidden(const Line *of, size_t columns) {
    const size_t step = columns / SAMPLE + 1;
    double zeros = 0.0, count = 0.0;
    size_t i;
    if (of->codes == NULL || !of->clipped)
        return 1;
    for (i = 0; i < columns; i += step, count += 1.0)
        zeros += of->codes[i] == 0;
    return zeros / count * (double)columns * exp(of->low) < 0.25 * of->scale;
}

INLINE int few_were_hidden(const Line *of, double seen) {
    const double most = of->hidden * exp(of->low), slack = 0.5 * of->scale - ROUGH, rest = 1.0 - seen;
    return of->hidden == 0.0 || (rest + slack >= most && rest - slack <= 0.0);
}

INLINE double stored_at(const Line *of, size_t place) {
    return of->codes == NULL ? number(of->numbers, of->type, of->start + place) : of->codes[place];
}

/* The first place of the highest code or number. */
INLINE int64_t likeliest(const Line *of, size_t columns) {
    size_t place = of->begin;
    while (place + 1 < columns && stored_at(of, place) != of->top)
        place++;
    return (int64_t)place;
}

INLINE double logarithm_at(const Line *of, int64_t place) {
    return of->low + (of->codes == NULL ? 1.0 : of->scale) * stored_at(of, (size_t)place);
}

INLINE Pooled pooled(const Clipped *of, int64_t row) {
    const size_t columns = (size_t)of->columns;
    /* As stored, rows sum to 1 but for the rounding of the codes, which is the X of comparison.c: one pass is enough. */
    const double tolerances[2] = {1e-3, 1e-3};
    const Frame frame = {(double)columns, 0.0, 0.0, 0.0, 1, 0, 0, tolerances};
    Line p = line_of(&of->p, row, of->columns), q = line_of(&of->q, row, of->columns);
    const int all = !few_are_hidden(&q, columns);
    size_t at, i;
    Sums sums = {0};
    Masses of_row = {0};
    ALIGNED Chunk chunk;
    ALIGNED double mass[CHUNK];
    Pooled found;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK;
        const int hides_p = looked(&p, at, n), hides_q = looked(&q, at, n);
        masses(&p, &q, hides_p, hides_q, all, at, n, &chunk, mass, &of_row);
        terms_of_logs(&chunk, mass, padded(n), &sums);
        add(&chunk, padded(n), &sums);
    }
    if (!all) {
        of_row.seen_q = of_row.seen_p - of_row.moved_p + sums.x + of_row.moved_q;
        if (!few_were_hidden(&q, of_row.seen_q))
            of_row.seen_q = shown(&q, columns);
    }
    found.bucket_p = tail(&p, of_row.seen_p) + of_row.moved_p;
    found.bucket_q = tail(&q, of_row.seen_q) + of_row.moved_q;
    found.theirs = of_row.theirs;
    for (i = 0; i < LANES; i++)
        mass[i] = chunk.ratio[i] = chunk.weight[i] = 0.0f;
    if (found.bucket_p > 0.0 || found.bucket_q > 0.0) {
        mass[0] = found.bucket_p;
        chunk.weight[0] = (float)log(found.bucket_p);
        chunk.ratio[0] = (float)(log(found.bucket_q) - log(found.bucket_p));
    }
    terms_of_logs(&chunk, mass, LANES, &sums);
    add(&chunk, LANES, &sums);

    found.row = concluded(&sums, &frame, sums.s == 0.0 && sums.x == 0.0);
    found.row.top_p = likeliest(&p, columns);
    found.row.top_q = likeliest(&q, columns);
    found.row.decided = found.row.decided && p.sound && q.sound && logarithm_at(&p, found.row.top_p) <= HIGHEST_LOGARITHM &&
                        logarithm_at(&q, found.row.top_q) <= HIGHEST_LOGARITHM;
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
