/* The two passes of a resample, and their scalar loops. Their sums have 64 bits, which more than 256 taps need. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static int32_t clip(int64_t value, int32_t limit) { return value < 0 ? 0 : value > limit ? limit : (int32_t)value; }

#define WIDE_LIMIT (255 << IOF_FRACTION)

static void vertical_first(const uint8_t *const *rows, const int16_t *coef, int taps, int n, int shift, int16_t *dst) {
  for (int x = 0; x < n; x++) {
    int64_t sum = (int64_t)1 << (shift - 1);
    for (int k = 0; k < taps; k++) sum += rows[k][x] * coef[k];
    dst[x] = (int16_t)clip(sum >> shift, WIDE_LIMIT);
  }
}

static int64_t horizontal(const int16_t *row, const iof_axis *axis, int i, int channel, int shift) {
  const int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps;
  const int16_t *p = row + 4 * (size_t)(axis->start[i] - axis->low) + channel;
  int64_t sum = (int64_t)1 << (shift - 1);
  for (int k = 0; k < axis->count[i]; k++) sum += p[4 * k] * coef[k];
  return sum >> shift;
}

static void horizontal_rgbx(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++)
    for (int c = 0; c < 4; c++) *dst++ = (uint8_t)clip(horizontal(row, axis, i, c, shift), 255);
}

static void horizontal_wide(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst) {
  (void)pairs;
  for (int i = 0; i < ((axis->outputs + 7) & ~7); i++) /* the vertical pass reads the padding */
    for (int c = 0; c < 4; c++) *dst++ = (int16_t)clip(horizontal(row, axis, i, c, shift), WIDE_LIMIT);
}

static void horizontal_gray(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++) {
    const int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps, *p = row + (axis->start[i] - axis->low);
    int64_t sum = (int64_t)1 << (shift - 1);
    for (int k = 0; k < axis->count[i]; k++) sum += p[k] * coef[k];
    dst[i] = (uint8_t)clip(sum >> shift, 255);
  }
}

static void vertical_last(const int16_t *const *rows, const int16_t *coef, int taps, int n, int shift, uint8_t *dst) {
  for (int x = 0; x < n; x++) {
    int64_t sum = (int64_t)1 << (shift - 1);
    for (int k = 0; k < taps; k++) sum += rows[k][x] * coef[k];
    dst[x] = (uint8_t)clip(sum >> shift, 255);
  }
}

const iof_loops iof_loops_scalar = {
    .vertical_first = vertical_first,   .horizontal_rgbx = horizontal_rgbx, .horizontal_wide = horizontal_wide,
    .horizontal_gray = horizontal_gray, .vertical_last = vertical_last,     .shorts = &iof_short_scalar,
    .exact = &iof_exact_scalar,
    .name = "scalar"};

const iof_loops *iof_loops_best(void) {
  const char *forced = getenv("IOFAST_SIMD");
  const iof_loops *best = &iof_loops_scalar;
  if (forced && !strcmp(forced, "scalar")) return best;
#ifdef IOF_X86
  if (__builtin_cpu_supports("avx2")) best = &iof_loops_avx2;
  if (__builtin_cpu_supports("avx512bw") && !(forced && !strcmp(forced, "avx2"))) {
    best = __builtin_cpu_supports("avx512vbmi") && !(forced && !strcmp(forced, "avx512bw")) ? &iof_loops_vbmi : &iof_loops_avx512;
  }
#endif
#ifdef IOF_NEON
  best = &iof_loops_neon;
#endif
  return best;
}

const char *iof_simd(void) { return iof_loops_best()->name; }

void *iof_table_room(iof_resampler *r, iof_table kind, size_t size, int *made) {
  void *table = iof_reserve(&r->table, size);
  *made = table && r->kind == kind && r->serial == r->x.serial; /* of the same size, so it was not moved */
  r->kind = table ? kind : IOF_NO_TABLE;
  r->serial = r->x.serial;
  return table;
}

/* Coefficients of two neighbouring outputs, each pair of taps as one 32-bit lane repeated for the four channels: the
operand of one multiply-add instruction of 256 bits. Made once for an image, used for each row. */
static int32_t *expand_pairs(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps;
  int made;
  int32_t *pairs = iof_table_room(r, IOF_PAIRS, outputs * taps * 2 * sizeof(int32_t), &made);
  for (size_t i = 0; pairs && !made && i < outputs; i++)
    for (size_t k = 0; k < taps; k += 2) {
      const int16_t *c = axis->coef + i * taps + k;
      int32_t lane = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[1] << 16);
      int32_t *to = pairs + (i / 2) * taps * 4 + (k / 2) * 8 + (i & 1) * 4;
      to[0] = to[1] = to[2] = to[3] = lane;
    }
  return pairs;
}

