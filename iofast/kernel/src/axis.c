/* One axis of an antialiased resample: which inputs each output sees, and with what weight.

The geometry and the filters are Pillow's (its documentation of Image.resize: support scaled by the reduction, window
centred on (i + 0.5) * scale, weights normalised to sum 1), so that results agree to one level. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

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

static const struct {
  double (*weight)(double);
  double support;
} FILTERS[IOF_FILTERS] = {
    [IOF_BOX_FILTER] = {box, 0.5}, [IOF_BILINEAR] = {bilinear, 1}, [IOF_BICUBIC] = {bicubic, 2}, [IOF_LANCZOS] = {lanczos, 3}};

void *iof_reserve(iof_buffer *buffer, size_t size) {
  if (size > buffer->size) {
    free(buffer->data);
    buffer->size = 0;
#ifdef __SANITIZE_ADDRESS__
    size_t room = (size + 63) & ~(size_t)63; /* no more than asked, so that an overrun is seen */
#else
    /* an eighth more than asked, so that slowly growing sizes do not allocate each time */
    size_t room = (size + size / 8 + 4096) & ~(size_t)63;
#endif
    buffer->data = aligned_alloc(64, room);
    if (buffer->data) buffer->size = room;
  }
  return buffer->data;
}

/* `start`, `count` and `coef` of `outputs` outputs with `taps` taps. */
static iof_status allocate(iof_axis *axis, int outputs, int taps) {
  size_t n = (size_t)(outputs + 7) & ~(size_t)7;
  uint8_t *memory = iof_reserve(&axis->memory, n * (2 * sizeof(int32_t)) + n * (size_t)taps * sizeof(int16_t));
  if (!memory) return IOF_MEMORY;
  axis->outputs = outputs;
  axis->taps = taps;
  axis->start = (int32_t *)memory;
  axis->count = axis->start + n;
  axis->coef = (int16_t *)(axis->count + n);
  return IOF_OK;
}

static void set_range(iof_axis *axis) {
  axis->low = INT32_MAX;
  axis->high = 0;
  for (int i = 0; i < axis->outputs; i++) {
    if (axis->start[i] < axis->low) axis->low = axis->start[i];
    if (axis->start[i] + axis->count[i] > axis->high) axis->high = axis->start[i] + axis->count[i];
  }
  for (int i = axis->outputs; i & 7; i++) { /* the padding reads what its neighbour reads, with weight zero */
    axis->start[i] = axis->start[axis->outputs - 1];
    axis->count[i] = 0;
    if (axis->taps) memset(axis->coef + (size_t)i * (size_t)axis->taps, 0, (size_t)axis->taps * sizeof(int16_t));
  }
}

/* One input for each output: nearest neighbour, and the copy. Pillow adds the step up, and so ties fall alike here. */
static iof_status make_copy(iof_axis *axis, const iof_span *span) {
  double step = (span->to - span->from) / span->virtual_size, at = span->from - span->low + step * 0.5;
  iof_status status = allocate(axis, span->outputs, 0);
  if (status) return status;
  for (int i = 0; i < span->first + span->outputs; i++, at += step) {
    if (i < span->first) continue;
    int from = span->low + (int)at, slot = i - span->first;
    if (from >= span->high) from = span->high - 1;
    slot = span->reverse ? span->outputs - 1 - slot : slot;
    axis->start[slot] = from;
    axis->count[slot] = 1;
  }
  set_range(axis);
  return IOF_OK;
}

typedef struct {
  double scale, support, inverse, offset;
  int length; /* of the region */
} window;

static window window_of(const iof_span *span, int filter) {
  double scale = (span->to - span->from) / span->virtual_size, stretch = scale < 1 ? 1 : scale;
  /* The offset is relative to the region's first pixel: Pillow crops first, and rounding must fall as it falls there. */
  return (window){scale, FILTERS[filter].support * stretch, 1 / stretch, span->from - span->low, span->high - span->low};
}

/* A plane's last output may have its centre on the far edge itself, where the box filter sees nothing: half-open as it
is, it belongs to the last input. */
static double centre_of(const window *w, int i) {
  double centre = w->offset + (i + 0.5) * w->scale, last = w->length - 1e-6;
  return centre < last ? centre : last;
}

