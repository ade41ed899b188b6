/* The arithmetic of the steps on pixels, the same on every machine: tile_loops.h has it for rows, device_steps.h for a
GPU. */
#ifndef IOFAST_LEVELS_H
#define IOFAST_LEVELS_H

#include "scalar.h"

/* a * b >> 16: vectors have an instruction for the upper half alone. */
IOF_BOTH int16_t times(int16_t a, int16_t b) { return (int16_t)((int32_t)a * b >> 16); }

/* From `bits` bits of fraction to a byte. */
IOF_BOTH int16_t level(int16_t v, int bits) {
  v = (int16_t)(v >> bits);
  v = v < 0 ? 0 : v;
  return v > 255 ? 255 : v;
}

/* times 128; the cast tells the compiler that the product has 16 bits */
IOF_BOTH int16_t seven_up(int v) { return (int16_t)((uint16_t)v << 7); }

/* v = (x * factor >> 9) + offset, with `bits` bits of fraction, which are then dropped; the result is clipped to a
byte. */
typedef struct {
  int16_t factor, offset;
  int bits;
} iof_line;

IOF_BOTH int16_t on_line(int16_t v, int16_t factor, int16_t offset, int bits) {
  return level((int16_t)(times(seven_up(v), factor) + offset), bits);
}

/* A number clipped to limits and rounded towards 0; NaN becomes the least. */
IOF_BOTH int whole_of(float value, int least, int most) {
  return !(value > (float)least) ? least : value > (float)most ? most : (int)value;
}

/* The factor and the bits of fraction for blending in 16 bits: factors of 0 to IOF_MOST_FACTOR. Uses the most bits that
keep factor and result within 16. */
#define IOF_MOST_FACTOR 63.0f
IOF_BOTH iof_line line_of(float factor, float offset) {
  iof_line line;
  factor = !(factor > 0) ? 0 : factor > IOF_MOST_FACTOR ? IOF_MOST_FACTOR : factor;
  line.bits = factor < 2 ? 5 : factor < 8 ? 3 : 0;
  float scaled = rintf(factor * (float)(1 << (line.bits + 9)));
  line.factor = (int16_t)(scaled < 32767 ? scaled : 32767);
  line.offset = (int16_t)((int)rintf(offset * (float)(1 << line.bits)) + (line.bits > 0));
  return line;
}

/* own * f + other * (1 - f), as other + (own - other) * f. One bit compensates the loss of the product's shift. */
IOF_BOTH int16_t blended(int16_t own, int16_t other, int16_t factor, int bits) {
  return (int16_t)(times(seven_up(own - other), factor) + (int16_t)((other << bits) + (bits > 0)));
}

/* 0.2989 R + 0.587 G + 0.114 B, rounded down, from products with 8 bits of fraction; 1 compensates the loss of their
shifts. */
IOF_BOTH int16_t gray_of(int16_t r, int16_t g, int16_t b) {
  uint16_t x = (uint16_t)(r << 8), y = (uint16_t)(g << 8), z = (uint16_t)(b << 8);
  return (int16_t)((uint16_t)((x * 19589u >> 16) + (y * 38470u >> 16) + (z * 7471u >> 16) + 1) >> 8);
}

/* 0.299 R + 0.587 G + 0.114 B, rounded as in Pillow. */
IOF_BOTH uint8_t luma_of(uint32_t r, uint32_t g, uint32_t b) {
  return (uint8_t)((r * 19595u + g * 38470u + b * 7471u + 32768u) >> 16);
}

/* Contrast: factor * x + (1 - factor) * mean of all `pixels`, of which `sum` is the sum of the gray values. */
IOF_BOTH iof_line contrast_of(float factor, uint64_t sum, double pixels) {
  float mean = (float)((double)sum / pixels);
  factor = fminf(fmaxf(factor, 0), IOF_MOST_FACTOR);
  return line_of(factor, mean * (1 - factor));
}

/* A value with 4 bits of fraction to a byte as in torchvision: times 255.999 / 255, rounded down. */
IOF_BOTH int16_t from_hue(int16_t least, int16_t share, int16_t chroma) {
  share = share < 0 ? 0 : share;
  share = share > chroma ? chroma : share;
  int16_t v = (int16_t)((least << 4) + share);
  return (int16_t)((int16_t)(v + ((int16_t)(v + 8) >> 8)) >> 4);
}

