/* Pairs of rows of which one, or both, are llama.cpp's: log p = scale code + low, and code 0 hides a category if the row spans so much that it
   was clipped. What either hides is one bucket on both sides. Part of comparison.c, whose `compared` takes the row with its bucket; what is
   meant, and why, is in _compare/llama.py, which does the same in NumPy, for rows that are not decided here. */

/* The least window, in nats, at which a writer clips; and what llama.cpp leaves out of its own sum. */
#define WINDOW 15.9f
#define DROPPED (-16.0)
/* What sums of float32's terms are off by, of themselves: 2^-24 for each of 20 additions, as much for a weight, and v times that for e^v, where
   v is STEEPEST at most. And of q = p (1 + g) by g, which is nearly -1 where q is far below p: of p. */
#define ROUGH 3.5e-6
#define ROUGH_RATIO 1.2e-7
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

/* Masses of what a side shows, and of that, of what the other hides. */
typedef struct {
    double seen, moved;
} Shown;

/* Some categories of both. */
typedef struct {
    ALIGNED double logs_p[CHUNK], logs_q[CHUNK], mass[CHUNK]; /* the last is p */
    ALIGNED float shown_p[CHUNK], shown_q[CHUNK];             /* 1, or 0 where that side hides it; known where one does */
    ALIGNED Chunk chunk;
} Part;

/* n categories from `at` on. Adds to the masses of all that P has stored, hidden or not, and to llama.cpp's own figure. */
INLINE void read_part(const Line *p, const Line *q, size_t at, size_t n, Part *to, double *stored, double *theirs) {
    double sum = 0.0, figure = 0.0;
    size_t i;
    decode(p, at, n, to->logs_p);
    decode(q, at, n, to->logs_q);
    exponentials(p, to->logs_p, n, to->mass);
#pragma omp simd reduction(+ : sum, figure)
    for (i = 0; i < n; i++) {
        const double a = to->logs_p[i], v = to->logs_q[i] - a;
        sum += to->mass[i];
        figure -= a > DROPPED ? to->mass[i] * v : 0.0;
        to->chunk.ratio[i] = (float)v;
        to->chunk.weight[i] = (float)a;
    }
    for (i = n; i < padded(n); i++)
        to->mass[i] = to->chunk.ratio[i] = to->chunk.weight[i] = 0.0f;
    *stored += sum;
    *theirs += figure;
}

/* Where a side hides something. That counts for nothing, whatever stands for it; where P does, Q's ratio to e^low is known as the rest's are, or is
   as good as none. */
INLINE void shows(const Line *of, size_t at, size_t n, float *to) {
    size_t i;
    if (of->clipped)
        for (i = 0; i < n; i++)
            to[i] = of->codes[at + i] == 0 ? 0.0f : 1.0f;
    for (i = of->clipped ? n : 0; i < padded(n); i++)
        to[i] = 1.0f;
}

INLINE void mark_hidden(const Line *p, const Line *q, size_t at, size_t n, Part *of) {
    size_t i;
    shows(p, at, n, of->shown_p);
    shows(q, at, n, of->shown_q);
    for (i = 0; i < padded(n); i++) {
        const float v = of->chunk.ratio[i], low = of->shown_p[i] == 0.0f ? LOWEST : -INFINITY, above = v > low ? v : low;
        of->chunk.ratio[i] = of->shown_q[i] == 0.0f ? 0.0f : above;
    }
}

/* What one side hides and the other shows is taken from the weights, and added to what has moved to the other's bucket. */
INLINE void move_hidden(size_t n, Part *of, Shown *p, Shown *q) {
    float moved_p = 0.0f, moved_q = 0.0f;
    size_t i;
#pragma omp simd reduction(+ : moved_p, moved_q)
    for (i = 0; i < padded(n); i++) {
        const float e = of->chunk.weight[i], f = (e + e * of->chunk.g[i]) * of->shown_q[i], own = e * of->shown_p[i], both = own * of->shown_q[i];
        moved_p += own - both;
        moved_q += f - f * of->shown_p[i];
        of->chunk.weight[i] = both;
    }
    p->moved += moved_p;
    q->moved += moved_q;
}

/* The mass that Q has where both show theirs: by float32 of four at a time, the rest in float64. */
INLINE double common(const Chunk *of, size_t n) {
    const size_t quarter = CHUNK / 4;
    const float *e = of->weight, *g = of->g;
    double sum = 0.0;
    size_t i;
    if (n < CHUNK) {
        for (i = 0; i < n; i++)
            sum += (double)e[i] * (1.0 + g[i]);
        return sum;
    }
#pragma omp simd reduction(+ : sum)
    for (i = 0; i < quarter; i++) {
        const size_t j = i + quarter, k = j + quarter, l = k + quarter;
        sum += (double)(((e[i] + e[i] * g[i]) + (e[j] + e[j] * g[j])) + ((e[k] + e[k] * g[k]) + (e[l] + e[l] * g[l])));
    }
    return sum;
}

/* The masses to all digits. */
INLINE void show(const Line *p, const Line *q, size_t columns, Shown *of_p, Shown *of_q) {
    const double mark_p = p->clipped ? p->low : NAN, mark_q = q->clipped ? q->low : NAN;
    ALIGNED double logs_p[CHUNK], logs_q[CHUNK], mass_p[CHUNK], mass_q[CHUNK];
    double seen_p = 0.0, seen_q = 0.0, moved_p = 0.0, moved_q = 0.0;
    size_t at, i;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK;
        decode(p, at, n, logs_p);
        decode(q, at, n, logs_q);
        exponentials(p, logs_p, n, mass_p);
        exponentials(q, logs_q, n, mass_q);
#pragma omp simd reduction(+ : seen_p, seen_q, moved_p, moved_q)
        for (i = 0; i < n; i++) {
            const double own_p = logs_p[i] == mark_p ? 0.0 : mass_p[i], own_q = logs_q[i] == mark_q ? 0.0 : mass_q[i];
            seen_p += own_p;
            seen_q += own_q;
            moved_p += logs_q[i] == mark_q ? own_p : 0.0;
            moved_q += logs_p[i] == mark_p ? own_q : 0.0;
        }
    }
    of_p->seen = seen_p, of_p->moved = moved_p;
    of_q->seen = seen_q, of_q->moved = moved_q;
}