/* The inputs that output `i` sees, relative to the region: from *first on, as many as are returned. */
static int seen(const window *w, int i, int *first) {
  double centre = centre_of(w, i);
  int from = (int)(centre - w->support + 0.5), to = (int)(centre + w->support + 0.5);
  *first = from < 0 ? 0 : from;
  return (to > w->length ? w->length : to) - *first;
}

static void weigh(const window *w, int filter, int i, int first, int count, double *weight) {
  double centre = centre_of(w, i), sum = 0;
  for (int k = 0; k < count; k++) {
    double x = (k + first - centre + 0.5) * w->inverse;
    weight[k] = filter == IOF_BILINEAR ? bilinear(x) : FILTERS[filter].weight(x); /* the first is inlined */
    sum += weight[k];
  }
  sum = sum != 0 ? 1 / sum : 1;
  for (int k = 0; k < count; k++) weight[k] *= sum;
}

/* Largest precision at which every weight still fits 16 bits and no sum of 14-bit inputs leaves 32. */
static int precision_of(const double *weights, size_t n) {
  double largest = 1e-6;
  for (size_t i = 0; i < n; i++)
    if (fabs(weights[i]) > largest) largest = fabs(weights[i]);
  int precision = 16;
  while (precision > 1 && largest * (1 << precision) > 32767) precision--;
  return precision;
}

#define OFFSET (1 << 20) /* above any negative running sum, so that truncation rounds down */

/* Rounded so that the running sum is right: the weights of an output keep the sum 1, and flat areas stay flat. */
static void quantise(const double *weight, int count, int taps, int precision, int16_t *coef) {
  double sum = 0;
  int32_t done = 0;
  for (int k = 0; k < count; k++) {
    sum += weight[k] * (1 << precision);
    int32_t upto = (int32_t)(sum + OFFSET + 0.5) - OFFSET, value = upto - done; /* floor() would be a call each */
    if (value > 32767) value = 32767;
    done += value;
    coef[k] = (int16_t)value;
  }
  for (int k = count; k < taps; k++) coef[k] = 0;
}

static int most_seen(const window *w, const iof_span *span) {
  int most = 0, first;
  for (int i = 0; i < span->outputs; i++) {
    int count = seen(w, span->first + i, &first);
    if (count > most) most = count;
  }
  return most;
}

iof_status iof_axis_make(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch) {
  int same = span->virtual_size == span->to - span->from && span->from == (int)span->from;
  if (filter == IOF_NEAREST || same) return make_copy(axis, span);
  window w = window_of(span, filter);
  int taps = (most_seen(&w, span) + 1) & ~1;
  iof_status status = allocate(axis, span->outputs, taps);
  size_t n = (size_t)span->outputs * (size_t)taps;
  double *weights = status ? NULL : iof_reserve(scratch, n * sizeof(double));
  if (!weights) return IOF_MEMORY;
  memset(weights, 0, n * sizeof(double));
  for (int i = 0; i < span->outputs; i++) {
    int slot = span->reverse ? span->outputs - 1 - i : i, first;
    axis->count[slot] = seen(&w, span->first + i, &first);
    axis->start[slot] = span->low + first;
    weigh(&w, filter, span->first + i, first, axis->count[slot], weights + (size_t)slot * (size_t)taps);
  }
  axis->precision = precision_of(weights, n);
  for (int i = 0; i < span->outputs; i++)
    quantise(weights + (size_t)i * (size_t)taps, axis->count[i], taps, axis->precision, axis->coef + (size_t)i * (size_t)taps);
  set_range(axis);
  return IOF_OK;
}

void iof_axis_mirror(iof_axis *axis, int size) {
  int low = axis->low;
  for (int i = 0; i < axis->outputs; i++) {
    int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps;
    axis->start[i] = size - axis->start[i] - axis->count[i];
    for (int a = 0, b = axis->count[i] - 1; axis->taps && a < b; a++, b--) {
      int16_t swap = coef[a];
      coef[a] = coef[b];
      coef[b] = swap;
    }
  }
  axis->low = size - axis->high;
  axis->high = size - low;
  for (int i = axis->outputs; i & 7; i++) axis->start[i] = axis->start[axis->outputs - 1];
}

iof_orientation iof_orientation_of(int exif) {
  return (iof_orientation){.turned = exif >= 5 && exif <= 8,
                           .mirror_x = exif == 2 || exif == 3 || exif == 6 || exif == 7,
                           .mirror_y = exif == 3 || exif == 4 || exif == 7 || exif == 8};
}
