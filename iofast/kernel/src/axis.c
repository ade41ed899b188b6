/* One axis of an antialiased resample: the inputs that each output sees, and their weights.

Geometry and filters are Pillow's (documentation of Image.resize: support scaled by the reduction, window centred on (i
+ 0.5) * scale, weights normalised to sum 1), so that results agree to one level. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define FEW_TAPS 16   /* 16 weights, rounded to 14 bits, are together within 1/8 of a level */
#define MANY_TAPS 256 /* 256 weights, rounded to 16 bits, are together within half a level */

static const double PI = 3.14159265358979323846;

static double box(double x) { return x > -0.5 && x <= 0.5; }

static double bilinear(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

static double bicubic(double x) { /* Keys' kernel with a = -0.5 */
  x = fabs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

static double sinc(double x) { return x == 0 ? 1 : sin(PI * x) / (PI * x); }

static double lanczos(double x) { return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

/* Pillow's factors are in single precision. */
static double hamming(double x) {
  x = fabs(x);
  return x == 0 ? 1 : x >= 1 ? 0 : sin(x * PI) / (x * PI) * (0.54f + 0.46f * cos(x * PI));
}

/* bicubic in the order of Pillow's operations: exact weights depend on the last bit. */
static double exact_bicubic(double x) {
  x = fabs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * -0.5;
  return 0;
}

static double exact_lanczos(double x) {
  double across = x * PI, third = x / 3 * PI;
  if (!(-3 <= x && x < 3)) return 0;
  return x == 0 ? 1 : sin(across) / across * (sin(third) / third);
}

static const struct {
  double (*weight)(double);
  double support;
} FILTERS[IOF_FILTERS] = {
    [IOF_BOX_FILTER] = {box, 0.5}, [IOF_BILINEAR] = {bilinear, 1}, [IOF_BICUBIC] = {bicubic, 2}, [IOF_LANCZOS] = {lanczos, 3},
    [IOF_ALIASED] = {bilinear, 1}, [IOF_HAMMING] = {hamming, 1}};

void *iof_reserve(iof_buffer *buffer, size_t size) {
  if (size > buffer->size) {
    free(buffer->data);
    buffer->size = 0;
#ifdef __SANITIZE_ADDRESS__
    size_t room = (size + 63) & ~(size_t)63; /* no spare room, so that an overrun is detected */
#else
    /* an eighth more, so that slowly growing sizes do not allocate each time */
    size_t room = (size + size / 8 + 4096) & ~(size_t)63;
#endif
    buffer->data = aligned_alloc(64, room);
    if (buffer->data) buffer->size = room;
  }
  return buffer->data;
}

/* Make `start` and `count` of `outputs` outputs, and room for at most `taps` coefficients of each. */
static iof_status allocate(iof_axis *axis, int outputs, int taps, int exact) {
  size_t n = (size_t)(outputs + 7) & ~(size_t)7, size = exact ? sizeof(int32_t) : sizeof(int16_t);
  uint8_t *memory = iof_reserve(&axis->memory, n * (2 * sizeof(int32_t)) + n * (size_t)taps * size);
  if (!memory) return IOF_MEMORY;
  axis->outputs = outputs;
  axis->start = (int32_t *)memory;
  axis->count = axis->start + n;
  axis->coef = exact ? NULL : (int16_t *)(axis->count + n);
  axis->exact = exact ? axis->count + n : NULL;
  return IOF_OK;
}

/* Padding outputs read the inputs of the last output, with weight zero. Starts and ends rise from output to output, or
fall in a mirror, so the first and the last output give the range. */
static void finish(iof_axis *axis) {
  int last = axis->outputs - 1, end = axis->start[0] + axis->count[0], other_end = axis->start[last] + axis->count[last];
  axis->low = axis->start[0] < axis->start[last] ? axis->start[0] : axis->start[last];
  axis->high = end > other_end ? end : other_end;
  for (int i = axis->outputs; i & 7; i++) {
    axis->start[i] = axis->start[last];
    axis->count[i] = 0;
    if (axis->coef) memset(axis->coef + (size_t)i * (size_t)axis->taps, 0, (size_t)axis->taps * sizeof(int16_t));
    else memset(axis->exact + (size_t)i * (size_t)axis->taps, 0, (size_t)axis->taps * sizeof(int32_t));
  }
}

static double length_of(const iof_span *span) {
  return span->exact ? (double)((float)span->to - (float)span->from) : span->to - span->from;
}

/* One input for each output: nearest neighbour, and the copy. The position is a running sum, as in Pillow, so that ties
fall alike. */
static iof_status make_copy(iof_axis *axis, const iof_span *span) {
  double step = length_of(span) / span->virtual_size, at = span->from - (span->exact ? 0 : span->low) + step * 0.5;
  iof_status status = allocate(axis, span->outputs, 2, 0);
  if (status) return status;
  axis->taps = 2;
  axis->precision = IOF_PRECISION;
  for (int i = 0; i < span->first + span->outputs; i++, at += step) {
    if (i < span->first) continue;
    int from = span->low + (int)at, slot = i - span->first;
    if (from >= span->high) from = span->high - 1;
    slot = span->reverse ? span->outputs - 1 - slot : slot;
    axis->start[slot] = from;
    axis->count[slot] = 1;
    axis->coef[2 * slot] = 1 << IOF_PRECISION;
    axis->coef[2 * slot + 1] = 0;
  }
  finish(axis);
  return IOF_OK;
}

typedef struct {
  double scale, support, inverse, offset;
  int length; /* of the region */
} window;

static window window_of(const iof_span *span, int filter) {
  double scale = (span->to - span->from) / span->virtual_size, stretch = scale < 1 || filter == IOF_ALIASED ? 1 : scale;
  /* The offset is relative to the region's first pixel, because Pillow crops first and rounding must be the same. */
  return (window){scale, FILTERS[filter].support * stretch, 1 / stretch, span->from - span->low, span->high - span->low};
}

/* Find the inputs that each output sees, and the distance from its centre to the first of them. That difference is
exact, so adding whole numbers to it rounds like Pillow's own `x + xmin - center`. Returns the largest number of inputs
of an output. */
static int see(iof_axis *axis, const window *view, const iof_span *span, double *before) {
  const window w = *view;
  /* A plane's last output may have its centre on the far edge itself, where the half-open box filter sees nothing. It
  gets the last input. */
  const double end = w.length - 1e-6;
  const int low = span->low, outputs = span->outputs, step = span->reverse ? -1 : 1;
  int most = 0, slot = span->reverse ? outputs - 1 : 0;
  double at = span->first + 0.5;
  for (int i = 0; i < outputs; i++, at += 1, slot += step) {
    double centre = w.offset + at * w.scale;
    centre = centre < end ? centre : end;
    int from = (int)(centre - w.support + 0.5), to = (int)(centre + w.support + 0.5);
    from = from < 0 ? 0 : from;
    to = to > w.length ? w.length : to;
    axis->start[slot] = low + from;
    axis->count[slot] = to - from;
    before[slot] = from - centre;
    most = to - from > most ? to - from : most;
  }
  return most;
}

/* The order of operations is Pillow's: the last bit decides whether the box filter includes an input on its edge. */
static void weigh(const window *w, int filter, double before, int count, double *weight) {
  double sum = 0;
  for (int k = 0; k < count; k++) {
    weight[k] = FILTERS[filter].weight((k + before + 0.5) * w->inverse);
    sum += weight[k];
  }
  sum = sum != 0 ? 1 / sum : 1;
  for (int k = 0; k < count; k++) weight[k] *= sum;
}

/* The largest precision at which every weight fits 16 bits, even rounded up, and no sum of 14-bit inputs exceeds 32.
Rounding is off by up to half a unit for each tap, and fine patterns can add all of these up. So many taps get more
precision, and loops with wider sums (resample.c). */
static int precision_of(const double *weights, size_t n, int taps) {
  double largest = 1e-6;
  for (size_t i = 0; i < n; i++)
    if (fabs(weights[i]) > largest) largest = fabs(weights[i]);
  int precision = taps > MANY_TAPS ? 26 : IOF_PRECISION_32;
  while (precision > 1 && largest * (1 << precision) > INT16_MAX - 1) precision--;
  return precision;
}

#define OFFSET (1 << 26) /* above any negative running sum, so that truncation rounds down */

/* Round the running sum instead of each weight: the weights of an output keep the sum 1, and flat areas stay flat. */
static void quantise(const double *weight, int count, int taps, int precision, int16_t *coef) {
  double sum = 0;
  int32_t done = 0;
  for (int k = 0; k < count; k++) {
    sum += weight[k] * (1 << precision);
    int32_t upto = (int32_t)(sum + OFFSET + 0.5) - OFFSET, value = upto - done; /* floor() would be a call each */
    done += value;
    coef[k] = (int16_t)value;
  }
  for (int k = count; k < taps; k++) coef[k] = 0;
}

/* Any filter, one weight after another. `weights` has room for all outputs. */
static void weigh_each(iof_axis *axis, const window *w, int filter, const double *before, double *weights) {
  size_t outputs = (size_t)axis->outputs, taps = (size_t)axis->taps;
  memset(weights, 0, outputs * taps * sizeof(double));
  for (size_t i = 0; i < outputs; i++) weigh(w, filter, before[i], axis->count[i], weights + i * taps);
  if (!axis->positive || taps > FEW_TAPS) axis->precision = precision_of(weights, outputs * taps, axis->taps);
  for (size_t i = 0; i < outputs; i++)
    quantise(weights + i * taps, axis->count[i], axis->taps, axis->precision, axis->coef + i * taps);
}

typedef float floats __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

INLINE floats where(ints which, floats a) { return (floats)((ints)a & which); }

/* The filters at four places, with the weights and supports of the functions above. */
INLINE floats four_linear(floats x) {
  floats left = 1 - (floats)((ints)x & INT32_MAX); /* absolute value */
  return where(left > 0, left);
}

INLINE floats four_cubic(floats x) {
  x = (floats)((ints)x & INT32_MAX);
  floats near = (1.5f * x - 2.5f) * x * x + 1, far = ((-0.5f * x + 2.5f) * x - 4) * x + 2;
  return where(x < 1, near) + where((x >= 1) & (x < 2), far);
}

/* Compute the normalised weights of four outputs. */
INLINE void weigh_four(const double *before, const int32_t *counts, float step, int taps, int cubic, floats *weight) {
  floats x = {(float)before[0], (float)before[1], (float)before[2], (float)before[3]}, sum = {0};
  x = (x + 0.5f) * step;
  ints count;
  memcpy(&count, counts, sizeof count);
  for (int k = 0; k < taps; k++, x += step) {
    weight[k] = where(count > k, cubic ? four_cubic(x) : four_linear(x));
    sum += weight[k];
  }
  ints none = sum == 0;
  floats scale = 1 / (where(~none, sum) + where(none, (floats){1, 1, 1, 1}));
  for (int k = 0; k < taps; k++) weight[k] *= scale;
}

/* Like quantise, for four outputs. OFFSET would leave single precision too few bits. */
INLINE void quantise_four(const floats *weight, int taps, int precision, int16_t *coef) {
  const float offset = 1 << 17, whole = (float)(1 << precision);
  int32_t *to = (int32_t *)(void *)coef;
  floats upto = {0};
  ints done = {1 << 17, 1 << 17, 1 << 17, 1 << 17};
  for (int k = 0; k < taps; k += 2) {
    upto += weight[k];
    ints first = __builtin_convertvector(upto * whole + (offset + 0.5f), ints);
    upto += weight[k + 1];
    ints second = __builtin_convertvector(upto * whole + (offset + 0.5f), ints);
    ints pair = ((first - done) & 0xFFFF) | (second - first) << 16;
    done = second;
    for (int o = 0; o < 4; o++) to[(o * taps + k) / 2] = pair[o];
  }
}

INLINE void weigh_linear_taps(iof_axis *axis, float step, const double *before, int taps) {
  floats weight[FEW_TAPS];
  for (int i = 0; i < axis->outputs; i += 4) {
    weigh_four(before + i, axis->count + i, step, taps, 0, weight);
    quantise_four(weight, taps, IOF_PRECISION, axis->coef + (size_t)i * (size_t)taps);
  }
}

/* The bilinear and the bicubic filter with few taps, four outputs at a time. Single precision has 2^-24, and weights
are rounded to 2^-14. `before` and `weights` have room for a multiple of four outputs. */
static void weigh_linear(iof_axis *axis, const window *w, const double *before) {
  float step = (float)w->inverse;
  switch (axis->taps) { /* 60 % of all rows of training crops from 256-pixel images have up to two taps, 98 % up to four */
    case 2: weigh_linear_taps(axis, step, before, 2); break;
    case 4: weigh_linear_taps(axis, step, before, 4); break;
    default: weigh_linear_taps(axis, step, before, axis->taps);
  }
}

static void weigh_cubic(iof_axis *axis, const window *w, const double *before, floats *weights) {
  int taps = axis->taps;
  floats most = {0};
  for (int i = 0; i < axis->outputs; i += 4) {
    floats *weight = weights + i / 4 * taps;
    weigh_four(before + i, axis->count + i, (float)w->inverse, taps, 1, weight);
    for (int k = 0; k < taps; k++) {
      floats size = (floats)((ints)weight[k] & INT32_MAX);
      most = where(size > most, size) + where(size <= most, most);
    }
  }
  const double sizes[4] = {most[0], most[1], most[2], most[3]};
  axis->precision = precision_of(sizes, 4, taps);
  for (int i = 0; i < axis->outputs; i += 4)
    quantise_four(weights + i / 4 * taps, taps, axis->precision, axis->coef + (size_t)i * (size_t)taps);
}

/* Pillow's weights of one output, rounded to integers. */
static void weigh_exactly(double (*filter)(double), double inverse, double centre, int start, int count, int taps, double *weight,
                          int32_t *exact) {
  double sum = 0;
  for (int k = 0; k < count; k++) sum += weight[k] = filter((k + start - centre + 0.5) * inverse);
  for (int k = 0; k < count; k++) {
    double scaled = (sum != 0 ? weight[k] / sum : weight[k]) * (1 << IOF_EXACT_PRECISION);
    exact[k] = (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  }
  for (int k = count; k < taps; k++) exact[k] = 0;
}

/* An axis in Pillow's arithmetic: the order of its operations in floating point, because a last bit can change a rounded
weight, or the inputs that are seen. */
static iof_status make_exact(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch) {
  double (*weight_of)(double) = filter == IOF_BICUBIC   ? exact_bicubic
                                : filter == IOF_LANCZOS ? exact_lanczos
                                                        : FILTERS[filter].weight;
  double scale = length_of(span) / span->virtual_size, stretch = scale < 1 ? 1 : scale, inverse = 1 / stretch;
  double support = FILTERS[filter].support * stretch;
  int length = span->high - span->low, most = 2 * (support < length ? (int)ceil(support) : length) + 1, taps = 0;
  most = (most > length ? length : most) + 1;
  double *weight = iof_reserve(scratch, (size_t)most * sizeof(double));
  if (!weight || allocate(axis, span->outputs, most, 1)) return IOF_MEMORY;
  for (int pass = 0; pass < 2; pass++) { /* first the largest number of taps, which is the distance of outputs' weights */
    for (int i = 0; i < span->outputs; i++) {
      double centre = span->from + (span->first + i + 0.5) * scale;
      int from = (int)(centre - support + 0.5), to = (int)(centre + support + 0.5);
      int slot = span->reverse ? span->outputs - 1 - i : i;
      from = from < 0 ? 0 : from, to = to > length ? length : to;
      axis->start[slot] = span->low + from;
      axis->count[slot] = to - from;
      taps = to - from > taps ? to - from : taps;
      if (pass) weigh_exactly(weight_of, inverse, centre, from, to - from, axis->taps, weight, axis->exact + slot * (ptrdiff_t)axis->taps);
    }
    axis->taps = (taps + 1) & ~1;
  }
  axis->precision = IOF_EXACT_PRECISION;
  finish(axis);
  return IOF_OK;
}

static iof_status make(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch) {
  int same = span->virtual_size == length_of(span) && span->from == (int)span->from;
  axis->copies = filter == IOF_NEAREST || same;
  axis->positive = filter != IOF_BICUBIC && filter != IOF_LANCZOS;
  if (axis->copies) return make_copy(axis, span);
  if (span->exact && filter != IOF_ALIASED) return make_exact(axis, span, filter, scratch);
  window w = window_of(span, filter);
  double bound = 2 * ceil(w.support) + 2;
  int most = bound < w.length + 1 ? (int)bound : w.length + 1;
  size_t outputs = ((size_t)span->outputs + 3) & ~(size_t)3, weights = outputs * (size_t)(most + 1);
  double *before = iof_reserve(scratch, (outputs + weights) * sizeof(double));
  if (!before || allocate(axis, span->outputs, most + 1, 0)) return IOF_MEMORY;
  memset(before + span->outputs, 0, (outputs - (size_t)span->outputs) * sizeof(double));
  memset(axis->count + span->outputs, 0, (outputs - (size_t)span->outputs) * sizeof(int32_t));
  axis->taps = (see(axis, &w, span, before) + 1) & ~1;
  axis->precision = IOF_PRECISION;
  if ((filter == IOF_BILINEAR || filter == IOF_ALIASED) && axis->taps <= FEW_TAPS) {
    weigh_linear(axis, &w, before);
  } else if (filter == IOF_BICUBIC && axis->taps <= FEW_TAPS) {
    weigh_cubic(axis, &w, before, (floats *)(void *)(before + outputs));
  } else {
    weigh_each(axis, &w, filter, before, before + outputs);
  }
  finish(axis);
  return IOF_OK;
}

iof_status iof_axis_make(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch) {
  /* the same axis as for the last image: usual for images of one size without random crops */
  if (axis->filter == filter && !memcmp(&axis->made, span, sizeof *span)) return IOF_OK;
  axis->made.outputs = 0; /* invalid until complete, because `make` may fail halfway */
  axis->serial++;
  iof_status status = make(axis, span, filter, scratch);
  if (!status) {
    axis->made = *span;
    axis->filter = filter;
  }
  return status;
}

void iof_axis_mirror(iof_axis *axis, int size) {
  int low = axis->low;
  for (int i = 0; i < axis->outputs; i++) {
    size_t first = (size_t)i * (size_t)axis->taps;
    axis->start[i] = size - axis->start[i] - axis->count[i];
    for (size_t a = first, b = first + (size_t)axis->count[i] - 1; a < b; a++, b--) {
      if (axis->coef) {
        int16_t swap = axis->coef[a];
        axis->coef[a] = axis->coef[b], axis->coef[b] = swap;
      } else {
        int32_t swap = axis->exact[a];
        axis->exact[a] = axis->exact[b], axis->exact[b] = swap;
      }
    }
  }
  axis->low = size - axis->high;
  axis->high = size - low;
  axis->made.outputs = 0;
  axis->serial++;
  for (int i = axis->outputs; i & 7; i++) axis->start[i] = axis->start[axis->outputs - 1];
}

iof_orientation iof_orientation_of(int exif) {
  return (iof_orientation){.turned = exif >= 5 && exif <= 8,
                           .mirror_x = exif == 2 || exif == 3 || exif == 6 || exif == 7,
                           .mirror_y = exif == 3 || exif == 4 || exif == 7 || exif == 8};
}
