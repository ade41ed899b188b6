/* Raw pixels to RGBX and back; see raw.h. */
#include <stdlib.h>
#include <string.h>

#include "raw.h"

#define ROOM 64  /* bytes after a row: vector loops read and write past the end */
#define TAIL 16  /* last rows, after which the payload has no room: with five columns, 21 bytes of a plane */
#define NARROW 4 /* columns up to which libjpeg repeats chroma instead of interpolating */

static int halved(int size) { return size / 2 + size % 2; }

static size_t pixels_of(const iof_raw *raw) { return (size_t)raw->width * (size_t)raw->height; }

static size_t chroma_of(const iof_raw *raw) { return (size_t)halved(raw->width) * (size_t)halved(raw->height); }

size_t iof_raw_length(const iof_raw *raw) {
  return raw->kind == IOF_RGB ? 3 * pixels_of(raw) : pixels_of(raw) + 2 * chroma_of(raw);
}

iof_status iof_raw_check(const iof_raw *raw, uint64_t length, uint64_t max_pixels) {
  iof_status status = IOF_OK;
  if (raw->kind != IOF_RGB && raw->kind != IOF_YUV420) {
    status = IOF_UNSUPPORTED;
  } else if (raw->width < 1 || raw->height < 1) {
    status = IOF_CORRUPT;
  } else if (pixels_of(raw) > max_pixels) {
    status = IOF_LIMIT;
  } else if (length != iof_raw_length(raw)) {
    status = length < iof_raw_length(raw) ? IOF_TRUNCATED : IOF_CORRUPT;
  }
  return status;
}

iof_rows iof_raw_rows(const iof_raw *raw, int y0, int y1) {
  iof_rows rows = {y0, y1, y0 / 2, halved(y1)};
  if (raw->kind == IOF_YUV420) { /* chroma is interpolated with the next row on each side */
    rows.c0 = y0 ? (y0 - 1) / 2 : 0;
    rows.c1 = y1 / 2 + 1 < halved(raw->height) ? y1 / 2 + 1 : halved(raw->height);
  }
  return rows;
}

int iof_raw_runs(const iof_raw *raw, const iof_rows *rows, iof_run runs[3]) {
  size_t row = (size_t)raw->width * (raw->kind == IOF_RGB ? 3 : 1), chroma = (size_t)halved(raw->width);
  runs[0] = (iof_run){row * (size_t)rows->y0, row * (size_t)(rows->y1 - rows->y0)};
  runs[1] = (iof_run){pixels_of(raw) + chroma * (size_t)rows->c0, chroma * (size_t)(rows->c1 - rows->c0)};
  runs[2] = (iof_run){runs[1].offset + chroma_of(raw), runs[1].length};
  return raw->kind == IOF_RGB ? 1 : 3;
}

static void widen_scalar(const uint8_t *rgb, size_t n, uint8_t *rgbx) {
  for (; n; n--, rgb += 3, rgbx += 4) rgbx[0] = rgb[0], rgbx[1] = rgb[1], rgbx[2] = rgb[2], rgbx[3] = 255;
}

