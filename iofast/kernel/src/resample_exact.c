/* The resample in Pillow's arithmetic: weights of 22 bits, and each pass rounded and clipped to bytes. So its results
equal those of Pillow's resize bit for bit, and the order of the passes is part of them.

Samples stay planes of bytes ^ 0x80 from the source to the last pass. With the horizontal pass first, it runs once for each
source row, into a ring of rows in the first-level cache. With the vertical one first, the ring has source rows. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define ONE (1 << IOF_EXACT_PRECISION)
#define HALF (ONE / 2)
#define GROUP 8   /* outputs that see one window of 16 samples */
#define BLOCK 32  /* outputs of a step of the horizontal loop */
#define ROOM 64   /* bytes after each plane: vectors read and write past the end */

static uint8_t level(uint32_t sum) { return clamp((int32_t)sum >> IOF_EXACT_PRECISION); }

static void horizontal(const iof_exact_table *table, const uint8_t *row, size_t plane, int flip, uint8_t *to, size_t to_plane) {
  const iof_axis *axis = table->axis;
  for (size_t c = 0; c < 3; c++)
    for (int i = 0; i < axis->outputs; i++) {
      const int32_t *weight = axis->exact + (size_t)i * (size_t)axis->taps;
      const uint8_t *sample = row + c * plane + (axis->start[i] - axis->low);
      uint32_t sum = HALF; /* unsigned, so that it may wrap as in Pillow */
      for (int k = 0; k < axis->count[i]; k++) sum += (uint32_t)((sample[k] ^ IOF_ROW_FLIP) * (int64_t)weight[k]);
      to[c * to_plane + (size_t)i] = (uint8_t)(level(sum) ^ flip);
    }
}

static void vertical(const uint8_t *const *rows, size_t plane, const int32_t *coef, int taps, int flip, const iof_strip *strip) {
  for (size_t c = 0; c < (size_t)strip->channels; c++) {
    uint8_t *to = strip->to + (int64_t)c * strip->channel_stride;
    for (size_t x = 0; x < (size_t)strip->n; x++) {
      uint32_t sum = HALF;
      for (int k = 0; k < taps; k++) sum += (uint32_t)((rows[k][c * plane + x] ^ IOF_ROW_FLIP) * (int64_t)coef[k]);
      to[x] = (uint8_t)(level(sum) ^ flip);
    }
  }
}

const iof_exact_loops iof_exact_scalar = {horizontal, vertical, 0};

int iof_is_pair(const int32_t weights[2]) {
  int32_t a = weights[0], b = weights[1], excess = a + b - ONE;
  return a >= 0 && a < ONE && b >= 0 && b < ONE && excess >= -1 && excess <= 1;
}

static int fits_pairs(const iof_axis *axis) {
  int fits = axis->taps == 2;
  for (size_t i = 0; i < (size_t)axis->outputs && fits; i++) fits = iof_is_pair(axis->exact + 2 * i);
  return fits;
}

static iof_exact_kind kind_of(const iof_axis *axis) {
  if (!iof_sees_windows(axis, GROUP)) return IOF_EXACT_SINGLES;
  return fits_pairs(axis) ? IOF_EXACT_PAIRS : IOF_EXACT_WINDOWS;
}

static int16_t lower_bits(int32_t weight) { return (int16_t)(weight & 0x7FFF); }
static int16_t upper_bits(int32_t weight) { return (int16_t)(weight >> 15); }

static void fill_singles(const iof_axis *axis, size_t taps, int32_t *first, int16_t *words) {
  for (size_t i = 0; i < (size_t)axis->outputs; i++, words += 2 * taps) {
    const int32_t *weight = axis->exact + i * (size_t)axis->taps;
    first[i] = axis->start[i] - axis->low;
    for (size_t k = 0; k < (size_t)axis->taps; k++) words[k] = lower_bits(weight[k]), words[taps + k] = upper_bits(weight[k]);
  }
}

static void fill_picks(const iof_axis *axis, int32_t *first, uint8_t *pick) {
  for (size_t i = 0; i < (size_t)axis->outputs; i += GROUP) {
    size_t last = i + GROUP < (size_t)axis->outputs ? i + GROUP - 1 : (size_t)axis->outputs - 1;
    int low = axis->start[i] < axis->start[last] ? axis->start[i] : axis->start[last];
    first[i / GROUP] = low - axis->low;
    for (size_t o = i; o <= last; o++) {
      pick[2 * o] = (uint8_t)(axis->start[o] - low);
      pick[2 * o + 1] = (uint8_t)(axis->start[o] - low + 1);
    }
  }
}

