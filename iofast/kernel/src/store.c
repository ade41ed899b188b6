/* The store into the batch: row by row, bytes become values of the batch at their places. */
#include <string.h>

#include "pixels.h"

#ifdef IOF_X86
#include <emmintrin.h>
#endif

#define LARGE (1 << 16) /* bytes; larger images must not push others out of the cache */

/* Apply the erasings of an image to one channel of row y. */
static void erase(const iof_work *work, const iof_image *image, int y, int channel, float *line) {
  for (int e = 0; e < work->erasings; e++) {
    int64_t at = image->row * work->erasings + e;
    const int32_t *box = work->erased + 4 * at;
    int x0 = box[1] < 0 ? 0 : box[1], x1 = box[3] > image->canvas->width ? image->canvas->width : box[3];
    float fill = work->fills[3 * at + channel], amount = work->amounts[3 * e + channel];
    uint32_t number = (uint32_t)work->noise[at];
    if (y < box[0] || y >= box[2]) continue;
    for (int x = x0; x < x1; x++) {
      uint32_t place = (uint32_t)y * (uint32_t)image->canvas->width + (uint32_t)x;
      line[x] = number ? fill + noise_at(number, place, (uint32_t)channel) * amount : fill;
    }
  }
}

static const uint8_t *bytes_of(const iof_image *image, int y, int channel) {
  return image->canvas->planes + (size_t)channel * image->canvas->plane + (size_t)y * (size_t)image->canvas->width;
}

static void finish_line(const iof_tile_loops *loops, const iof_work *work, const iof_image *image, int y, int channel,
                        float *line) {
  loops->scale(bytes_of(image, y, channel), image->canvas->width, work->scale[channel], work->bias[channel], line);
  erase(work, image, y, channel, line);
}

/* line * share + other * (1 - share); columns of the patch are the other's. */
static void mix_lines(const iof_mix *mix, int64_t row, int y, int width, float *line, const float *other) {
  float share = mix->shares[row], rest = 1 - share;
  const int32_t *patch = mix->patches + 4 * row;
  int x0 = patch[1] < 0 ? 0 : patch[1], x1 = patch[3] > width ? width : patch[3];
  for (int x = 0; x < width; x++) line[x] = line[x] * share + other[x] * rest;
  if (y >= patch[0] && y < patch[2])
    for (int x = x0; x < x1; x++) line[x] = other[x];
}

size_t iof_size_of(int type) { return type == IOF_BYTES ? 1 : type == IOF_FLOAT32 ? 4 : 2; }

static int is_large(const iof_output *out) {
  return 3 * iof_size_of(out->type) * (size_t)out->width * (size_t)out->height >= LARGE;
}

/* Write past the cache: the batch is read much later, and a usual store first fetches what it overwrites. A float32
image of 224 x 224 pixels takes 38 us instead of 60. */
static void stream(uint8_t *to, const uint8_t *from, size_t n) {
#ifdef IOF_X86
  size_t head = (size_t)(-(uintptr_t)to & 63), i = head < n ? head : n;
  memcpy(to, from, i);
  for (; i + 64 <= n; i += 64)
    for (size_t k = 0; k < 64; k += 16)
      _mm_stream_si128((__m128i *)(void *)(to + i + k), _mm_loadu_si128((const __m128i *)(const void *)(from + i + k)));
  memcpy(to + i, from + i, n - i);
#else
  memcpy(to, from, n);
#endif
}

/* Make streamed data visible to other threads. */
static void streamed(void) {
#ifdef IOF_X86
  _mm_sfence();
#endif
}

/* Store `n` values of `size` bytes that are adjacent in the batch. */
static void put_line(const uint8_t *from, size_t n, size_t size, const iof_output *out, uint8_t *to) {
  if (is_large(out)) stream(to, from, n * size);
  else memcpy(to, from, n * size);
}

/* Store a row of each channel, `size` bytes per value; `woven` has room for all three. */
static void put_row(const iof_tile_loops *loops, const void *const values[3], int n, const iof_output *out, void *woven,
                    uint8_t *to) {
  size_t size = iof_size_of(out->type);
  if (out->channel_stride == (int64_t)size && out->x_stride == 3 * (int64_t)size) { /* interleaved channels */
    if (size == 1) loops->weave_1(values[0], values[1], values[2], n, woven);
    if (size == 2) loops->weave_2(values[0], values[1], values[2], n, woven);
    if (size == 4) loops->weave_4(values[0], values[1], values[2], n, woven);
    put_line(woven, 3 * (size_t)n, size, out, to);
  } else {
    for (int c = 0; c < 3; c++) {
      uint8_t *line = to + c * out->channel_stride;
      const uint8_t *from = values[c];
      if (line == from) continue; /* already at its place */
      if (out->x_stride == (int64_t)size) put_line(from, (size_t)n, size, out, line);
      else
        for (int i = 0; i < n; i++) memcpy(line + i * out->x_stride, from + (size_t)i * size, size);
    }
  }
}

/* Whether a line can be computed at its place in the batch. */
static int in_place(const iof_output *out) {
  return out->type == IOF_FLOAT32 && out->x_stride == (int64_t)sizeof(float) && !is_large(out);
}

iof_status iof_put_image(iof_painter *painter, const iof_work *work, const iof_image *image, const iof_image *partner,
                         const iof_mix *mix, const iof_output *out, uint8_t *to) {
  const iof_tile_loops *loops = painter->loops;
  int width = image->canvas->width, height = image->canvas->height;
  size_t room = ((size_t)width + 15) / 16 * 16;
  float *lines = iof_reserve(&painter->lines, 9 * room * sizeof *lines), *other = lines + 3 * room;
  uint16_t *shorts = (uint16_t *)(lines + 4 * room); /* three lines */
  for (int y = 0; y < height && lines; y++) {
    uint8_t *row = to + y * out->y_stride;
    const void *values[3];
    for (int c = 0; c < 3; c++) {
      float *line = in_place(out) ? (float *)(void *)(row + c * out->channel_stride) : lines + (size_t)c * room;
      uint16_t *narrow = shorts + (size_t)c * room;
      values[c] = line;
      if (out->type == IOF_BYTES) {
        values[c] = bytes_of(image, y, c);
        continue;
      }
      finish_line(loops, work, image, y, c, line);
      if (partner) {
        finish_line(loops, work, partner, y, c, other);
        mix_lines(mix, image->row, y, width, line, other);
      }
      if (out->type == IOF_FLOAT32) continue;
      (out->type == IOF_FLOAT16 ? loops->half : loops->brain)(line, width, narrow);
      values[c] = narrow;
    }
    put_row(loops, values, width, out, lines + 6 * room, row);
  }
  streamed();
  return lines ? IOF_OK : IOF_MEMORY;
}
