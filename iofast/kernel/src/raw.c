/* Raw pixels to RGBX; see raw.h. */
#include <stdlib.h>

#include "raw.h"

#define ROOM 64 /* bytes after a row: vector loops read and write past the end */

size_t iof_raw_length(const iof_raw *raw) { return 3 * (size_t)raw->width * (size_t)raw->height; }

iof_status iof_raw_check(const iof_raw *raw, uint64_t length, uint64_t max_pixels) {
  iof_status status = IOF_OK;
  if (raw->kind != IOF_RGB && raw->kind != IOF_DECODED) {
    status = IOF_UNSUPPORTED;
  } else if (raw->width < 1 || raw->height < 1) {
    status = IOF_CORRUPT;
  } else if (raw->kind == IOF_RGB && (uint64_t)raw->width * (uint64_t)raw->height > max_pixels) {
    status = IOF_LIMIT;
  } else if (length != iof_raw_length(raw)) {
    status = length < iof_raw_length(raw) ? IOF_TRUNCATED : IOF_CORRUPT;
  }
  return status;
}

iof_run iof_raw_run(const iof_raw *raw, int y0, int y1) {
  size_t row = 3 * (size_t)raw->width;
  return (iof_run){row * (size_t)y0, row * (size_t)(y1 - y0)};
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

iof_status iof_raw_region(iof_unpacker *u, const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int by_rows,
                          iof_pixels *pixels) {
  u->raw = *raw, u->data = data;
  for (int i = 0; i < 4; i++) u->rect[i] = rect[i];
  *pixels = (iof_pixels){.x = rect[0], .y = rect[1], .width = rect[2] - rect[0], .height = rect[3] - rect[1]};
  if (by_rows) {
    pixels->row = make_rgb_row;
    pixels->source = u;
    return IOF_OK;
  }
  pixels->stride = (4 * (size_t)pixels->width + ROOM - 1) / ROOM * ROOM;
  pixels->pixels = iof_reserve(&u->pixels, pixels->stride * (size_t)pixels->height + ROOM);
  if (!pixels->pixels) return IOF_MEMORY;
  widen_rows(u, pixels);
  return IOF_OK;
}

void iof_unpacker_free(iof_unpacker *u) { free(u->pixels.data); }
