/* Steps that read a pixel's neighbourhood or other pixels of the image: from one memory into another. */
#include <math.h>
#include <string.h>

#include "pixels.h"

/* The outermost pixels have no 3 x 3 neighbourhood, and stay unchanged. */
void iof_sharpen(const iof_tile_loops *loops, const iof_canvas *from, const iof_line *line, uint8_t *to) {
  size_t width = (size_t)from->width;
  memcpy(to, from->planes, 3 * from->plane);
  for (size_t c = 0; c < 3 && width > 2; c++)
    for (size_t y = 1; y + 1 < (size_t)from->height; y++) {
      const uint8_t *row = from->planes + c * from->plane + y * width + 1;
      iof_three_rows three = {row - width, row, row + width};
      loops->sharpen(&three, from->width - 2, line, to + c * from->plane + y * width + 1);
    }
}

int iof_gaussian(float sigma, int radius, uint16_t weights[IOF_MOST_TAPS]) {
  double values[IOF_MOST_TAPS / 2 + 1], sum = 1;
  int reach = 0, rest = 65536;
  for (int i = 1; i <= radius; i++) sum += 2 * (values[i] = sigma > 0 ? exp(-0.5 * i * i / ((double)sigma * sigma)) : 0);
  for (int i = 1; i <= radius && rint(values[i] / sum * 65536) >= 1; i++) reach = i;
  for (int i = 1; i <= reach; i++) {
    weights[reach - i] = weights[reach + i] = (uint16_t)rint(values[i] / sum * 65536);
    rest -= 2 * weights[reach + i];
  }
  weights[reach] = (uint16_t)rest; /* 65536 only if it is the only tap */
  return 2 * reach + 1;
}

/* numbers: sigma and radius across, sigma and radius down. */
iof_status iof_blur(iof_painter *painter, const iof_canvas *from, const float *numbers, uint8_t *to) {
  uint16_t across[IOF_MOST_TAPS], down[IOF_MOST_TAPS];
  const uint8_t *rows[IOF_MOST_TAPS];
  int width = from->width, height = from->height;
  int wide = iof_gaussian(numbers[0], whole_of(numbers[1], 0, IOF_MOST_TAPS / 2), across);
  int high = iof_gaussian(numbers[2], whole_of(numbers[3], 0, IOF_MOST_TAPS / 2), down);
  int left = wide / 2, above = high / 2;
  uint16_t *row = iof_reserve(&painter->rows, (2 * (size_t)width + (size_t)wide) * sizeof *row), *sums = row + width + wide;
  for (int c = 0; c < 3 && row; c++)
    for (int y = 0; y < height; y++) {
      const uint8_t *plane = from->planes + (size_t)c * from->plane;
      for (int k = 0; k < high; k++) rows[k] = plane + (size_t)reflected(y + k - above, height) * (size_t)width;
      if (high > 1) painter->loops->blur_down(rows, down, high, width, row + left);
      for (int x = 0; x < width && high == 1; x++) row[left + x] = (uint16_t)(rows[0][x] << 8);
      for (int x = 1; x <= left; x++) {
        row[left - x] = row[left + reflected(-x, width)];
        row[left + width - 1 + x] = row[left + reflected(width - 1 + x, width)];
      }
      uint8_t *line = to + (size_t)c * from->plane + (size_t)y * (size_t)width;
      if (wide > 1) painter->loops->blur_across(row, across, wide, width, sums, line);
      for (int x = 0; x < width && wide == 1; x++) line[x] = rounded_off(row[x]);
    }
  return row ? IOF_OK : IOF_MEMORY;
}