/* Whether any four neighbouring outputs read, for one pair of taps, from eight neighbouring pixels: true up to a
reduction to about half. */
static int spreads(const iof_axis *axis) {
  int near = 1;
  for (int i = 0; i < axis->outputs; i += 4) {
    int step = axis->start[i + 3] - axis->start[i]; /* starts rise, or fall in a mirror */
    near = near && abs(step) <= IOF_SPREAD - 2;
  }
  return near;
}

/* Make the table of iof_spread. */
static int32_t *expand_spread(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps, fours = outputs / 4;
  size_t size = (16 * fours + ((fours + 15) & ~(size_t)15) + outputs * taps * 2) * sizeof(int32_t);
  int made;
  int32_t *pairs = iof_table_room(r, IOF_SPREADS, size, &made);
  if (!pairs || made) return pairs;
  iof_spread table = iof_spread_of(pairs, axis->outputs);
  uint16_t *words = (uint16_t *)pairs;
  int32_t *first = pairs + (table.first - pairs), *coefs = pairs + (table.coefs - pairs);
  for (size_t f = 0; f < fours; f++) {
    const int32_t *start = axis->start + 4 * f;
    int low = start[0] < start[3] ? start[0] : start[3];
    first[f] = low - axis->low;
    for (size_t o = 0; o < 4; o++) {
      for (size_t w = 0; w < 8; w++) /* channel w / 2 of the first or the second pixel of the pair */
        words[32 * f + 8 * o + w] = (uint16_t)(4 * ((size_t)(start[o] - low) + w % 2) + w / 2);
      for (size_t k = 0; k < taps; k += 2) {
        const int16_t *c = axis->coef + (4 * f + o) * taps + k;
        int32_t *to = coefs + (f * taps / 2 + k / 2) * 16 + 4 * o;
        to[0] = to[1] = to[2] = to[3] = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[1] << 16);
      }
    }
  }
  return pairs;
}

/* The loops for one axis. */
static const iof_loops *loops_for(const iof_resampler *r, const iof_axis *axis) {
  return axis->precision > IOF_PRECISION_32 ? &iof_loops_scalar : r->loops;
}

static const int16_t *coefficients(const iof_axis *axis, int j) { return axis->coef + (size_t)j * (size_t)axis->taps; }

static const uint8_t *pixel_row(const iof_pixels *p, int x, int y) {
  return p->pixels + (size_t)(y - p->y) * p->stride + 4 * (size_t)(x - p->x);
}

static size_t planes_of(int n) { return ((size_t)n + 127) & ~(size_t)63; }

/* Whether the axis copies a run of neighbouring pixels. Steps are equal, so it is enough to compare the first and last
output. */
static int crops(const iof_axis *axis) {
  return axis->copies && axis->start[axis->outputs - 1] - axis->start[0] == axis->outputs - 1;
}

/* Both axes copy: crops, and cases without a faster path, such as turns and nearest neighbour with large steps. */
static iof_status copy(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  int n = r->x.outputs, crop = crops(&r->x);
  size_t plane = planes_of(n);
  uint8_t *planes = iof_reserve(&r->row, 3 * plane);
  if (!planes) return IOF_MEMORY;
  for (int j = 0; j < r->y.outputs; j++) {
    if (crop) {
      r->loops->shorts->split(pixel_row(p, r->x.start[0], r->y.start[j]), n, 0, planes, plane);
    } else {
      const uint8_t *row = pixel_row(p, p->x, r->y.start[j]);
      for (int i = 0; i < n; i++) {
        const uint8_t *pixel = row + 4 * (size_t)(r->x.start[i] - p->x);
        for (size_t c = 0; c < 3; c++) planes[c * plane + (size_t)i] = pixel[c];
      }
    }
    iof_put_row(r->loops->shorts, planes, plane, n, t->data + j * t->y_stride, t);
  }
  return IOF_OK;
}

/* Find the rows that output `j` of an axis sees. */
static void gather(const iof_axis *axis, int j, const uint8_t *first, size_t stride, const uint8_t **rows) {
  for (int k = 0; k < axis->taps; k++) {
    int input = axis->start[j] + (k < axis->count[j] ? k : 0); /* after the last: any row, because its weight is zero */
    rows[k] = first + (size_t)(input - axis->low) * stride;
  }
}

/* Scratch of both orders of the passes: a row of 16-bit words, a finished row of RGBX, and the same in planes. */
typedef struct {
  int16_t *wide;
  uint8_t *rgbx, *planes;
  size_t plane;
  const uint8_t **rows;
} room;

