/* The two passes of a resample, and their scalar loops. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static int32_t clip(int32_t value, int32_t limit) { return value < 0 ? 0 : value > limit ? limit : value; }

#define WIDE_LIMIT (255 << IOF_FRACTION)

static void vertical_first(const uint8_t *const *rows, const int16_t *coef, int taps, int n, int shift, int16_t *dst) {
  for (int x = 0; x < n; x++) {
    int32_t sum = 1 << (shift - 1);
    for (int k = 0; k < taps; k++) sum += rows[k][x] * coef[k];
    dst[x] = (int16_t)clip(sum >> shift, WIDE_LIMIT);
  }
}

static int32_t horizontal(const int16_t *row, const iof_axis *axis, int i, int channel, int shift) {
  const int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps;
  const int16_t *p = row + 4 * (size_t)(axis->start[i] - axis->low) + channel;
  int32_t sum = 1 << (shift - 1);
  for (int k = 0; k < axis->count[i]; k++) sum += p[4 * k] * coef[k];
  return sum >> shift;
}

static void horizontal_rgb(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++)
    for (int c = 0; c < 3; c++) *dst++ = (uint8_t)clip(horizontal(row, axis, i, c, shift), 255);
}

static void horizontal_wide(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++)
    for (int c = 0; c < 4; c++) *dst++ = (int16_t)clip(horizontal(row, axis, i, c, shift), WIDE_LIMIT);
}

static void horizontal_gray(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++) {
    const int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps, *p = row + (axis->start[i] - axis->low);
    int32_t sum = 1 << (shift - 1);
    for (int k = 0; k < axis->count[i]; k++) sum += p[k] * coef[k];
    dst[i] = (uint8_t)clip(sum >> shift, 255);
  }
}

static void vertical_last(const int16_t *const *rows, const int16_t *coef, int taps, int n, int shift, uint8_t *dst) {
  for (int x = 0; x < n; x++) {
    int32_t sum = 1 << (shift - 1);
    for (int k = 0; k < taps; k++) sum += rows[k][x] * coef[k];
    dst[x] = (uint8_t)clip(sum >> shift, 255);
  }
}

const iof_loops iof_loops_scalar = {vertical_first, horizontal_rgb,  horizontal_wide,
                                      NULL, horizontal_gray, vertical_last, "scalar"};

const iof_loops *iof_loops_best(void) {
  const char *forced = getenv("IOFAST_SIMD");
  const iof_loops *best = &iof_loops_scalar;
  if (forced && !strcmp(forced, "scalar")) return best;
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx2")) best = &iof_loops_avx2;
  if (__builtin_cpu_supports("avx512bw") && !(forced && !strcmp(forced, "avx2"))) best = &iof_loops_avx512;
#endif
  return best;
}

const char *iof_simd(void) { return iof_loops_best()->name; }

/* A finished row of RGB to where it belongs, `step` bytes from pixel to pixel. */
static void scatter(const uint8_t *rgb, int n, uint8_t *at, int64_t step, int64_t channel_stride) {
  if (step == 3 && channel_stride == 1) {
    memcpy(at, rgb, 3 * (size_t)n);
  } else {
    for (int c = 0; c < 3; c++) {
      uint8_t *to = at + c * channel_stride;
      for (int i = 0; i < n; i++) to[i * step] = rgb[3 * i + c];
    }
  }
}

/* Coefficients of two neighbouring outputs, each pair of taps as one 32-bit lane repeated for the four channels: what
one multiply-add instruction of 256 bits takes. Made once for an image, used for each of its rows. */
static int32_t *expand_pairs(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps;
  int32_t *pairs = iof_reserve(&r->pairs, outputs * taps * 2 * sizeof(int32_t));
  for (size_t i = 0; pairs && i < outputs; i++)
    for (size_t k = 0; k < taps; k += 2) {
      const int16_t *c = axis->coef + i * taps + k;
      int32_t lane = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[1] << 16);
      int32_t *to = pairs + (i / 2) * taps * 4 + (k / 2) * 8 + (i & 1) * 4;
      to[0] = to[1] = to[2] = to[3] = lane;
    }
  return pairs;
}

/* Whether each four neighbouring outputs read, for one pair of taps, from eight neighbouring pixels: true up to a
reduction to about half. */
static int spreads(const iof_axis *axis) {
  int near = 1;
  for (int i = 0; i < axis->outputs; i += 4) {
    int step = axis->start[i + 3] - axis->start[i]; /* starts rise, or in a mirror fall, one after another */
    near = near && abs(step) <= IOF_SPREAD - 2;
  }
  return near;
}