static void part_scalar(const uint8_t *rgb, size_t n, uint8_t *planes, size_t plane) {
  for (size_t i = 0; i < n; i++)
    for (size_t c = 0; c < 3; c++) planes[c * plane + i] = rgb[3 * i + c] ^ IOF_ROW_FLIP;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Places of the 16 bytes of a colour in each third of 48 bytes of RGB; 128: in another third. */
static const uint8_t PICK[3][3][16] = {
    {{0, 3, 6, 9, 12, 15, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 128, 2, 5, 8, 11, 14, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1, 4, 7, 10, 13}},
    {{1, 4, 7, 10, 13, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 0, 3, 6, 9, 12, 15, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 2, 5, 8, 11, 14}},
    {{2, 5, 8, 11, 14, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 1, 4, 7, 10, 13, 128, 128, 128, 128, 128, 128},
     {128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 0, 3, 6, 9, 12, 15}}};

/* Sixteen pixels a step: a shuffle of each of three registers moves a colour's bytes to their places. */
__attribute__((target("avx2"))) static void part_avx2(const uint8_t *rgb, size_t n, const uint8_t *end, uint8_t *planes,
                                                     size_t plane) {
  __m128i pick[3][3], flip = _mm_set1_epi8((char)IOF_ROW_FLIP);
  for (int c = 0; c < 3; c++)
    for (int t = 0; t < 3; t++) pick[c][t] = _mm_loadu_si128((const __m128i *)PICK[c][t]);
  size_t i = 0;
  for (; i < n && end - rgb >= 48; i += 16, rgb += 48) {
    __m128i third[3];
    for (int t = 0; t < 3; t++) third[t] = _mm_loadu_si128((const __m128i *)(rgb + 16 * t));
    for (size_t c = 0; c < 3; c++) {
      __m128i bytes = _mm_or_si128(_mm_shuffle_epi8(third[0], pick[c][0]), _mm_shuffle_epi8(third[1], pick[c][1]));
      bytes = _mm_or_si128(bytes, _mm_shuffle_epi8(third[2], pick[c][2]));
      _mm_storeu_si128((__m128i *)(planes + c * plane + i), _mm_xor_si128(bytes, flip));
    }
  }
  if (i < n) part_scalar(rgb, n - i, planes + i, plane);
}

/* Eight pixels a step. The second load ends four bytes after the last of them; `end` is that of the payload. */
__attribute__((target("avx2"))) static void widen_avx2(const uint8_t *rgb, size_t n, const uint8_t *end, uint8_t *rgbx) {
  const __m256i spread = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7,
                                          8, -1, 9, 10, 11, -1);
  const __m256i opaque = _mm256_set1_epi32((int)0xFF000000u);
  size_t i = 0;
  for (; i < n && end - rgb >= 28; i += 8, rgb += 24, rgbx += 32) {
    __m256i eight = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)rgb));
    eight = _mm256_inserti128_si256(eight, _mm_loadu_si128((const __m128i *)(rgb + 12)), 1);
    _mm256_storeu_si256((__m256i *)rgbx, _mm256_or_si256(_mm256_shuffle_epi8(eight, spread), opaque));
  }
  if (i < n) widen_scalar(rgb, n - i, rgbx);
}
#else
#define widen_avx2(rgb, n, end, rgbx) ((void)(end), widen_scalar(rgb, n, rgbx))
#define part_avx2(rgb, n, end, planes, plane) ((void)(end), part_scalar(rgb, n, planes, plane))
#endif

/* The first wanted pixel of row `y` of RGB. */
static const uint8_t *rgb_row(const iof_unpacker *u, int y) {
  return u->data + 3 * ((size_t)y * (size_t)u->raw.width + (size_t)u->rect[0]);
}

static void widen_rows(const iof_unpacker *u, const iof_pixels *pixels) {
  for (int y = u->rect[1]; y < u->rect[3]; y++) {
    const uint8_t *rgb = rgb_row(u, y);
    uint8_t *rgbx = pixels->pixels + (size_t)(y - u->rect[1]) * pixels->stride;
    if (u->loops != &iof_block_loops_scalar) {
      widen_avx2(rgb, (size_t)pixels->width, u->data + iof_raw_length(&u->raw), rgbx);
    } else {
      widen_scalar(rgb, (size_t)pixels->width, rgbx);
    }
  }
}

