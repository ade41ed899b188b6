/* The resample in sums of 16 bits: for filters without negative lobes and small changes of size, as in training crops.

The horizontal pass comes first. It reads bytes, so one shuffle of 16 bytes brings eight outputs their two inputs on every
instruction set. It runs once for each row of the source, and an enlarged crop has fewer of them than the output. Its
results stay in a ring of a few rows, in the first-level cache. For weights w of 14 bits and samples s = pixel - 128 it
computes

    h = BIAS + sum over pairs of taps ((s0 * w0 + s1 * w1) >> 7)

A product of 8 and 14 bits takes 22. So the weight is split, w = 128 * upper + lower, and only the lower part is shifted,
which is equivalent. The lower sum stays within 128 * 127 * 2 and the upper one within 128 * 128. The vertical pass is

    v = (sum over taps round(h * 2 * w / 2^15)) >> 7

Each shift is within 2^-8 of a level (the scale of h is 128). With 4 taps an axis, 6 shifts are 1/40 of a level; with 8
taps, the maximum, 12 are 1/20. The rounding of the weights adds as much again to each pass. Pillow's two roundings and
the last one here are half a level each, so the two results differ by no more than one level. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MOST_TAPS 8
#define NEAR 8  /* outputs that see one window of 16 samples, with a shuffle of 16 bytes */
#define FAR 32  /* and of 64 samples, with one of 64 bytes; both must fit, whatever the machine */

static void split(const uint8_t *rgbx, int n, int flip, uint8_t *planes, size_t plane) {
  for (size_t i = 0; i < (size_t)n; i++)
    for (size_t c = 0; c < 3; c++) planes[c * plane + i] = (uint8_t)(rgbx[4 * i + c] ^ flip);
}

static void horizontal(const iof_windows *windows, const uint8_t *row, size_t plane, int channels, int16_t *dst) {
  const iof_axis *axis = windows->axis;
  for (size_t c = 0; c < (size_t)channels; c++)
    for (int i = 0; i < axis->outputs; i++) {
      const int16_t *coef = axis->coef + (size_t)i * (size_t)axis->taps;
      const int8_t *s = (const int8_t *)row + c * plane + (axis->start[i] - axis->low);
      int32_t sum = IOF_SHORT_BIAS(axis->taps);
      for (int k = 0; k < axis->taps; k += 2) sum += short_pair(s[k], s[k + 1], coef[k], coef[k + 1]);
      dst[c * IOF_SHORT_PLANE(axis->outputs) + (size_t)i] = (int16_t)sum;
    }
}

static void vertical(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
  for (size_t c = 0; c < (size_t)strip->channels; c++) {
    uint8_t *to = strip->to + (int64_t)c * strip->channel_stride;
    for (int x = 0; x < strip->n; x++) {
      int32_t sum = 0;
      for (int k = 0; k < taps; k++)
        sum += short_tap(rows[k][c * IOF_SHORT_PLANE(strip->n) + (size_t)x], coef[k]);
      to[x] = (uint8_t)(sum >> IOF_SHORT_FRACTION);
    }
  }
}

static void interleave(const uint8_t *planes, size_t plane, int n, uint8_t *rgb) {
  for (size_t i = 0; i < (size_t)n; i++)
    for (size_t c = 0; c < 3; c++) *rgb++ = planes[c * plane + i];
}

const iof_short_loops iof_short_scalar = {split, horizontal, vertical, interleave, 0, 0};

int iof_sees_windows(const iof_axis *axis, int group) {
  int fits = 1;
  for (int i = 0; i < axis->outputs; i += group) {
    int last = i + group < axis->outputs ? i + group - 1 : axis->outputs - 1;
    fits = fits && abs(axis->start[last] - axis->start[i]) <= 2 * group - 2; /* starts rise, or fall in a mirror */
  }
  return fits;
}

