/* Pillow's operations on colours and its blur, bit for bit: the arithmetic of ImageEnhance, ImageOps and GaussianBlur, in
their precision and order. From the canvas into another memory. */
#include <math.h>
#include <string.h>

#include "pixels.h"

static size_t pixels_of(const iof_canvas *canvas) { return (size_t)canvas->width * (size_t)canvas->height; }

static void look_up(const uint8_t table[256], const uint8_t *from, size_t n, uint8_t *to) {
  for (size_t i = 0; i < n; i++) to[i] = table[from[i]];
}

/* The blend with one level, for each level. */
static void blend_with(const iof_tile_loops *loops, uint8_t level, float factor, uint8_t table[256]) {
  uint8_t from[256], own[256];
  for (int v = 0; v < 256; v++) from[v] = level, own[v] = (uint8_t)v;
  loops->mix(from, own, 256, factor, table);
}

static void all_planes(const uint8_t table[256], const iof_canvas *from, uint8_t *to) {
  for (size_t c = 0; c < 3; c++) look_up(table, from->planes + c * from->plane, pixels_of(from), to + c * from->plane);
}

/* The rounded mean of the gray values. `to` is scratch. */
static uint8_t mean_gray(const iof_tile_loops *loops, const iof_canvas *from, uint8_t *to) {
  size_t n = pixels_of(from);
  uint64_t sum = 0;
  loops->luma(from->planes, from->plane, n, to);
  for (size_t i = 0; i < n; i++) sum += to[i];
  return (uint8_t)((double)sum / (double)n + 0.5);
}

static iof_status color(iof_painter *painter, const iof_canvas *from, float factor, uint8_t *to) {
  size_t n = pixels_of(from), plane = from->plane;
  uint8_t *gray = iof_reserve(&painter->rows, n);
  if (!gray) return IOF_MEMORY;
  painter->loops->luma(from->planes, plane, n, gray);
  for (size_t c = 0; c < 3; c++) painter->loops->mix(gray, from->planes + c * plane, n, factor, to + c * plane);
  return IOF_OK;
}

/* The outermost pixels have no 3 x 3 neighbourhood: they are blended with themselves. */
static iof_status sharpness(iof_painter *painter, const iof_canvas *from, float factor, uint8_t *to) {
  size_t width = (size_t)from->width, height = (size_t)from->height;
  uint8_t *smooth = iof_reserve(&painter->rows, width + IOF_SLACK);
  for (size_t c = 0; c < 3 && smooth; c++)
    for (size_t y = 0; y < height; y++) {
      const uint8_t *row = from->planes + c * from->plane + y * width;
      uint8_t *line = to + c * from->plane + y * width;
      memcpy(line, row, width);
      if (y == 0 || y + 1 == height || width < 3) continue;
      iof_three_rows three = {row - width + 1, row + 1, row + width + 1};
      painter->loops->smooth(&three, from->width - 2, smooth);
      painter->loops->mix(smooth, row + 1, width - 2, factor, line + 1);
    }
  return smooth ? IOF_OK : IOF_MEMORY;
}

static void autocontrast(const iof_tile_loops *loops, const iof_canvas *from, uint8_t *to) {
  for (size_t c = 0; c < 3; c++) {
    const uint8_t *samples = from->planes + c * from->plane;
    uint8_t least, most, table[256];
    loops->range(samples, pixels_of(from), &least, &most);
    double scale = most > least ? 255.0 / (most - least) : 1, offset = most > least ? -least * scale : 0;
    for (int v = 0; v < 256; v++) {
      double stretched = v * scale + offset;
      table[v] = (uint8_t)(stretched < 0 ? 0 : stretched > 255 ? 255 : stretched);
    }
    look_up(table, samples, pixels_of(from), to + c * from->plane);
  }
}

#define PASSES 3
#define MOST_SIGMA 1e4f

/* A box of 2 * reach + 1 pixels, in 2^24ths, and what is left for the two next to them. */
typedef struct {
  int reach;
  uint32_t near, far;
} box;

/* The box whose threefold use has this standard deviation (Gwosdek et al., Theoretical Foundations of Gaussian
Convolution by Extended Box Filtering). Its radius has a fraction. */
static box box_of(float sigma) {
  sigma = !(sigma > 0) ? 0 : sigma > MOST_SIGMA ? MOST_SIGMA : sigma;
  float variance = sigma * sigma / PASSES, length = (float)sqrt(12.0 * (double)variance + 1.0);
  float whole = (float)floor(((double)length - 1.0) / 2.0);
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  float radius = whole + part;
  box b = {.reach = (int)radius};
  b.near = (uint32_t)((float)(1u << 24) / (radius * 2 + 1));
  b.far = ((1u << 24) - ((uint32_t)b.reach * 2 + 1) * b.near) / 2;
  return b;
}