/* What a bucket may hold: the mass of what the side hides, which is 1 less the rest, and that the codes leave open by half a step, and at
   most e^low a category; and that of what the other side hides, which is known. */
typedef struct {
    double low, high;
} Interval;

INLINE Interval bucket(const Line *of, Shown shown) {
    const double most = of->hidden * exp(of->low), slack = 0.5 * of->scale, rest = 1.0 - shown.seen;
    const Interval found = {
        shown.moved + fmin(fmax(rest - slack, 0.0), most),
        shown.moved + fmin(fmax(rest + slack, 0.0), most),
    };
    return found;
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

/* The divergences of a row with its buckets: of the masses that each may hold, the one nearest to the other's. */
INLINE Pooled with_buckets(const Sums *of_row, Interval p, Interval q) {
    /* As stored, rows sum to 1 but for the rounding of the codes, which is the X of comparison.c: one pass is enough. */
    const double tolerances[2] = {1e-3, 1e-3};
    const Frame frame = {0.0, 0.0, 0.0, 0.0, 1, 0, 0, tolerances};
    const double middle = 0.5 * (fmax(p.low, q.low) + fmin(p.high, q.high));
    Pooled found = {{0}, fmin(fmax(middle, p.low), p.high), fmin(fmax(middle, q.low), q.high), 0.0};
    Sums sums = *of_row;
    ALIGNED Chunk chunk;
    ALIGNED double mass[LANES] = {0.0};
    size_t i;
    for (i = 0; i < LANES; i++)
        chunk.ratio[i] = chunk.weight[i] = 0.0f;
    if (found.bucket_p > 0.0 || found.bucket_q > 0.0) {
        mass[0] = found.bucket_p;
        chunk.weight[0] = (float)log(found.bucket_p);
        chunk.ratio[0] = (float)(log(found.bucket_q) - log(found.bucket_p));
    }
    terms_of_logs(&chunk, mass, LANES, &sums);
    add(&chunk, LANES, &sums);
    found.row = concluded(&sums, &frame, sums.s == 0.0 && sums.x == 0.0);
    return found;
}

INLINE int is_near_to(double x, double y) { return x == y || fabs(x - y) <= 0.85 * KULLBACK_GOAL * y; }

/* Are the divergences another pair's too, by less than a part of the goal, whose buckets are `off` more on one side, and less on the other, than
   was found? As they change with the ratio of the buckets, that is when they change most. */
INLINE int is_stable(const Pooled *found, const Sums *sums, const Line *p, const Line *q, Shown of_p, Shown of_q, double off) {
    int sign, stable = 1;
    for (sign = -1; sign <= 1; sign += 2) {
        const double by_p = sign * ROUGH * of_p.moved, by_q = sign * (ROUGH * of_q.moved + ROUGH_RATIO * p->hidden * exp(p->low));
        const Shown other_p = {of_p.seen, of_p.moved + by_p}, other_q = {of_q.seen + sign * off, fmax(of_q.moved - by_q, 0.0)};
        const Row row = with_buckets(sums, bucket(p, other_p), bucket(q, other_q)).row;
        stable = stable && is_near_to(row.kl_pq, found->row.kl_pq) && is_near_to(row.kl_qp, found->row.kl_qp) && is_near_to(row.js, found->row.js);
    }
    return stable;
}

INLINE Pooled pooled(const Clipped *of, int64_t row) {
    const size_t columns = (size_t)of->columns;
    Line p = line_of(&of->p, row, of->columns), q = line_of(&of->q, row, of->columns);
    size_t at;
    Sums sums = {0};
    Shown of_p = {0.0, 0.0}, of_q = {0.0, 0.0};
    double theirs = 0.0;
    Part part;
    Pooled found;
    for (at = 0; at < columns; at += CHUNK) {
        const size_t n = columns - at < CHUNK ? columns - at : CHUNK;
        const int hides = looked(&p, at, n) | looked(&q, at, n);
        read_part(&p, &q, at, n, &part, &of_p.seen, &theirs);
        if (hides)
            mark_hidden(&p, &q, at, n, &part);
        terms_of_logs(&part.chunk, part.mass, padded(n), &sums);
        if (hides)
            move_hidden(n, &part, &of_p, &of_q);
        add(&part.chunk, padded(n), &sums);
        of_q.seen += common(&part.chunk, padded(n));
    }
    of_p.seen -= p.hidden * exp(p.low);
    of_q.seen += of_q.moved;
    found = with_buckets(&sums, bucket(&p, of_p), bucket(&q, of_q));
    /* Of q = p (1 + g), p is off by 2^-24, 1 + g by v 2^-24 and, in times p + q, 2^-23, a sum of four by 2^-23; and E_Q|v| <= KL(Q||P) + 2/e. */
    if (p.hidden + q.hidden > 0.0 && !is_stable(&found, &sums, &p, &q, of_p, of_q, 5e-7 + 6e-8 * found.row.kl_qp)) {
        show(&p, &q, columns, &of_p, &of_q);
        found = with_buckets(&sums, bucket(&p, of_p), bucket(&q, of_q));
    }
    found.theirs = theirs;
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