static void fill_windows(const iof_axis *axis, int16_t *words) {
  size_t pairs = (size_t)axis->taps / 2;
  for (size_t i = 0; i < (size_t)axis->outputs; i++)
    for (size_t p = 0; p < pairs; p++)
      for (size_t k = 0; k < 2; k++) {
        int32_t weight = axis->exact[i * 2 * pairs + 2 * p + k];
        int16_t *to = words + ((i / GROUP * pairs + p) * 2) * 2 * GROUP + 2 * (i % GROUP) + k;
        to[0] = lower_bits(weight), to[2 * GROUP] = upper_bits(weight);
      }
}

static void fill_pairs(const iof_axis *axis, uint8_t *bytes, int16_t *excess) {
  for (size_t i = 0; i < (size_t)axis->outputs; i++) {
    int32_t a = axis->exact[2 * i], b = axis->exact[2 * i + 1];
    uint8_t *to = bytes + i / BLOCK * 6 * BLOCK + 2 * (i % BLOCK);
    to[0] = (uint8_t)(a >> 14), to[2 * BLOCK] = a >> 7 & 127, to[4 * BLOCK] = a & 127;
    to[1] = (uint8_t)(b >> 14), to[2 * BLOCK + 1] = b >> 7 & 127, to[4 * BLOCK + 1] = b & 127;
    excess[i] = (int16_t)(a + b - ONE);
  }
}

/* A weight of one whose neighbour is zero may be one less: the result is the same, and eight bits hold its upper part. */
static void lessen_ones(iof_axis *axis) {
  for (size_t i = 0; i < 2 * (size_t)axis->outputs && axis->exact && axis->taps == 2; i++)
    if (axis->exact[i] == ONE && !axis->exact[i ^ 1]) axis->exact[i]--;
}

/* Make the table of the x axis, unless it exists. */
static iof_status make_table(iof_resampler *r, iof_exact_table *table) {
  const iof_axis *axis = &r->x;
  *table = (iof_exact_table){.axis = axis, .taps = (size_t)axis->taps};
  if (!r->loops->exact->vectors) return IOF_OK;
  table->kind = kind_of(axis);
  if (table->kind == IOF_EXACT_SINGLES) table->taps = (table->taps + 15) & ~(size_t)15;
  size_t outputs = ((size_t)axis->outputs + BLOCK - 1) / BLOCK * BLOCK, firsts = outputs * sizeof(int32_t);
  size_t picks = 2 * outputs, bytes = table->kind == IOF_EXACT_PAIRS ? 6 * outputs : 0;
  size_t words = (table->kind == IOF_EXACT_PAIRS ? 1 : 2 * table->taps) * outputs * sizeof(int16_t);
  int made;
  uint8_t *room = iof_table_room(r, IOF_EXACTS, firsts + picks + bytes + words, &made);
  if (!room) return IOF_MEMORY;
  int32_t *first = (int32_t *)(void *)room;
  uint8_t *pick = room + firsts, *byte = pick + picks;
  int16_t *word = (int16_t *)(void *)(byte + bytes);
  table->first = first, table->pick = pick, table->bytes = byte, table->words = word;
  if (made) return IOF_OK;
  memset(room, 0, firsts + picks + bytes + words);
  if (table->kind == IOF_EXACT_SINGLES) {
    fill_singles(axis, table->taps, first, word);
  } else {
    fill_picks(axis, first, pick);
    if (table->kind == IOF_EXACT_PAIRS) fill_pairs(axis, byte, word);
    else fill_windows(axis, word);
  }
  return IOF_OK;
}

/* Source row y, or what the horizontal pass made of it, is in slot y modulo `slots`, for rows before `done`. */
typedef struct {
  iof_exact_table table;
  uint8_t *rows, *source;
  size_t plane, source_plane;
  int slots, done, first; /* `first`: the horizontal pass comes first */
} ring;

static size_t plane_of(int n) { return ((size_t)n + 2 * ROOM - 1) / ROOM * ROOM; }