/* The table that iof_spread describes. */
static int32_t *expand_spread(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps, fours = outputs / 4;
  int32_t *pairs = iof_reserve(&r->pairs, (16 * fours + ((fours + 15) & ~(size_t)15) + outputs * taps * 2) * sizeof(int32_t));
  if (!pairs) return NULL;
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

static const uint8_t *pixel_row(const iof_pixels *p, int x, int y) {
  return p->pixels + (size_t)(y - p->y) * p->stride + 4 * (size_t)(x - p->x);
}

/* Both axes copy: crops, flips, rotations and nearest neighbour. */
static iof_status copy(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  uint8_t *rgb = iof_reserve(&r->row, 3 * (size_t)r->x.outputs);
  if (!rgb) return IOF_MEMORY;
  for (int j = 0; j < r->y.outputs; j++) {
    const uint8_t *row = pixel_row(p, p->x, r->y.start[j]);
    for (int i = 0; i < r->x.outputs; i++) memcpy(rgb + 3 * i, row + 4 * (size_t)(r->x.start[i] - p->x), 3);
    scatter(rgb, r->x.outputs, t->data + j * t->y_stride, t->x_stride, t->channel_stride);
  }
  return IOF_OK;
}

/* The rows that output `j` of an axis sees, as pointers; a copying axis sees one. */
static int gather(const iof_axis *axis, int j, const uint8_t *first, size_t stride, const uint8_t **rows) {
  int taps = axis->taps ? axis->taps : 2;
  for (int k = 0; k < taps; k++) {
    int input = axis->start[j] + (k < axis->count[j] ? k : 0); /* behind the last: any row, its weight is zero */
    rows[k] = first + (size_t)(input - axis->low) * stride;
  }
  return taps;
}

static const int16_t ONE[2] = {1 << 8, 0}; /* the coefficients of a copying axis, at precision 8 */

static const int16_t *coefficients(const iof_axis *axis, int j) {
  return axis->taps ? axis->coef + (size_t)j * (size_t)axis->taps : ONE;
}

static int precision(const iof_axis *axis) { return axis->taps ? axis->precision : 8; }

/* A copying x axis beside a resampling y axis gets coefficients too, so that one pair of loops serves. */
static iof_status give_taps(iof_axis *axis) {
  if (axis->taps) return IOF_OK;
  size_t n = (size_t)(axis->outputs + 7) & ~(size_t)7;
  iof_buffer old = axis->memory;
  axis->memory = (iof_buffer){0};
  uint8_t *memory = iof_reserve(&axis->memory, n * (2 * sizeof(int32_t) + 2 * sizeof(int16_t)));
  if (memory) {
    memcpy(memory, old.data, n * 2 * sizeof(int32_t));
    axis->start = (int32_t *)memory;
    axis->count = axis->start + n;
    axis->coef = (int16_t *)(axis->count + n);
    axis->taps = 2;
    axis->precision = 8;
    for (size_t i = 0; i < n; i++) axis->coef[2 * i] = axis->count[i] ? 1 << 8 : 0, axis->coef[2 * i + 1] = 0;
  }
  free(old.data);
  return memory ? IOF_OK : IOF_MEMORY;
}

static iof_status vertical_then_horizontal(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  const iof_loops *loops = r->loops;
  int n = 4 * (r->x.high - r->x.low), direct = t->x_stride == 3 && t->channel_stride == 1 && r->x.outputs % 8 == 0;
  size_t wide_size = (size_t)n + 4 * (size_t)r->x.taps + 64;
  int16_t *wide = iof_reserve(&r->wide, wide_size * sizeof(int16_t));
  uint8_t *rgb = iof_reserve(&r->row, 3 * (size_t)r->x.outputs + 64);
  const uint8_t **rows = iof_reserve(&r->rows, ((size_t)r->y.taps + 2) * sizeof(*rows));
  int spread = loops->horizontal_spread && spreads(&r->x);
  const int32_t *pairs = spread ? expand_spread(r) : expand_pairs(r);
  if (!wide || !rgb || !rows || !pairs) return IOF_MEMORY;
  memset(wide + n, 0, (wide_size - (size_t)n) * sizeof(int16_t)); /* taps behind the row's end read zeros */
  const uint8_t *first = pixel_row(p, r->x.low, r->y.low);
  for (int j = 0; j < r->y.outputs; j++) {
    uint8_t *to = t->data + j * t->y_stride;
    int taps = gather(&r->y, j, first, p->stride, rows);
    loops->vertical_first(rows, coefficients(&r->y, j), taps, n, precision(&r->y) - IOF_FRACTION, wide);
    (spread ? loops->horizontal_spread : loops->horizontal_rgb)(wide, &r->x, pairs, r->x.precision + IOF_FRACTION,
                                                                direct ? to : rgb);
    if (!direct) scatter(rgb, r->x.outputs, to, t->x_stride, t->channel_stride);
  }
  return IOF_OK;
}

/* One source row, widened to IOF_FRACTION bits below the point, through the horizontal pass. */
static void widen_and_resample(const iof_resampler *r, const uint8_t *row, const int32_t *pairs, int16_t *wide, int16_t *to) {
  int n = 4 * (r->x.high - r->x.low);
  for (int i = 0; i < n; i++) wide[i] = (int16_t)(row[i] << IOF_FRACTION);
  r->loops->horizontal_wide(wide, &r->x, pairs, r->x.precision, to);
}

static iof_status horizontal_then_vertical(iof_resampler *r, const iof_pixels *p, const iof_target *t) {
  const iof_loops *loops = r->loops;
  size_t outputs = (size_t)(r->x.outputs + 7) & ~(size_t)7, height = (size_t)(r->y.high - r->y.low), stride = 4 * outputs;
  size_t n = 4 * (size_t)(r->x.high - r->x.low), wide_size = n + 4 * (size_t)r->x.taps + 64;
  int16_t *wide = iof_reserve(&r->wide, (wide_size + stride * height + 64) * sizeof(int16_t));
  uint8_t *rgbx = iof_reserve(&r->row, 4 * outputs + 64);
  const uint8_t **rows = iof_reserve(&r->rows, ((size_t)r->y.taps + 2) * sizeof(*rows));
  const int32_t *pairs = expand_pairs(r);
  if (!wide || !rgbx || !rows || !pairs) return IOF_MEMORY;
  int16_t *middle = wide + ((wide_size + 31) & ~(size_t)31);
  memset(wide + n, 0, (wide_size - n) * sizeof(int16_t));
  for (size_t y = 0; y < height; y++)
    widen_and_resample(r, pixel_row(p, r->x.low, r->y.low + (int)y), pairs, wide, middle + y * stride);
  for (int j = 0; j < r->y.outputs; j++) {
    int taps = gather(&r->y, j, (const uint8_t *)middle, stride * sizeof(int16_t), rows);
    loops->vertical_last((const int16_t *const *)rows, coefficients(&r->y, j), taps, (int)stride,
                         precision(&r->y) + IOF_FRACTION, rgbx);
    for (int i = 0; i < r->x.outputs; i++) memmove(rgbx + 3 * i, rgbx + 4 * i, 3);
    scatter(rgbx, r->x.outputs, t->data + j * t->y_stride, t->x_stride, t->channel_stride);
  }
  return IOF_OK;
}

iof_status iof_resample(iof_resampler *r, const iof_pixels *pixels, const iof_target *target, int horizontal_first) {
  iof_status status = IOF_OK;
  if (!r->x.taps && !r->y.taps) {
    status = copy(r, pixels, target);
  } else {
    status = give_taps(&r->x);
    if (!status) status = horizontal_first ? horizontal_then_vertical(r, pixels, target) : vertical_then_horizontal(r, pixels, target);
  }
  return status;
}

/* Coefficients of eight neighbouring outputs for one pair of taps side by side: a multiply-add on eight gathered pairs. */
static int32_t *expand_eights(iof_resampler *r) {
  const iof_axis *axis = &r->x;
  size_t outputs = (size_t)(axis->outputs + 7) & ~(size_t)7, taps = (size_t)axis->taps;
  int32_t *pairs = iof_reserve(&r->pairs, outputs * taps / 2 * sizeof(int32_t));
  for (size_t i = 0; pairs && i < outputs; i++)
    for (size_t k = 0; k < taps; k += 2) {
      const int16_t *c = axis->coef + i * taps + k;
      pairs[(i / 8) * taps * 4 + (k / 2) * 8 + i % 8] = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[1] << 16);
    }
  return pairs;
}