/* Copy pixels to RGBX with a frame of the outside colour: one pixel before the image, two after it. */
static uint32_t *framed(iof_painter *painter, const iof_canvas *from, const float *fill) {
  int stride = from->width + 3;
  uint32_t outside = outside_of(fill), *frame = iof_reserve(&painter->rows, (size_t)stride * (size_t)(from->height + 3) * sizeof *frame);
  for (int y = -1; y < from->height + 2 && frame; y++) {
    uint32_t *row = frame + (size_t)(y + 1) * (size_t)stride;
    const uint8_t *red = from->planes + (size_t)y * (size_t)from->width, *green = red + from->plane, *blue = green + from->plane;
    row[0] = row[stride - 1] = row[stride - 2] = outside;
    if (y >= 0 && y < from->height) painter->loops->join(red, green, blue, from->width, row + 1);
    else
      for (int x = 0; x < from->width; x++) row[x + 1] = outside;
  }
  return frame;
}

/* numbers: the eight of iof_map_row, then red, green and blue of the outside. */
iof_status iof_warp(iof_painter *painter, const iof_canvas *from, const float *numbers, int bilinear, uint8_t *to) {
  size_t width = (size_t)from->width;
  uint32_t *frame = framed(painter, from, numbers + 8);
  int32_t *place = iof_reserve(&painter->lines, 4 * width * sizeof *place);
  uint32_t *pixels = (uint32_t *)place + 3 * width;
  iof_map_row map = {numbers, 0, bilinear ? 0.5f : 0, (float)from->width, (float)from->height, from->width + 3};
  iof_frame_row row = {frame, place, place + width, place + 2 * width, map.stride};
  for (int y = 0; y < from->height && frame && place; y++) {
    map.y = (float)y + 0.5f;
    painter->loops->places(&map, from->width, place, place + width, place + 2 * width);
    if (bilinear) painter->loops->between(&row, from->width, pixels);
    else painter->loops->nearest(frame, place, from->width, pixels);
    painter->loops->split(pixels, from->width, to + (size_t)y * width, from->plane);
  }
  return frame && place ? IOF_OK : IOF_MEMORY;
}

void iof_flip(const iof_tile_loops *loops, const iof_canvas *from, int across, int down, uint8_t *to) {
  size_t width = (size_t)from->width, height = (size_t)from->height;
  for (size_t c = 0; c < 3; c++)
    for (size_t y = 0; y < height; y++) {
      const uint8_t *row = from->planes + c * from->plane + (down ? height - 1 - y : y) * width;
      uint8_t *line = to + c * from->plane + y * width;
      if (across) loops->mirror(row, from->width, line);
      else memcpy(line, row, width);
    }
}

/* numbers: offset across and down, width and height of the content, Edge, colour of the outside. */
iof_status iof_pad(iof_painter *painter, const iof_canvas *from, const float *numbers, uint8_t *to) {
  iof_padding p = iof_padding_of(numbers, from->width, from->height);
  int width = from->width;
  int start = p.left < 0 ? -p.left : 0, stop = p.wide - p.left; /* of the copied run */
  int32_t *places = iof_reserve(&painter->lines, (size_t)width * sizeof *places);
  if (!places) return IOF_MEMORY;
  stop = stop > width ? width : stop;
  if (stop <= start) start = stop = 0;
  for (int x = 0; x < width; x++) places[x] = beyond(x + p.left, p.wide, p.edge);
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < from->height; y++) {
      int line = beyond(y + p.top, p.high, p.edge), outside = whole_of(numbers[5 + c], 0, 255);
      const uint8_t *row = from->planes + (size_t)c * from->plane + (size_t)(line < 0 ? 0 : line) * (size_t)width;
      uint8_t *out = to + (size_t)c * from->plane + (size_t)y * (size_t)width;
      if (line < 0) {
        memset(out, outside, (size_t)width);
        continue;
      }
      for (int x = 0; x < start; x++) out[x] = places[x] < 0 ? (uint8_t)outside : row[places[x]];
      if (stop > start) memcpy(out + start, row + start + p.left, (size_t)(stop - start));
      for (int x = stop; x < width; x++) out[x] = places[x] < 0 ? (uint8_t)outside : row[places[x]];
    }
  return IOF_OK;
}