static int within(int i, int size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }

/* One pass along `count` lines of `width` pixels, the pixels of a line `width` bytes apart: all lines at a time. */
static void pass_down(const iof_tile_loops *loops, const box *b, const uint8_t *from, int width, int count, uint32_t *sums,
                      uint8_t *to) {
  memset(sums, 0, (size_t)width * sizeof *sums);
  for (int k = -b->reach - 1; k < b->reach; k++)
    for (int x = 0; x < width; x++) sums[x] += from[(size_t)within(k, count) * (size_t)width + (size_t)x];
  for (int y = 0; y < count; y++) {
    const uint8_t *before = from + (size_t)within(y - b->reach - 1, count) * (size_t)width;
    const uint8_t *enters = from + (size_t)within(y + b->reach, count) * (size_t)width;
    const uint8_t *after = from + (size_t)within(y + b->reach + 1, count) * (size_t)width;
    iof_box_rows rows = {before, enters, before, after, b->near, b->far};
    loops->box_rows(sums, &rows, width, to + (size_t)y * (size_t)width);
  }
}

static void transpose(const uint8_t *from, size_t width, size_t height, uint8_t *to) {
  for (size_t x = 0; x < width; x += 16) /* so narrow that its lines stay in the cache */
    for (size_t y = 0; y < height; y++)
      for (size_t i = x; i < width && i < x + 16; i++) to[i * height + y] = from[y * width + i];
}

/* numbers: sigma across and down. The passes of an axis without a box change nothing. */
static iof_status blur(iof_painter *painter, const iof_canvas *from, const float *numbers, uint8_t *to) {
  const box across = box_of(numbers[0]), down = box_of(numbers[1]);
  size_t n = pixels_of(from);
  int width = from->width, height = from->height;
  uint8_t *scratch = iof_reserve(&painter->rows, 2 * n);
  uint32_t *sums = iof_reserve(&painter->lines, (size_t)(width > height ? width : height) * sizeof *sums);
  if (!scratch || !sums) return IOF_MEMORY;
  for (size_t c = 0; c < 3; c++) {
    uint8_t *a = scratch, *b = scratch + n;
    transpose(from->planes + c * from->plane, (size_t)width, (size_t)height, a);
    for (int pass = 0; pass < PASSES; pass++) {
      pass_down(painter->loops, &across, a, height, width, sums, b);
      uint8_t *swap = a;
      a = b, b = swap;
    }
    transpose(a, (size_t)height, (size_t)width, b);
    for (int pass = 0; pass < PASSES; pass++) {
      pass_down(painter->loops, &down, b, width, height, sums, pass + 1 < PASSES ? a : to + c * from->plane);
      uint8_t *swap = a;
      a = b, b = swap;
    }
  }
  return IOF_OK;
}

iof_status iof_pillow_step(iof_painter *painter, int code, const float *numbers, const iof_canvas *from, uint8_t *to) {
  const iof_tile_loops *loops = painter->loops;
  iof_status status = IOF_OK;
  uint8_t table[256];
  switch (code) {
    case IOF_PILLOW_BRIGHTNESS:
      blend_with(loops, 0, numbers[0], table);
      all_planes(table, from, to);
      break;
    case IOF_PILLOW_CONTRAST:
      blend_with(loops, mean_gray(loops, from, to), numbers[0], table);
      all_planes(table, from, to);
      break;
    case IOF_PILLOW_COLOR: status = color(painter, from, numbers[0], to); break;
    case IOF_PILLOW_SHARPNESS: status = sharpness(painter, from, numbers[0], to); break;
    case IOF_PILLOW_AUTOCONTRAST: autocontrast(loops, from, to); break;
    case IOF_PILLOW_HUE:
      memcpy(to, from->planes, 3 * from->plane);
      loops->turn_hue(to, from->plane, pixels_of(from), (uint8_t)(whole_of(numbers[0], -255, 255) & 255));
      break;
    case IOF_PILLOW_BLUR: status = blur(painter, from, numbers, to); break;
    case IOF_PILLOW_AFFINE_NEAREST:
    case IOF_PILLOW_AFFINE_BILINEAR:
    case IOF_PILLOW_AFFINE_BICUBIC: status = iof_affine(painter, from, numbers, code, to); break;
  }
  return status;
}