iof_status iof_resample_plane(iof_resampler *r, const iof_plane *plane, const iof_target *t) {
  const iof_loops *loops = r->loops;
  iof_status status = give_taps(&r->x);
  int n = r->x.high - r->x.low;
  size_t wide_size = (size_t)n + (size_t)r->x.taps + 64;
  int16_t *wide = iof_reserve(&r->wide, wide_size * sizeof(int16_t));
  uint8_t *out = iof_reserve(&r->row, (size_t)r->x.outputs + 64);
  const uint8_t **rows = iof_reserve(&r->rows, ((size_t)r->y.taps + 2) * sizeof(*rows));
  const int32_t *pairs = status ? NULL : expand_eights(r);
  if (!wide || !out || !rows || !pairs) return IOF_MEMORY;
  memset(wide + n, 0, (wide_size - (size_t)n) * sizeof(int16_t));
  const uint8_t *first = plane->samples + (size_t)r->y.low * plane->stride + r->x.low;
  for (int j = 0; j < r->y.outputs; j++) {
    uint8_t *to = t->data + j * t->y_stride;
    int taps = gather(&r->y, j, first, plane->stride, rows);
    loops->vertical_first(rows, coefficients(&r->y, j), taps, n, precision(&r->y) - IOF_FRACTION, wide);
    loops->horizontal_gray(wide, &r->x, pairs, r->x.precision + IOF_FRACTION, out);
    if (t->x_stride == 1) {
      memcpy(to, out, (size_t)r->x.outputs);
    } else {
      for (int i = 0; i < r->x.outputs; i++) to[i * t->x_stride] = out[i];
    }
  }
  return IOF_OK;
}

void iof_resampler_free(iof_resampler *r) {
  iof_buffer *all[] = {&r->x.memory, &r->y.memory, &r->weights, &r->rows, &r->row, &r->wide, &r->pairs};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
  memset(r, 0, sizeof *r);
}
