/* Raw pixels: which bytes of a payload a crop needs, these as RGBX, and the way back for packing.

A payload is RGB (rows of R G B) or I420 (planes Y, Cb, Cr; chroma halved both ways, BT.601, full range). The arithmetic
of I420 is libjpeg's in both directions, so the planes of a 4:2:0 JPEG give the pixels that the JPEG gives. */
#include <string.h>

#include "internal.h"

#define ROOM 64  /* bytes behind a row and behind the last row: vector stores run past the end */
#define NARROW 2 /* samples of chroma a row up to which libjpeg repeats them and does not interpolate */

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

/* The rows of chroma that rows [y0, y1) of the image see: their own, and the neighbour that is interpolated with. */
static void chroma_rows(const iof_raw *raw, int y0, int y1, int *first, int *end) {
  int height = halved(raw->height);
  *first = y0 ? (y0 - 1) / 2 : 0;
  *end = y1 / 2 + 1 < height ? y1 / 2 + 1 : height;
}

int iof_raw_runs(const iof_raw *raw, const int32_t rect[4], iof_run runs[3]) {
  size_t row = (size_t)raw->width * (raw->kind == IOF_RGB ? 3 : 1), chroma = (size_t)halved(raw->width);
  int first, end;
  chroma_rows(raw, rect[1], rect[3], &first, &end);
  runs[0] = (iof_run){row * (size_t)rect[1], row * (size_t)(rect[3] - rect[1])};
  runs[1] = (iof_run){pixels_of(raw) + chroma * (size_t)first, chroma * (size_t)(end - first)};
  runs[2] = (iof_run){runs[1].offset + chroma_of(raw), runs[1].length};
  return raw->kind == IOF_RGB ? 1 : 3;
}

static void widen_scalar(const uint8_t *rgb, size_t n, uint8_t *rgbx) {
  for (; n; n--, rgb += 3, rgbx += 4) rgbx[0] = rgb[0], rgbx[1] = rgb[1], rgbx[2] = rgb[2], rgbx[3] = 0;
}

static uint8_t clip(int value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* Columns [2 * from, 2 * to) of one chroma row at the image's size, from the nearer and the farther of its two rows.
`sums` has room for two more than there are samples. */
static inline __attribute__((always_inline)) void upsample_row(const uint8_t *near, const uint8_t *far, int samples, int from,
                                                               int to, uint16_t *sums, uint8_t *out) {
  int n = to - from;
  if (samples <= NARROW) {
    for (int i = 0; i < n; i++) out[2 * i] = out[2 * i + 1] = near[from + i];
  } else {
    int before = from ? from - 1 : 0, behind = to < samples ? to : samples - 1; /* the edge stands for what is beyond it */
    for (int i = 0; i < n; i++) sums[i + 1] = (uint16_t)(3 * near[from + i] + far[from + i]);
    sums[0] = (uint16_t)(3 * near[before] + far[before]);
    sums[n + 1] = (uint16_t)(3 * near[behind] + far[behind]);
    for (int i = 0; i < n; i++) {
      out[2 * i] = (uint8_t)((3 * sums[i + 1] + sums[i] + 8) >> 4);
      out[2 * i + 1] = (uint8_t)((3 * sums[i + 1] + sums[i + 2] + 7) >> 4);
    }
  }
}

static inline __attribute__((always_inline)) void convert_row(const uint8_t *luma, const uint8_t *cb, const uint8_t *cr, int n,
                                                              uint8_t *rgbx) {
  for (int i = 0; i < n; i++) {
    int y = luma[i], b = cb[i] - 128, r = cr[i] - 128;
    rgbx[4 * i] = clip(y + ((91881 * r + 32768) >> 16));
    rgbx[4 * i + 1] = clip(y + ((-22554 * b - 46802 * r + 32768) >> 16));
    rgbx[4 * i + 2] = clip(y + ((116130 * b + 32768) >> 16));
    rgbx[4 * i + 3] = 0;
  }
}

/* Planes to RGBX: rect of an image whose `planes` are whole. `scratch` has room for four rows of the image. */
static inline __attribute__((always_inline)) void convert_rows(const iof_plane planes[3], const int32_t rect[4],
                                                               uint8_t *scratch, const iof_pixels *pixels) {
  int from = rect[0] / 2, to = halved(rect[2]), height = planes[1].height;
  size_t row = 2 * (size_t)(to - from) + ROOM;
  for (int y = rect[1]; y < rect[3]; y++) {
    int own = y / 2, other = y % 2 ? own + 1 : own - 1;
    size_t near = (size_t)own, far = (size_t)(other < 0 ? 0 : other < height ? other : height - 1);
    for (int p = 1; p < 3; p++)
      upsample_row(planes[p].samples + near * planes[p].stride, planes[p].samples + far * planes[p].stride, planes[p].width,
                   from, to, (uint16_t *)(scratch + 2 * row), scratch + (size_t)(p - 1) * row);
    const uint8_t *cb = scratch + (rect[0] - 2 * from), *cr = cb + row;
    convert_row(planes[0].samples + (size_t)y * planes[0].stride + rect[0], cb, cr, rect[2] - rect[0],
                pixels->pixels + (size_t)(y - rect[1]) * pixels->stride);
  }
}

static void convert_rows_scalar(const iof_plane planes[3], const int32_t rect[4], uint8_t *scratch, const iof_pixels *pixels) {
  convert_rows(planes, rect, scratch, pixels);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Eight pixels a step, of which the second load ends four bytes behind the last: `end` is that of the payload. */
__attribute__((target("avx2"))) static void widen_avx2(const uint8_t *rgb, size_t n, const uint8_t *end, uint8_t *rgbx) {
  const __m256i spread = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7,
                                          8, -1, 9, 10, 11, -1);
  size_t i = 0;
  for (; i < n && end - rgb >= 28; i += 8, rgb += 24, rgbx += 32) {
    __m256i eight = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)rgb));
    eight = _mm256_inserti128_si256(eight, _mm_loadu_si128((const __m128i *)(rgb + 12)), 1);
    _mm256_storeu_si256((__m256i *)rgbx, _mm256_shuffle_epi8(eight, spread));
  }
  if (i < n) widen_scalar(rgb, n - i, rgbx);
}