/* Find the planes of the rows from `y` on: in the payload, or in `copies`, where there is room after them. */
static iof_status find_planes(const iof_unpacker *u, int y, iof_buffer *copies, iof_samples planes[3]) {
  const iof_raw *raw = &u->raw;
  iof_rows rows = iof_raw_rows(raw, y, u->rect[3]);
  iof_run runs[3];
  iof_raw_runs(raw, &rows, runs);
  uint8_t *room = copies ? iof_reserve(copies, runs[0].length + 2 * runs[1].length + 3 * ROOM) : NULL;
  if (copies && !room) return IOF_MEMORY;
  for (int p = 0; p < 3; p++) {
    int width = p ? halved(raw->width) : raw->width, height = p ? halved(raw->height) : raw->height;
    uint8_t *from = (uint8_t *)(uintptr_t)(u->data + runs[p].offset); /* only read */
    if (room) from = memcpy(room, from, runs[p].length), room += runs[p].length + ROOM;
    planes[p] = (iof_samples){from, (size_t)width, 0, p ? rows.c0 : rows.y0, width, height};
  }
  return IOF_OK;
}

static void convert_narrow(const iof_unpacker *u, const iof_pixels *pixels) {
  uint8_t rows[3][ROOM] = {{0}};
  const iof_raw *raw = &u->raw;
  const int32_t *rect = u->rect;
  const uint8_t *luma = u->data, *cb = luma + pixels_of(raw), *cr = cb + chroma_of(raw);
  for (int y = rect[1]; y < rect[3]; y++) {
    for (int x = rect[0]; x < rect[2]; x++) {
      size_t own = (size_t)y * (size_t)raw->width + (size_t)x, shared = (size_t)(y / 2) * (size_t)halved(raw->width) + (size_t)(x / 2);
      rows[0][x - rect[0]] = luma[own];
      rows[1][x - rect[0]] = cb[shared];
      rows[2][x - rect[0]] = cr[shared];
    }
    u->loops->colour(rows[0], rows[1], rows[2], pixels->width, pixels->pixels + (size_t)(y - rect[1]) * pixels->stride);
  }
}

/* Prepare the conversion: rows before the tail are read in the payload, the others in copies. */
static iof_status start_colouring(iof_unpacker *u) {
  const int32_t *r = u->rect;
  iof_picture picture = {.count = 3, .h = 2, .v = 2};
  iof_rect all = {r[0], r[1], r[2], r[3]};
  int behind = r[1] > u->tail ? r[1] : u->tail;
  iof_status status = IOF_OK;
  if (r[1] < u->tail) {
    status = find_planes(u, r[1], NULL, picture.planes);
    if (!status) status = iof_colour_start(&u->upper, u->loops, &picture, &all, &u->rows);
  }
  if (!status && behind < r[3]) {
    status = find_planes(u, behind, &u->copies, picture.planes);
    if (!status) status = iof_colour_start(&u->lower, u->loops, &picture, &all, &u->tail_rows);
  }
  return status;
}

static const iof_colouring *colouring_of(const iof_unpacker *u, int y) { return y < u->tail ? &u->upper : &u->lower; }

static void colour_all(const iof_unpacker *u, const iof_pixels *pixels) {
  for (int y = u->rect[1]; y < u->rect[3]; y++)
    iof_colour_row(colouring_of(u, y), y, pixels->pixels + (size_t)(y - u->rect[1]) * pixels->stride);
}

static void make_yuv_row(void *source, int y, uint8_t *planes, size_t plane) {
  const iof_unpacker *u = source;
  iof_clock_lap(u->counters, IOF_RESAMPLING);
  iof_colour_planes(colouring_of(u, y), y, planes, plane);
  iof_clock_lap(u->counters, IOF_COLOUR);
}

static void make_rgb_row(void *source, int y, uint8_t *planes, size_t plane) {
  const iof_unpacker *u = source;
  const uint8_t *rgb = rgb_row(u, y);
  size_t n = (size_t)(u->rect[2] - u->rect[0]);
  iof_clock_lap(u->counters, IOF_RESAMPLING);
  if (u->loops != &iof_block_loops_scalar) {
    part_avx2(rgb, n, u->data + iof_raw_length(&u->raw), planes, plane);
  } else {
    part_scalar(rgb, n, planes, plane);
  }
  iof_clock_lap(u->counters, IOF_COLOUR);
}

