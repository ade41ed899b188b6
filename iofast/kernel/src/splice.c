/* A smaller JPEG made of a larger one: the restart segments that a region touches become a file of their own, without
being decoded. It is for libjpeg, which takes only whole files. */
#include <string.h>

#include "region.h"

/* Widen the MCU columns [*x0, *x1) to whole segments. At the right edge, avoid the tiny widths (two samples of chroma
or less) that libjpeg upsamples in another way. */
static void widen(const iof_frame *f, int *x0, int *x1) {
  int restart = f->restart;
  *x0 -= *x0 % restart;
  *x1 = (*x1 + restart - 1) / restart * restart;
  if (*x0 > 0 && f->width - *x0 * 8 * f->component[0].h < 8) *x0 -= restart;
}

static uint8_t *put16(uint8_t *to, int value) {
  to[0] = (uint8_t)(value >> 8);
  to[1] = (uint8_t)value;
  return to + 2;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* Copy the file's header with another size, without APPn and comments, which may be larger than the pixels. */
static uint8_t *put_header(const iof_frame *f, const uint8_t *data, int width, int height, uint8_t *to) {
  static const uint8_t JFIF[20] = {0xFF, 0xD8, 0xFF, 0xE0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
  memcpy(to, JFIF, sizeof JFIF); /* declares that three components are YCbCr, like the frame's */
  to += sizeof JFIF;
  for (size_t at = 2; at < f->scan;) {
    unsigned marker = data[at + 1];
    size_t size = 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
    if ((marker & 0xF0) != 0xE0 && marker != 0xFE) {
      memcpy(to, data + at, size);
      if (marker == 0xC0 || marker == 0xC1) put16(put16(to + 5, height), width);
      to += size;
    }
    at += size;
  }
  return to;
}

int iof_spliceable(const iof_frame *f) { return f->restart && f->across % f->restart == 0; }

/* Entropy-coded bytes of segments [of->x0, of->x1) in rows [of->y0, of->y1), with their markers. */
static size_t scan_bytes(const iof_segments *s, const iof_rect *of, uint32_t per_row) {
  size_t size = 0;
  for (uint32_t y = (uint32_t)of->y0; y < (uint32_t)of->y1; y++)
    size += s->origin[y * per_row + (uint32_t)of->x1] - s->origin[y * per_row + (uint32_t)of->x0];
  return size;
}

static uint8_t *put_segments(const iof_segments *s, const iof_rect *of, uint32_t per_row, const uint8_t *data, uint8_t *to) {
  unsigned number = 0;
  for (uint32_t y = (uint32_t)of->y0; y < (uint32_t)of->y1; y++) {
    for (uint32_t i = y * per_row + (uint32_t)of->x0; i < y * per_row + (uint32_t)of->x1; i++, number++) {
      size_t n = s->origin[i + 1] - s->origin[i]; /* including the marker after it */
      memcpy(to, data + s->origin[i], n);
      to += n;
      to[-1] = (uint8_t)(0xD0 | (number & 7));
    }
  }
  return to;
}

iof_status iof_splice(const iof_frame *f, const iof_segments *s, const uint8_t *data, const iof_rect *mcus, iof_spliced *out) {
  int x0 = mcus->x0, x1 = mcus->x1, h = f->component[0].h, v = f->component[0].v;
  widen(f, &x0, &x1);
  iof_rect of = {x0 / f->restart, mcus->y0, x1 / f->restart, mcus->y1}; /* segments across, MCU rows down */
  uint32_t per_row = (uint32_t)(f->across / f->restart);
  out->x = x0 * 8 * h;
  out->y = mcus->y0 * 8 * v;
  out->width = smaller(x1 * 8 * h, f->width) - out->x;
  out->height = smaller(mcus->y1 * 8 * v, f->height) - out->y;
  size_t size = f->scan + 64 + scan_bytes(s, &of, per_row);
  uint8_t *bytes = iof_reserve(&out->memory, size), *to = bytes;
  if (!bytes) return IOF_MEMORY;
  to = put_header(f, data, out->width, out->height, to);
  to = put_segments(s, &of, per_row, data, to);
  to[-1] = 0xD9;
  out->bytes = bytes;
  out->length = (size_t)(to - bytes);
  return IOF_OK;
}