__attribute__((target("avx2"))) static void convert_rows_avx2(const iof_plane planes[3], const int32_t rect[4],
                                                              uint8_t *scratch, const iof_pixels *pixels) {
  convert_rows(planes, rect, scratch, pixels); /* compiled once more, with longer registers */
}
#endif

static void widen_rows(const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int simd, const iof_pixels *pixels) {
  const uint8_t *end = data + iof_raw_length(raw);
  for (int y = rect[1]; y < rect[3]; y++) {
    const uint8_t *rgb = data + 3 * ((size_t)y * (size_t)raw->width + (size_t)rect[0]);
    uint8_t *rgbx = pixels->pixels + (size_t)(y - rect[1]) * pixels->stride;
#if defined(__x86_64__) && defined(__GNUC__)
    if (simd) {
      widen_avx2(rgb, (size_t)pixels->width, end, rgbx);
      continue;
    }
#endif
    (void)end, (void)simd;
    widen_scalar(rgb, (size_t)pixels->width, rgbx);
  }
}

static void convert(const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int simd, uint8_t *scratch,
                    const iof_pixels *pixels) {
  int width = halved(raw->width), height = halved(raw->height);
  uint8_t *luma = (uint8_t *)(uintptr_t)data, *cb = luma + pixels_of(raw), *cr = cb + chroma_of(raw); /* only read */
  iof_plane planes[3] = {{luma, (size_t)raw->width, raw->width, raw->height, 0, 0},
                         {cb, (size_t)width, width, height, 0, 0},
                         {cr, (size_t)width, width, height, 0, 0}};
#if defined(__x86_64__) && defined(__GNUC__)
  if (simd) {
    convert_rows_avx2(planes, rect, scratch, pixels);
    return;
  }
#endif
  (void)simd;
  convert_rows_scalar(planes, rect, scratch, pixels);
}

iof_status iof_raw_region(const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int simd, iof_buffer *memory,
                          iof_pixels *pixels) {
  pixels->x = rect[0];
  pixels->y = rect[1];
  pixels->width = rect[2] - rect[0];
  pixels->height = rect[3] - rect[1];
  pixels->stride = (4 * (size_t)pixels->width + ROOM - 1) / ROOM * ROOM;
  size_t scratch = pixels->stride + 6 * ROOM; /* of which I420 needs two rows of bytes and one of half as many words */
  scratch = (scratch + ROOM - 1) / ROOM * ROOM;
  uint8_t *room = iof_reserve(memory, scratch + pixels->stride * (size_t)pixels->height + ROOM);
  if (!room) return IOF_MEMORY;
  pixels->pixels = room + scratch;
  if (raw->kind == IOF_RGB) {
    widen_rows(raw, data, rect, simd, pixels);
  } else {
    convert(raw, data, rect, simd, room, pixels);
  }
  return IOF_OK;
}

/* Sums of four in the way of libjpeg's encoder: an odd image's edge is repeated, and halves are rounded down and up in
turn so that neither wins. */
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