static iof_status make_all(iof_unpacker *u, int smooth, iof_pixels *pixels) {
  pixels->stride = (4 * (size_t)pixels->width + ROOM - 1) / ROOM * ROOM;
  pixels->pixels = iof_reserve(&u->pixels, pixels->stride * (size_t)pixels->height + ROOM);
  if (!pixels->pixels) return IOF_MEMORY;
  if (u->raw.kind == IOF_RGB) {
    widen_rows(u, pixels);
  } else if (smooth) {
    colour_all(u, pixels);
  } else {
    convert_narrow(u, pixels);
  }
  return IOF_OK;
}

iof_status iof_raw_region(iof_unpacker *u, const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int by_rows,
                          iof_pixels *pixels) {
  int smooth = raw->kind == IOF_YUV420 && raw->width > NARROW; /* chroma is interpolated */
  iof_status status = IOF_OK;
  u->raw = *raw, u->data = data, u->tail = raw->height > TAIL ? raw->height - TAIL : 0;
  memcpy(u->rect, rect, sizeof u->rect);
  *pixels = (iof_pixels){.x = rect[0], .y = rect[1], .width = rect[2] - rect[0], .height = rect[3] - rect[1]};
  if (smooth) status = start_colouring(u);
  if (!status && by_rows && (smooth || raw->kind == IOF_RGB)) {
    pixels->row = smooth ? make_yuv_row : make_rgb_row;
    pixels->source = u;
  } else if (!status) {
    status = make_all(u, smooth, pixels);
  }
  return status;
}

void iof_unpacker_free(iof_unpacker *u) {
  free(u->pixels.data);
  free(u->copies.data);
  free(u->rows.data);
  free(u->tail_rows.data);
}

/* Mean of four samples as in libjpeg's encoder: an odd image's edge is repeated, and halves are rounded down and up in
turn, so that there is no bias. */
static void halve_row(const uint8_t *upper, const uint8_t *lower, int width, uint8_t *to) {
  for (int i = 0; i < halved(width); i++) {
    int a = 2 * i, b = 2 * i + 1 < width ? 2 * i + 1 : a;
    to[i] = (uint8_t)((upper[a] + upper[b] + lower[a] + lower[b] + 1 + (i & 1)) >> 2);
  }
}

static void convert_back(const uint8_t *rgb, int n, uint8_t *luma, uint8_t *cb, uint8_t *cr) {
  for (int i = 0; i < n; i++, rgb += 3) {
    int r = rgb[0], g = rgb[1], b = rgb[2];
    luma[i] = (uint8_t)((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
    cb[i] = (uint8_t)((-11059 * r - 21709 * g + 32768 * b + (128 << 16) + 32767) >> 16);
    cr[i] = (uint8_t)((32768 * r - 27439 * g - 5329 * b + (128 << 16) + 32767) >> 16);
  }
}

size_t iof_yuv_room(int width, int height) {
  return iof_raw_length(&(iof_raw){IOF_YUV420, width, height}) + 4 * (size_t)width;
}

void iof_yuv_of_rgb(const uint8_t *rgb, int width, int height, uint8_t *yuv) {
  iof_raw raw = {IOF_YUV420, width, height};
  size_t n = (size_t)width, half = (size_t)halved(width);
  uint8_t *cb = yuv + pixels_of(&raw), *cr = cb + chroma_of(&raw), *scratch = cr + chroma_of(&raw);
  for (int y = 0; y < height; y += 2) {
    size_t row = (size_t)y, next = y + 1 < height ? row + 1 : row, at = row / 2 * half;
    convert_back(rgb + 3 * n * row, width, yuv + n * row, scratch, scratch + 2 * n);
    convert_back(rgb + 3 * n * next, width, yuv + n * next, scratch + n, scratch + 3 * n);
    halve_row(scratch, scratch + n, width, cb + at);
    halve_row(scratch + 2 * n, scratch + 3 * n, width, cr + at);
  }
}
