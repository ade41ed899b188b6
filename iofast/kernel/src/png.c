/* Undo the filters of a PNG's rows (W3C, "Portable Network Graphics", 9: Filtering). */
#include <string.h>

#include "iofast.h"

#define INLINE static inline __attribute__((always_inline))

typedef int16_t lanes __attribute__((vector_size(8))); /* the channels of a pixel, one per lane, then zeros */
typedef uint8_t bytes __attribute__((vector_size(4)));

/* Load a pixel of `n` bytes. If another follows, four bytes are read and written at once, by one instruction. */
INLINE lanes load(const uint8_t *p, size_t n, int followed) {
  bytes pixel = {0};
  memcpy(&pixel, p, followed && n > 1 ? 4 : n);
  if (n == 3) pixel &= (bytes){255, 255, 255, 0};
  return __builtin_convertvector(pixel, lanes);
}

INLINE void store(uint8_t *p, lanes pixel, size_t n, int followed) {
  bytes narrow = __builtin_convertvector(pixel, bytes);
  memcpy(p, &narrow, followed && n > 1 ? 4 : n);
}

INLINE lanes larger(lanes a, lanes b) { return ((a > b) & a) | (~(a > b) & b); }

INLINE lanes distance(lanes a, lanes b) { return larger(a - b, b - a); }

/* The neighbour nearest to left + above - corner; of equally near ones the first. */
INLINE lanes paeth(lanes left, lanes above, lanes corner) {
  lanes by_left = distance(above, corner), by_above = distance(left, corner), by_corner = distance(left + above, corner + corner);
  lanes is_left = (by_left <= by_above) & (by_left <= by_corner), is_above = ~is_left & (by_above <= by_corner);
  return (is_left & left) | (is_above & above) | (~is_left & ~is_above & corner);
}

typedef struct {
  const uint8_t *row, *above;
  uint8_t *to;
  lanes left, corner;
} cursor;

INLINE void restore_pixel(cursor *c, size_t i, int filter, size_t n, int followed) {
  lanes up = filter == 1 ? c->left : load(c->above + i, n, followed);
  lanes guess = filter == 1 ? c->left : filter == 3 ? (c->left + up) >> 1 : paeth(c->left, up, c->corner);
  c->left = (load(c->row + i, n, followed) + guess) & 0xFF;
  c->corner = up;
  store(c->to + i, c->left, n, followed);
}

/* Restore a row of `length` bytes whose filter uses the previous pixel. */
INLINE void restore_along(const uint8_t *row, const uint8_t *above, uint8_t *to, size_t length, int filter, size_t n) {
  cursor c = {row, above, to, {0}, {0}};
  size_t i = 0;
  for (; i + n < length; i += n) restore_pixel(&c, i, filter, n, 1);
  restore_pixel(&c, i, filter, n, 0);
}

INLINE int restore(const uint8_t *row, const uint8_t *above, uint8_t *to, size_t length, const size_t n) {
  int known = 1;
  switch (*row++) {
    case 0: memcpy(to, row, length); break;
    case 1: restore_along(row, above, to, length, 1, n); break;
    case 2:
      for (size_t i = 0; i < length; i++) to[i] = (uint8_t)(row[i] + above[i]);
      break;
    case 3: restore_along(row, above, to, length, 3, n); break;
    case 4: restore_along(row, above, to, length, 4, n); break;
    default: known = 0;
  }
  return known;
}

iof_status iof_png_rows(const uint8_t *filtered, int width, int height, int channels, uint8_t *pixels) {
  size_t length = (size_t)width * (size_t)channels;
  int known = 1;
  memset(pixels, 0, length); /* zeros above the first row: each of its pixels is read before it is written */
  for (size_t y = 0; y < (size_t)height && known; y++) {
    const uint8_t *row = filtered + y * (length + 1);
    uint8_t *to = pixels + y * length;
    const uint8_t *above = y ? to - length : to;
    switch (channels) {
      case 1: known = restore(row, above, to, length, 1); break;
      case 3: known = restore(row, above, to, length, 3); break;
      default: known = restore(row, above, to, length, 4);
    }
  }
  return known ? IOF_OK : IOF_CORRUPT;
}