static void across(const iof_resampler *r, const ring *h, const uint8_t *row, int flip, uint8_t *to, size_t to_plane) {
  const iof_axis *x = &r->x;
  if (!x->copies) {
    r->loops->exact->horizontal(&h->table, row, h->source_plane, flip, to, to_plane);
  } else {
    for (size_t c = 0; c < 3; c++)
      for (size_t i = 0; i < (size_t)x->outputs; i++)
        to[c * to_plane + i] = (uint8_t)(row[c * h->source_plane + (size_t)(x->start[i] - x->low)] ^ IOF_ROW_FLIP ^ flip);
  }
}

static void add_row(const iof_resampler *r, const iof_pixels *p, ring *h, int flip) {
  uint8_t *slot = h->rows + 3 * h->plane * (size_t)(h->done & (h->slots - 1)), *to = h->first ? h->source : slot;
  if (p->row) {
    p->row(p->source, h->done, to, h->source_plane);
  } else {
    const uint8_t *pixels = p->pixels + (size_t)(h->done - p->y) * p->stride + 4 * (size_t)(r->x.low - p->x);
    r->loops->shorts->split(pixels, r->x.high - r->x.low, IOF_ROW_FLIP, to, h->source_plane);
  }
  if (h->first) across(r, h, to, flip, slot, h->plane);
  h->done++;
}

static iof_status reserve_ring(iof_resampler *r, ring *h) {
  h->source_plane = plane_of(r->x.high - r->x.low + r->x.taps + 2 * ROOM); /* windows reach beyond the row's end */
  h->plane = h->first ? plane_of(r->x.outputs) : h->source_plane;
  for (h->slots = 1; h->slots < r->y.taps;) h->slots *= 2;
  h->rows = iof_reserve(&r->wide, 3 * h->plane * (size_t)h->slots + 2 * ROOM);
  h->source = iof_reserve(&r->split, 3 * h->source_plane + 2 * ROOM);
  h->done = r->y.low;
  return h->rows && h->source ? IOF_OK : IOF_MEMORY;
}

/* Apply the vertical pass to the rows of output j. */
static void down(const iof_resampler *r, const ring *h, int j, const uint8_t **rows, int flip, const iof_strip *strip) {
  const iof_axis *y = &r->y;
  for (int k = 0; k < y->taps; k++) { /* after the last: any row, because its weight is zero */
    int input = y->start[j] + (k < y->count[j] ? k : 0);
    rows[k] = h->rows + 3 * h->plane * (size_t)(input & (h->slots - 1));
  }
  r->loops->exact->vertical(rows, h->plane, y->exact + (size_t)j * (size_t)y->taps, y->taps, flip, strip);
}

iof_status iof_resample_exact(iof_resampler *r, const iof_pixels *pixels, const iof_target *t, int horizontal_first) {
  const iof_axis *y = &r->y;
  int n = r->x.outputs, falls = y->start[0] > y->start[y->outputs - 1], twice = !y->copies;
  ring h = {.first = horizontal_first || !twice};
  size_t plane = plane_of(n);
  iof_status status = reserve_ring(r, &h);
  lessen_ones(&r->x);
  lessen_ones(&r->y);
  if (!status && !r->x.copies) status = make_table(r, &h.table);
  uint8_t *planes = iof_reserve(&r->row, 3 * plane + 2 * ROOM);
  const uint8_t **rows = iof_reserve(&r->rows, (size_t)y->taps * sizeof(*rows));
  if (status || !planes || !rows) return IOF_MEMORY;
  for (int i = 0; i < y->outputs; i++) {
    int j = falls ? y->outputs - 1 - i : i; /* in this order source rows are needed from low to high */
    uint8_t *to = t->data + j * t->y_stride;
    const uint8_t *made = planes;
    size_t made_plane = plane;
    while (h.done < y->start[j] + y->count[j]) add_row(r, pixels, &h, twice ? IOF_ROW_FLIP : 0);
    if (!twice) {
      made = h.rows + 3 * h.plane * (size_t)(y->start[j] & (h.slots - 1)), made_plane = h.plane;
    } else if (h.first) {
      iof_strip strip = {planes, (int64_t)plane, 3, n};
      if (t->x_stride == 1) strip.to = to, strip.channel_stride = t->channel_stride;
      down(r, &h, j, rows, 0, &strip);
      if (t->x_stride == 1) continue;
    } else {
      down(r, &h, j, rows, IOF_ROW_FLIP, &(iof_strip){h.source, (int64_t)h.source_plane, 3, r->x.high - r->x.low});
      across(r, &h, h.source, 0, planes, plane);
    }
    iof_put_row(r->loops->shorts, made, made_plane, n, to, t);
  }
  return IOF_OK;
}