/* With c = largest - smallest of the three, hue * c is a difference of two of them plus a multiple of c. So it can be
turned and brought back into [0, 6c) without a division; 4 bits of fraction. `shift` is in 8192ths of a sixth. */
IOF_BOTH void turn_hue(int16_t *r, int16_t *g, int16_t *b, int16_t shift) {
  int16_t x = *r, y = *g, z = *b;
  int16_t most = x > y ? x : y, least = x < y ? x : y;
  most = z > most ? z : most, least = z < least ? z : least;
  int16_t chroma = (int16_t)((most - least) << 4), circle = (int16_t)(6 * chroma);
  int16_t from_red = (int16_t)((y - z) * 16), from_green = (int16_t)((z - x) * 16 + 2 * chroma);
  int16_t from_blue = (int16_t)((x - y) * 16 + 4 * chroma);
  int16_t hue = most == y ? from_green : from_blue;
  hue = most == x ? from_red : hue;
  hue = (int16_t)(hue + times((int16_t)((most - least) << 7), shift));
  hue = (int16_t)(hue + (hue < 0 ? circle : 0));
  hue = (int16_t)(hue - (hue >= circle ? circle : 0));
  int16_t cyan = (int16_t)(hue - 3 * chroma), green = (int16_t)(hue - 2 * chroma), blue = (int16_t)(hue - 4 * chroma);
  cyan = cyan < 0 ? (int16_t)-cyan : cyan, green = green < 0 ? (int16_t)-green : green, blue = blue < 0 ? (int16_t)-blue : blue;
  *r = from_hue(least, (int16_t)(cyan - chroma), chroma);
  *g = from_hue(least, (int16_t)(2 * chroma - green), chroma);
  *b = from_hue(least, (int16_t)(2 * chroma - blue), chroma);
}

IOF_BOTH int16_t add_below(int16_t v, int16_t threshold, int16_t more) {
  v = (int16_t)(v + (v < threshold ? more : 0));
  return v > 255 ? 255 : v;
}

/* The numbers of the steps that look at single pixels. */
IOF_BOTH int16_t hue_shift(const float *f) { return (int16_t)whole_of(rintf(f[0] * 6 * 8192), -3 * 8192, 3 * 8192); }
IOF_BOTH int16_t threshold_of(const float *f) { return (int16_t)whole_of(ceilf(f[0]), 0, 256); }
IOF_BOTH int16_t mask_of(const float *f) { return (int16_t)(0xFF & 0xFF00 >> whole_of(f[0], 0, 8)); }

