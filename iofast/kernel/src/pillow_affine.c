/* Pillow's Image.transform by an affine matrix, bit for bit: its fixed point and its table of columns for the nearest pixel,
its double precision between pixels. */
#include <string.h>

#include "pixels.h"

static uint32_t ink_of(float colour) {
  uint32_t rgb = (uint32_t)whole_of(colour, 0, 0xffffff);
  return rgb >> 16 | (rgb & 0xff00) | (rgb & 255) << 16;
}

static iof_affine_row framed(iof_painter *painter, const iof_canvas *from, const float *numbers) {
  int width = from->width, height = from->height, stride = width + 2 * IOF_RIM, above = IOF_OUTSIDE + IOF_RIM;
  iof_affine_row row = {.width = width, .height = height, .stride = stride, .first = above * stride + IOF_RIM};
  uint32_t *frame = iof_reserve(&painter->rows, (size_t)stride * (size_t)(above + height + IOF_RIM) * sizeof *frame);
  uint32_t outside = ink_of(numbers[12]);
  memcpy(row.m, numbers, sizeof row.m);
  row.frame = frame;
  for (int i = 0; i < IOF_OUTSIDE * stride && frame; i++) frame[i] = outside;
  for (int y = -IOF_RIM; y < height + IOF_RIM && frame; y++) {
    int line = y < 0 ? 0 : y < height ? y : height - 1;
    const uint8_t *red = from->planes + (size_t)line * (size_t)width, *green = red + from->plane, *blue = green + from->plane;
    uint32_t *to = frame + row.first + y * stride;
    painter->loops->join(red, green, blue, width, to);
    for (int i = 1; i <= IOF_RIM; i++) to[-i] = to[0], to[width - 1 + i] = to[width - 1];
  }
  return row;
}

/* A coordinate in 65536ths, rounded. */
static uint32_t fixed(double v) {
  double scaled = v * 65536.0 + 0.5;
  if (!(scaled > -2147483648.0 && scaled < 2147483647.0)) return 0;
  int32_t whole = (int32_t)scaled;
  return (uint32_t)(whole - (scaled < whole));
}

/* The whole part of a coordinate, -1 outside of the image. */
static int32_t within(double v, double size) { return v >= 0 && v < size ? (int32_t)v : -1; }

/* Add up columns and lines one by one, as Pillow does where nothing is turned. */
static void columns_of(const iof_affine_row *row, int n, int32_t *columns) {
  double at = row->m[2] + row->m[0] * 0.5;
  for (int x = 0; x < n; x++, at += row->m[0]) columns[x] = within(at, row->width);
}

static void straight(const iof_affine_row *row, double at, const int32_t *columns, int n, int32_t *place) {
  int32_t line = within(at, row->height);
  for (int x = 0; x < n; x++) place[x] = line < 0 || columns[x] < 0 ? 0 : row->first + line * row->stride + columns[x];
}

iof_status iof_affine(iof_painter *painter, const iof_canvas *from, const float *numbers, int code, uint8_t *to) {
  size_t width = (size_t)from->width;
  iof_affine_row row = framed(painter, from, numbers);
  double *memory = iof_reserve(&painter->lines, width * (2 * sizeof(double) + 3 * sizeof(int32_t)));
  if (!row.frame || !memory) return IOF_MEMORY;
  iof_affine_places at = {(int32_t *)(memory + 2 * width), memory, memory + width};
  uint32_t *pixels = (uint32_t *)at.place + width;
  int32_t *columns = at.place + 2 * width;
  const double *m = row.m;
  const int nearest = code == IOF_PILLOW_AFFINE_NEAREST, is_straight = m[1] == 0 && m[3] == 0;
  uint32_t start[2] = {fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), fixed(m[5] + m[3] * 0.5 + m[4] * 0.5)};
  const uint32_t step[2] = {fixed(m[0]), fixed(m[3])}, line[2] = {fixed(m[1]), fixed(m[4])};
  double down = m[5] + m[4] * 0.5;
  columns_of(&row, from->width, columns);
  for (int y = 0; y < from->height; y++) {
    row.y = (double)y + 0.5;
    if (!nearest) painter->loops->affine_places(&row, from->width, &at);
    else if (is_straight) straight(&row, down, columns, from->width, at.place);
    else painter->loops->affine_fixed(&row, start, step, from->width, at.place);
    if (nearest) painter->loops->nearest(row.frame, at.place, from->width, pixels);
    else if (code == IOF_PILLOW_AFFINE_BILINEAR) painter->loops->affine_linear(&row, &at, from->width, pixels);
    else painter->loops->affine_cubic(&row, &at, from->width, pixels);
    painter->loops->split(pixels, from->width, to + (size_t)y * width, from->plane);
    start[0] += line[0], start[1] += line[1], down += m[4];
  }
  return IOF_OK;
}