int iof_fits_short(const iof_resampler *r) {
  return r->x.positive && r->y.positive && r->x.taps <= MOST_TAPS && r->y.taps <= MOST_TAPS && iof_sees_windows(&r->x, NEAR) &&
         iof_sees_windows(&r->x, FAR);
}

/* Fill one group's part of the table. `outputs` of the group are real; the others see the same window with weight zero.
Two bytes are a word and two weights a double word, so that the compiler can vectorise. */
static inline __attribute__((always_inline)) void fill_outputs(const iof_axis *axis, size_t i, size_t outputs, size_t pairs,
                                                               size_t block, int low, uint16_t *pick, uint16_t *weights) {
  const int32_t *start = axis->start + i;
  const uint32_t *coef = (const uint32_t *)(const void *)axis->coef + i * pairs;
  for (size_t o = 0; o < outputs; o++) pick[o] = (uint16_t)((start[o] - low) * 257 + 256); /* a sample and the next */
  for (size_t p = 0; p < pairs; p++) {
    uint16_t *upper = weights + p * 2 * block, *lower = upper + block;
    for (size_t o = 0; o < outputs; o++) {
      uint32_t two = coef[o * pairs + p];
      upper[o] = (uint16_t)((two >> 7 & 0xFF) | (two >> 15 & 0xFF00));
      lower[o] = (uint16_t)((two & 0x7F) | (two >> 8 & 0x7F00));
    }
  }
}

static void fill_group(const iof_axis *axis, size_t i, size_t outputs, size_t block, int32_t *first, uint16_t *pick,
                       uint16_t *weights) {
  int low = axis->start[i] < axis->start[i + outputs - 1] ? axis->start[i] : axis->start[i + outputs - 1];
  *first = low - axis->low;
  if (outputs == FAR && axis->taps == 2) {
    fill_outputs(axis, i, FAR, 1, FAR, low, pick, weights);
  } else if (outputs == FAR && axis->taps == 4) {
    fill_outputs(axis, i, FAR, 2, FAR, low, pick, weights);
  } else {
    fill_outputs(axis, i, outputs, (size_t)axis->taps / 2, block, low, pick, weights);
  }
}

/* Make the table of an axis unless it exists. */
static iof_status make_windows(iof_resampler *r, iof_windows *windows) {
  const iof_axis *axis = &r->x;
  size_t block = (size_t)r->loops->shorts->block, group = (size_t)r->loops->shorts->group;
  size_t blocks = block ? ((size_t)axis->outputs + block - 1) / block : 0; /* the scalar loops need no table */
  size_t pairs = (size_t)axis->taps / 2, groups = block ? blocks * (block / group) : 0;
  size_t picks = 2 * block * blocks, weighed = 2 * picks * pairs, firsts = (groups * sizeof(int32_t) + 63) & ~(size_t)63;
  int made;
  uint8_t *table = iof_table_room(r, IOF_WINDOWS, picks + weighed + firsts + 64, &made);
  uint16_t *words = (uint16_t *)(void *)table;
  if (!table) return IOF_MEMORY;
  *windows = (iof_windows){axis, (const int32_t *)(const void *)(table + picks + weighed), table, table + picks};
  if (made) return IOF_OK;
  if ((size_t)axis->outputs < block * blocks) memset(table, 0, picks + weighed + firsts);
  for (size_t i = 0; i < (size_t)axis->outputs && block; i += group) {
    size_t left = (size_t)axis->outputs - i, b = i / block, inside = i % block;
    fill_group(axis, i, left < group ? left : group, block, (int32_t *)(void *)(table + picks + weighed) + i / group, words + i,
               words + picks / 2 + b * 2 * block * pairs + inside);
  }
  return IOF_OK;
}