static iof_status reserve_room(iof_resampler *r, size_t more_words, room *m) {
  size_t n = 4 * (size_t)(r->x.high - r->x.low), wide_size = n + 4 * (size_t)r->x.taps + 64;
  size_t outputs = ((size_t)r->x.outputs + 7) & ~(size_t)7;
  m->plane = planes_of(r->x.outputs);
  m->wide = iof_reserve(&r->wide, (wide_size + more_words + 64) * sizeof(int16_t));
  m->rgbx = iof_reserve(&r->row, 4 * outputs + 64 + 3 * m->plane);
  m->rows = iof_reserve(&r->rows, (size_t)r->y.taps * sizeof(*m->rows));
  if (!m->wide || !m->rgbx || !m->rows) return IOF_MEMORY;
  m->planes = m->rgbx + 4 * outputs + 64;
  memset(m->wide + n, 0, (wide_size - n) * sizeof(int16_t)); /* taps after the row's end read zeros */
  return IOF_OK;
}

static void put_rgbx(const iof_resampler *r, const room *m, int j, const iof_target *t) {
  r->loops->shorts->split(m->rgbx, r->x.outputs, 0, m->planes, m->plane);
  iof_put_row(r->loops->shorts, m->planes, m->plane, r->x.outputs, t->data + j * t->y_stride, t);
}

static iof_status vertical_then_horizontal(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  const iof_loops *across = loops_for(r, &r->x), *down = loops_for(r, &r->y);
  room m;
  iof_status status = reserve_room(r, 0, &m);
  int spread = across->horizontal_spread && spreads(&r->x), n = 4 * (r->x.high - r->x.low);
  const int32_t *pairs = spread ? expand_spread(r) : expand_pairs(r);
  if (status || !pairs) return IOF_MEMORY;
  const uint8_t *first = pixel_row(p, r->x.low, r->y.low);
  for (int j = 0; j < r->y.outputs; j++) {
    gather(&r->y, j, first, p->stride, m.rows);
    down->vertical_first(m.rows, coefficients(&r->y, j), r->y.taps, n, r->y.precision - IOF_FRACTION, m.wide);
    (spread ? across->horizontal_spread : across->horizontal_rgbx)(m.wide, &r->x, pairs, r->x.precision + IOF_FRACTION, m.rgbx);
    put_rgbx(r, &m, j, t);
  }
  return IOF_OK;
}

static const int16_t WHOLE[2] = {1 << IOF_PRECISION, 0};

/* Apply the horizontal pass to the source rows before `upto`, each into its slot of the ring of `slots` rows. */
static void add_rows(const iof_resampler *r, const iof_pixels *p, const int32_t *pairs, int16_t *wide, int16_t *ring, int slots,
                     int *done, int upto) {
  const iof_loops *loops = loops_for(r, &r->x);
  size_t stride = 4 * (((size_t)r->x.outputs + 7) & ~(size_t)7);
  for (; *done < upto; ++*done) {
    const uint8_t *row = pixel_row(p, r->x.low, *done), *rows[2] = {row, row};
    /* a vertical pass over one row widens it to IOF_FRACTION bits below the point */
    loops->vertical_first(rows, WHOLE, 2, 4 * (r->x.high - r->x.low), IOF_PRECISION - IOF_FRACTION, wide);
    (r->kind == IOF_SPREADS ? loops->spread_wide : loops->horizontal_wide)(wide, &r->x, pairs, r->x.precision,
                                                                          ring + (size_t)(*done & (slots - 1)) * stride);
  }
}

static iof_status horizontal_then_vertical(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  const iof_axis *y = &r->y;
  size_t stride = 4 * (((size_t)r->x.outputs + 7) & ~(size_t)7);
  int slots = 1, done = y->low, falls = y->start[0] > y->start[y->outputs - 1];
  while (slots < y->taps) slots *= 2;
  room m;
  iof_status status = reserve_room(r, stride * (size_t)slots, &m);
  const int32_t *pairs = loops_for(r, &r->x)->spread_wide && spreads(&r->x) ? expand_spread(r) : expand_pairs(r);
  if (status || !pairs) return IOF_MEMORY;
  size_t wide_size = 4 * (size_t)(r->x.high - r->x.low) + 4 * (size_t)r->x.taps + 64;
  int16_t *ring = m.wide + ((wide_size + 31) & ~(size_t)31);
  for (int i = 0; i < y->outputs; i++) {
    int j = falls ? y->outputs - 1 - i : i; /* in this order source rows are needed from low to high */
    add_rows(r, p, pairs, m.wide, ring, slots, &done, y->start[j] + y->count[j]);
    for (int k = 0; k < y->taps; k++) /* after the last: any row, because its weight is zero */
      m.rows[k] = (const uint8_t *)(ring + (size_t)((y->start[j] + (k < y->count[j] ? k : 0)) & (slots - 1)) * stride);
    loops_for(r, y)->vertical_last((const int16_t *const *)m.rows, coefficients(y, j), y->taps, (int)stride,
                            y->precision + IOF_FRACTION, m.rgbx);
    put_rgbx(r, &m, j, t);
  }
  return IOF_OK;
}