/* Autocontrast: x becomes (x - least) * 255 / (most - least); a channel of one value is unchanged. */
IOF_BOTH uint8_t stretched(int v, int least, int most) {
  float scale = (float)(most - least) * (float)(1.0 / 255), x = least == most ? (float)v : (float)(v - least) / scale;
  return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* Pillow's equalisation. A value becomes the number of steps that all smaller values fill (`below` pixels). A step is a
255th of all pixels except those of the largest value. */
IOF_BOTH uint8_t flattened(int v, uint64_t below, uint64_t step) {
  uint64_t to = step ? (below + step / 2) / step : (uint64_t)v;
  return (uint8_t)(to > 255 ? 255 : to);
}

/* Mean of nine with the middle one counted five times, rounded: sums are at most 13 * 255, and no sum lies halfway. */
IOF_BOTH int16_t thirteenth(uint16_t sum) { return (int16_t)((uint16_t)((uint16_t)(2 * sum + 13) * 20165u >> 16) >> 3); }

/* A tap of a blur: values have 8 bits of fraction. */
IOF_BOTH uint16_t with_tap(uint16_t sum, uint16_t value, uint16_t weight) {
  return (uint16_t)(sum + (value * (uint32_t)weight >> 16));
}

/* A blur's value to a byte if there is no blur across. */
IOF_BOTH uint8_t rounded_off(uint16_t value) { return (uint8_t)((value + 128 > 65535 ? 65535 : value + 128) >> 8); }

/* The place on an axis of an image with a frame of one pixel, and the distance to the next one in 2048ths. Places
further outside, and NaN, are in the frame. After + 1 truncation rounds down, because places are at least -1. */
IOF_BOTH int32_t place_on(float x, float stop, int32_t *share) {
  x = x > -1 ? x : -1;
  x = x < stop ? x : stop;
  int32_t cell = (int32_t)(x + 1);
  *share = (int32_t)((x + 1 - (float)cell) * 2048 + 0.5f);
  return cell;
}

/* Interpolate between four values, at x and y in 2048ths. */
IOF_BOTH uint32_t mixed(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t x, int32_t y) {
  int32_t upper = (int32_t)(a << 11) + (int32_t)(b - a) * x, lower = (int32_t)(c << 11) + (int32_t)(d - c) * x;
  return (uint32_t)((upper << 9) + ((lower - upper) >> 2) * y + (1 << 19)) >> 20;
}

/* The same for pixels RGBX. */
IOF_BOTH uint32_t mixed_pixels(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t x, int32_t y) {
  uint32_t red = mixed(a & 255, b & 255, c & 255, d & 255, x, y);
  uint32_t green = mixed(a >> 8 & 255, b >> 8 & 255, c >> 8 & 255, d >> 8 & 255, x, y);
  uint32_t blue = mixed(a >> 16 & 255, b >> 16 & 255, c >> 16 & 255, d >> 16 & 255, x, y);
  return red | green << 8 | blue << 16;
}

IOF_BOTH uint32_t outside_of(const float *fill) {
  uint32_t outside = 0;
  for (int c = 0; c < 3; c++) outside |= (uint32_t)(fill[c] > 0 ? fill[c] < 255 ? fill[c] : 255 : 0) << 8 * c;
  return outside;
}

/* The pixel that position i of an axis shows if both ends are mirrors in the first and the last pixel. */
IOF_BOTH int reflected(int i, int size) {
  int period = 2 * (size - 1);
  if (size == 1) return 0;
  i %= period;
  if (i < 0) i += period;
  return i < size ? i : period - i;
}

enum { IOF_CONSTANT, IOF_EDGE, IOF_REFLECT, IOF_SYMMETRIC }; /* continuation beyond the edges: work.py's Edge */

/* The pixel that position i of an axis shows; -1 = the outside. */
IOF_BOTH int beyond(int i, int size, int edge) {
  if (i >= 0 && i < size) return i;
  if (edge == IOF_EDGE) return i < 0 ? 0 : size - 1;
  if (edge == IOF_REFLECT) return reflected(i, size);
  if (edge != IOF_SYMMETRIC) return -1;
  i %= 2 * size;
  if (i < 0) i += 2 * size;
  return i < size ? i : 2 * size - 1 - i;
}

/* Where the content of a padded image is, from a step's numbers. */
typedef struct {
  int left, top, wide, high, edge;
} iof_padding;

#define IOF_FARTHEST (1 << 20) /* pixels beyond an edge */

IOF_BOTH iof_padding iof_padding_of(const float *f, int width, int height) {
  iof_padding p;
  p.left = whole_of(f[0], -IOF_FARTHEST, IOF_FARTHEST), p.top = whole_of(f[1], -IOF_FARTHEST, IOF_FARTHEST);
  p.wide = whole_of(f[2], 1, width), p.high = whole_of(f[3], 1, height), p.edge = whole_of(f[4], 0, IOF_SYMMETRIC);
  return p;
}

/* Which channel becomes channel c: work.py's CHANNELS. */
IOF_BOTH int channel_of(int order, int c) {
  int first = order >> 1, low = first == 0, high = first == 2 ? 1 : 2; /* the two others */
  return c == 0 ? first : (c == 1) == !(order & 1) ? low : high;
}

/* Noise is the sum of eight hashed numbers of 16 bits (work.py): the same on every device, without state. */
#define IOF_NOISE_MIDDLE (4 * 65535)
#define IOF_NOISE_STEP 0x1.3988e2p-16f

IOF_BOTH float noise_at(uint32_t number, uint32_t place, uint32_t channel) {
  int32_t sum = 0;
  for (uint32_t k = 0; k < 4; k++) {
    uint32_t bits = ((3 * place + channel) * 4 + k) * 0x9E3779B9u + number;
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    bits ^= bits >> 16;
    sum += (int32_t)((bits & 0xFFFF) + (bits >> 16));
  }
  return (float)(sum - IOF_NOISE_MIDDLE) * IOF_NOISE_STEP;
}

#endif