void iof_put_row(const iof_short_loops *loops, const uint8_t *planes, size_t plane, int n, uint8_t *at, const iof_target *t) {
  if (t->x_stride == 3 && t->channel_stride == 1) {
    loops->interleave(planes, plane, n, at);
  } else {
    for (int c = 0; c < 3; c++) {
      const uint8_t *from = planes + (size_t)c * plane;
      uint8_t *to = at + c * t->channel_stride;
      if (t->x_stride == 1) {
        memcpy(to, from, (size_t)n);
      } else {
        for (int i = 0; i < n; i++) to[i * t->x_stride] = from[i];
      }
    }
  }
}

/* Rows of the horizontal pass: row y of the source is in slot y modulo `slots` of the ring, for rows before `done`. */
typedef struct {
  int16_t *rows;
  size_t size; /* of a row, in words */
  int slots, done;
  uint8_t *samples; /* one source row, in planes */
  size_t plane;
} ring;

static void add_row(const iof_resampler *r, const iof_origin *from, const iof_windows *windows, ring *h) {
  const uint8_t *row = from->rows ? NULL : from->data + (size_t)(h->done - r->y.low) * from->stride;
  int n = r->x.high - r->x.low;
  if (from->rows) {
    from->rows->row(from->rows->source, h->done, h->samples, h->plane);
  } else if (from->channels == 3) {
    r->loops->shorts->split(row, n, IOF_ROW_FLIP, h->samples, h->plane);
  } else {
    for (int i = 0; i < n; i++) h->samples[i] = row[i] ^ IOF_ROW_FLIP;
  }
  int16_t *to = h->rows + h->size * (size_t)(h->done & (h->slots - 1));
  r->loops->shorts->horizontal(windows, h->samples, h->plane, from->channels, to);
  h->done++;
}

static iof_status reserve_ring(iof_resampler *r, int channels, ring *h) {
  size_t width = (size_t)(r->x.high - r->x.low);
  h->plane = (width + (size_t)r->x.taps + 2 * 64) & ~(size_t)63; /* windows reach beyond the row's end */
  h->size = IOF_SHORT_PLANE(r->x.outputs) * (size_t)channels;
  for (h->slots = 1; h->slots < r->y.taps;) h->slots *= 2;
  h->rows = iof_reserve(&r->wide, (h->size * (size_t)h->slots) * sizeof(int16_t) + 64);
  h->samples = iof_reserve(&r->split, h->plane * (size_t)channels + 64);
  h->done = r->y.low;
  return h->rows && h->samples ? IOF_OK : IOF_MEMORY;
}

iof_status iof_resample_short(iof_resampler *r, const iof_origin *from, const iof_target *t) {
  const iof_axis *y = &r->y;
  int n = r->x.outputs, falls = y->start[0] > y->start[y->outputs - 1];
  size_t plane = ((size_t)n + 127) & ~(size_t)63;
  ring h;
  iof_windows windows;
  uint8_t *planes = iof_reserve(&r->row, 3 * plane);
  if (!planes || reserve_ring(r, from->channels, &h) || make_windows(r, &windows)) return IOF_MEMORY;
  for (int i = 0; i < y->outputs; i++) {
    int j = falls ? y->outputs - 1 - i : i; /* in this order source rows are needed from low to high */
    const int16_t *rows[MOST_TAPS];
    while (h.done < y->start[j] + y->count[j]) add_row(r, from, &windows, &h);
    for (int k = 0; k < y->count[j]; k++) rows[k] = h.rows + h.size * (size_t)((y->start[j] + k) & (h.slots - 1));
    uint8_t *to = t->data + j * t->y_stride;
    iof_strip strip = {planes, (int64_t)plane, from->channels, n};
    if (t->x_stride == 1) strip.to = to, strip.channel_stride = t->channel_stride;
    r->loops->shorts->vertical(rows, y->coef + (size_t)j * (size_t)y->taps, y->count[j], &strip);
    if (t->x_stride == 1) continue;
    if (from->channels == 3) {
      iof_put_row(r->loops->shorts, planes, plane, n, to, t);
    } else {
      for (int x = 0; x < n; x++) to[x * t->x_stride] = planes[x];
    }
  }
  return IOF_OK;
}