int iof_takes_rows(const iof_resampler *r) {
  return iof_is_exact(r) || (!(r->x.copies && r->y.copies && crops(&r->x)) && iof_fits_short(r));
}

iof_status iof_resample(iof_resampler *r, const iof_pixels *pixels, const iof_target *target, int horizontal_first) {
  int copies = r->x.copies && r->y.copies;
  iof_status status;
  if (iof_is_exact(r)) {
    status = iof_resample_exact(r, pixels, target, horizontal_first);
  } else if (copies && crops(&r->x)) {
    status = copy(r, pixels, target);
  } else if (iof_fits_short(r)) { /* includes flips: a weight of one reproduces the sample */
    iof_origin from = {pixels->row ? NULL : pixel_row(pixels, r->x.low, r->y.low), pixels->stride, 3, pixels->row ? pixels : NULL};
    status = iof_resample_short(r, &from, target);
  } else if (copies) {
    status = copy(r, pixels, target);
  } else if (horizontal_first) {
    status = horizontal_then_vertical(r, pixels, target);
  } else {
    status = vertical_then_horizontal(r, pixels, target);
  }
  return status;
}

/* Coefficients of eight neighbouring outputs for one pair of taps side by side: the operand of a multiply-add on eight
gathered pairs. */
static int32_t *expand_eights(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps;
  int made;
  int32_t *pairs = iof_table_room(r, IOF_EIGHTS, outputs * taps / 2 * sizeof(int32_t), &made);
  for (size_t i = 0; pairs && !made && i < outputs; i++)
    for (size_t k = 0; k < taps; k += 2) {
      const int16_t *c = axis->coef + i * taps + k;
      pairs[(i / 8) * taps * 4 + (k / 2) * 8 + i % 8] = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[1] << 16);
    }
  return pairs;
}

static iof_status plane_vertical_first(iof_resampler *r, const uint8_t *first, size_t stride, const iof_target *t) {
  const iof_loops *across = loops_for(r, &r->x), *down = loops_for(r, &r->y);
  int n = r->x.high - r->x.low;
  size_t wide_size = (size_t)n + (size_t)r->x.taps + 64;
  int16_t *wide = iof_reserve(&r->wide, wide_size * sizeof(int16_t));
  uint8_t *out = iof_reserve(&r->row, (size_t)r->x.outputs + 64);
  const uint8_t **rows = iof_reserve(&r->rows, (size_t)r->y.taps * sizeof(*rows));
  const int32_t *pairs = expand_eights(r);
  if (!wide || !out || !rows || !pairs) return IOF_MEMORY;
  memset(wide + n, 0, (wide_size - (size_t)n) * sizeof(int16_t));
  for (int j = 0; j < r->y.outputs; j++) {
    uint8_t *to = t->data + j * t->y_stride;
    gather(&r->y, j, first, stride, rows);
    down->vertical_first(rows, coefficients(&r->y, j), r->y.taps, n, r->y.precision - IOF_FRACTION, wide);
    across->horizontal_gray(wide, &r->x, pairs, r->x.precision + IOF_FRACTION, out);
    if (t->x_stride == 1) memcpy(to, out, (size_t)r->x.outputs);
    for (int i = 0; i < r->x.outputs && t->x_stride != 1; i++) to[i * t->x_stride] = out[i];
  }
  return IOF_OK;
}

iof_status iof_resample_plane(iof_resampler *r, const iof_plane *plane, const iof_target *target) {
  iof_origin from = {plane->samples + (size_t)r->y.low * plane->stride + r->x.low, plane->stride, 1, NULL};
  return iof_fits_short(r) ? iof_resample_short(r, &from, target) : plane_vertical_first(r, from.data, from.stride, target);
}

void iof_resampler_free(iof_resampler *r) {
  iof_buffer *all[] = {&r->x.memory, &r->y.memory, &r->weights, &r->rows, &r->row, &r->wide, &r->split, &r->table};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
  memset(r, 0, sizeof *r);
}
