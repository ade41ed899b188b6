/* PNGs of 8 bits and less, not interlaced, to RGB: chunks, filters, colours. The rest is Pillow's (foreign.h). */
#include <stdlib.h>
#include <string.h>

#include "foreign.h"

enum { GRAY = 0, RGB = 2, PALETTE = 3, GRAY_ALPHA = 4, RGBA = 6 };
enum { NONE, SUB, UP, AVERAGE, PAETH, FILTERS };

static uint32_t big(const uint8_t *from) {
  return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static int is(const uint8_t *chunk, const char *name) { return !memcmp(chunk + 4, name, 4); }

static int channels_of(const iof_foreign *image) {
  static const int channels[7] = {1, 0, 3, 1, 2, 0, 4};
  return channels[image->colour];
}

static size_t row_of(const iof_foreign *image) {
  return ((size_t)image->width * (size_t)(image->depth * channels_of(image)) + 7) / 8;
}

static iof_status read_header(const uint8_t *body, iof_foreign *image) {
  uint32_t width = big(body), height = big(body + 4);
  int narrow = body[8] == 1 || body[8] == 2 || body[8] == 4, colour = body[9];
  int known = body[8] == 8 ? colour <= RGBA && colour != 1 && colour != 5
                           : narrow && (colour == GRAY || colour == PALETTE);
  if (!known || body[10] || body[11] || body[12] || !width || !height || width > INT32_MAX || height > INT32_MAX)
    return IOF_UNSUPPORTED;
  image->width = (int)width, image->height = (int)height, image->depth = body[8], image->colour = colour;
  return IOF_OK;
}

/* Note what a chunk says. Critical chunks of other names, and animations, are Pillow's. */
static iof_status read_chunk(const uint8_t *chunk, size_t at, uint32_t length, int *behind, iof_foreign *image) {
  int pixels = is(chunk, "IDAT");
  if (!pixels && iof_crc32(chunk + 4, (size_t)length + 4) != big(chunk + 8 + length)) return IOF_UNSUPPORTED;
  if (image->first && !pixels) *behind = 1;
  if (pixels) {
    if (*behind) return IOF_UNSUPPORTED;
    if (!image->first) image->first = at;
    image->packed += length;
  } else if (is(chunk, "PLTE")) {
    if (image->palette || image->first || length % 3 || length > 768) return IOF_UNSUPPORTED;
    image->palette = chunk + 8, image->colours = (int)length / 3;
  } else if (is(chunk, "eXIf") || is(chunk, "tEXt") || is(chunk, "zTXt") || is(chunk, "iTXt")) {
    image->described = 1;
  } else if (!(chunk[4] & 32) || is(chunk, "acTL")) {
    return IOF_UNSUPPORTED;
  }
  return IOF_OK;
}

iof_status iof_png_open(const uint8_t *data, size_t length, iof_foreign *image) {
  static const uint8_t start[16] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n', 0, 0, 0, 13, 'I', 'H', 'D', 'R'};
  int behind = 0;
  if (!iof_can_inflate() || length < 45 || memcmp(data, start, sizeof start)) return IOF_UNSUPPORTED;
  iof_status status = iof_crc32(data + 12, 17) == big(data + 29) ? read_header(data + 16, image) : IOF_UNSUPPORTED;
  for (size_t at = 33; !status;) {
    if (length - at < 12) return IOF_UNSUPPORTED; /* before its last chunk */
    uint32_t body = big(data + at);
    if (body > length - at - 12) return IOF_UNSUPPORTED;
    if (is(data + at, "IEND")) break;
    status = read_chunk(data + at, at, body, &behind, image);
    at += 12 + (size_t)body;
  }
  if (!image->first || (image->colour == PALETTE && !image->palette)) return IOF_UNSUPPORTED;
  return status;
}

/* The data of all chunks of pixels in one piece. */
static const uint8_t *joined(iof_inflater *inflater, const iof_foreign *image, const uint8_t *data) {
  const uint8_t *chunk = data + image->first;
  if (big(chunk) == image->packed) return chunk + 8;
  uint8_t *to = iof_reserve(&inflater->packed, image->packed + 1);
  for (size_t done = 0; to && done < image->packed;) {
    uint32_t length = big(chunk);
    memcpy(to + done, chunk + 8, length);
    done += length;
    chunk += 12 + (size_t)length;
  }
  return to;
}

typedef int16_t words __attribute__((vector_size(16)));
#define INLINE static inline __attribute__((always_inline))

INLINE words load_pixel(const uint8_t *from, int bytes) {
  words v = {0};
  for (int c = 0; c < bytes; c++) v[c] = from[c];
  return v;
}

INLINE words where(words which, words a, words b) { return (a & which) | (b & ~which); }

INLINE words size_of(words v) { return where(v < 0, -v, v); }

/* Of left, above and corner the nearest to left + above - corner, the channels of a pixel at a time. */
INLINE void paeth(uint8_t *row, const uint8_t *above, size_t n, int bytes) {
  words left = {0}, corner = {0};
  for (size_t i = 0; i < n; i += (size_t)bytes) {
    words up = load_pixel(above + i, bytes), by_left = up - corner, by_up = left - corner;
    words a = size_of(by_left), b = size_of(by_up), c = size_of(by_left + by_up);
    words nearest = where((a <= b) & (a <= c), left, where(b <= c, up, corner));
    left = (nearest + load_pixel(row + i, bytes)) & 255;
    corner = up;
    for (int k = 0; k < bytes; k++) row[i + (size_t)k] = (uint8_t)left[k];
  }
}

INLINE void unfilter(int filter, uint8_t *row, const uint8_t *above, size_t n, size_t bytes) {
  switch (filter) {
    case SUB:
      for (size_t i = bytes; i < n; i++) row[i] = (uint8_t)(row[i] + row[i - bytes]);
      break;
    case UP:
      for (size_t i = 0; i < n; i++) row[i] = (uint8_t)(row[i] + above[i]);
      break;
    case AVERAGE:
      for (size_t i = 0; i < bytes && i < n; i++) row[i] = (uint8_t)(row[i] + above[i] / 2);
      for (size_t i = bytes; i < n; i++) row[i] = (uint8_t)(row[i] + (row[i - bytes] + above[i]) / 2);
      break;
    case PAETH: paeth(row, above, n, (int)bytes); break;
  }
}

/* With a constant number of bytes per pixel, the compiler keeps the pixel before in registers. */
static void unfilter_row(int filter, uint8_t *row, const uint8_t *above, size_t n, size_t bytes) {
  if (bytes == 2) unfilter(filter, row, above, n, 2);
  else if (bytes == 3) unfilter(filter, row, above, n, 3);
  else if (bytes == 4) unfilter(filter, row, above, n, 4);
  else unfilter(filter, row, above, n, 1);
}

/* The level or the palette's index of pixel x. */
static int sample_of(const iof_foreign *image, const uint8_t *row, size_t x) {
  size_t depth = (size_t)image->depth, bit = x * depth;
  return row[bit / 8] >> (8 - depth - bit % 8) & ((1 << depth) - 1);
}

/* Returns 0 for an index beyond the palette. */
static int widen(const iof_foreign *image, const uint8_t *row, uint8_t *rgb) {
  size_t n = (size_t)image->width;
  int scale = image->colour == GRAY ? 255 / ((1 << image->depth) - 1) : 1;
  if (image->colour == RGB) {
    memcpy(rgb, row, 3 * n);
  } else if (image->colour == RGBA) {
    for (size_t x = 0; x < n; x++) memcpy(rgb + 3 * x, row + 4 * x, 3);
  } else if (image->colour == GRAY_ALPHA) {
    for (size_t x = 0; x < n; x++) memset(rgb + 3 * x, row[2 * x], 3);
  } else if (image->colour == GRAY) {
    for (size_t x = 0; x < n; x++) memset(rgb + 3 * x, scale * (image->depth == 8 ? row[x] : sample_of(image, row, x)), 3);
  } else {
    for (size_t x = 0; x < n; x++) {
      int index = image->depth == 8 ? row[x] : sample_of(image, row, x);
      if (index >= image->colours) return 0;
      memcpy(rgb + 3 * x, image->palette + 3 * index, 3);
    }
  }
  return 1;
}

iof_status iof_png_decode(iof_inflater *inflater, const iof_foreign *image, const uint8_t *data, int rows, uint8_t *rgb) {
  size_t n = row_of(image), bytes = (size_t)(image->depth * channels_of(image) + 7) / 8, size = (n + 1) * (size_t)image->height;
  const uint8_t *packed = joined(inflater, image, data);
  uint8_t *made = iof_reserve(&inflater->rows, size + n); /* and the zeros above the first row */
  if (!packed || !made) return IOF_MEMORY;
  if (!iof_inflate(inflater, packed, image->packed, made, size)) return IOF_UNSUPPORTED;
  memset(made + size, 0, n);
  for (int y = 0; y < image->height; y++)
    if (made[(size_t)y * (n + 1)] >= FILTERS) return IOF_UNSUPPORTED;
  for (int y = 0; y < rows; y++) {
    uint8_t *row = made + (size_t)y * (n + 1) + 1;
    unfilter_row(row[-1], row, y ? row - n - 1 : made + size, n, bytes);
    if (!widen(image, row, rgb + 3 * (size_t)image->width * (size_t)y)) return IOF_UNSUPPORTED;
  }
  return IOF_OK;
}
