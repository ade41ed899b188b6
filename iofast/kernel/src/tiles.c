/* The loops of tile_loops.h for every instruction set, and the choice among them. */
#include <math.h>
#include <string.h>

#include "pixels.h"

#define BLOCK 256 /* pixels of a filtered row at a time; rows may be read so far beyond their end */

/* A loop WITH(bits) for each number of bits that iof_line_of chooses: constant shifts stay shifts of 16 bits. */
#define FOR_BITS(line)                      \
  if ((line)->bits == 5) {                  \
    WITH(5);                                \
  } else if ((line)->bits == 3) {           \
    WITH(3);                                \
  } else {                                  \
    WITH(0);                                \
  }

IOF_BOTH int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }
IOF_BOTH int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* `a` where `condition` is 1, else b: a chain of ?: would become a jump, and the loop would not be vectorised. */
IOF_BOTH int32_t one_of(int32_t condition, int32_t a, int32_t b) { return b ^ ((a ^ b) & -condition); }

/* Turn a pixel's hue as Pillow does by converting to HSV in bytes and back, `shift` 255ths of the circle. Single and double
precision are where Pillow has them, because results are rounded down. Without branches, so that the compiler can
vectorise. */
IOF_BOTH void pillow_hue(uint8_t *r, uint8_t *g, uint8_t *b, uint8_t shift) {
  int32_t red = *r, green = *g, blue = *b, value = largest(red, largest(green, blue));
  int32_t chroma = value - least(red, least(green, blue));
  float range = (float)(chroma ? chroma : 1), above = (float)(value ? value : 1);
  float from_red = (float)(value - red) / range, from_green = (float)(value - green) / range;
  float from_blue = (float)(value - blue) / range;
  float sixths = red == value     ? from_blue - from_green
                 : green == value ? (float)(2.0 + (double)from_red - (double)from_blue)
                                  : (float)(4.0 + (double)from_green - (double)from_red);
  double turns = (double)sixths / 6.0 + 1.0;
  float part = (float)(turns >= 1 ? turns - 1 : turns), colour = range / above;
  int32_t hue = chroma ? (int32_t)((double)part * 255.0) : 0, saturation = chroma ? (int32_t)((double)colour * 255.0) : 0;
  hue = (hue + shift) & 255;
  int32_t sector = hue * 6 / 255;
  float inside = (float)((double)(float)hue * 6.0 / 255.0 - (double)(float)sector);
  float share = (float)((double)(float)saturation / 255.0);
  int32_t p = (int32_t)((double)value * (1.0 - (double)share) + 0.5);
  int32_t q = (int32_t)((double)value * (1.0 - (double)(share * inside)) + 0.5);
  int32_t t = (int32_t)((double)value * (1.0 - (double)share * (1.0 - (double)inside)) + 0.5);
  sector = sector == 6 ? 0 : sector;
  int32_t turned = sector == 5 ? -1 : sector; /* -1 and 0: red is full; 1 and 2: green; 3 and 4: blue */
  *r = (uint8_t)one_of(turned < 1, value, one_of(turned == 1, q, one_of(turned == 4, t, p)));
  *g = (uint8_t)one_of((uint32_t)(turned - 1) < 2, value, one_of(turned == 3, q, one_of(turned == 0, t, p)));
  *b = (uint8_t)one_of(turned > 2, value, one_of(turned == -1, q, one_of(turned == 2, t, p)));
}

IOF_BOTH double level_at(uint32_t pixel, int shift) { return (double)(int32_t)(pixel >> shift & 255); }

/* Pillow's interpolation: in double precision, rounded down. */
IOF_BOTH double linear(double a, double b, double part) { return a + (b - a) * part; }

IOF_BOTH uint32_t linear_level(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int shift, double across, double down) {
  double above = linear(level_at(a, shift), level_at(b, shift), across);
  double below = linear(level_at(c, shift), level_at(d, shift), across);
  return (uint32_t)(int32_t)linear(above, below, down) << shift;
}

IOF_BOTH uint32_t linear_pixel(uint32_t a, uint32_t b, uint32_t c, uint32_t d, double across, double down) {
  return linear_level(a, b, c, d, 0, across, down) | linear_level(a, b, c, d, 8, across, down) |
         linear_level(a, b, c, d, 16, across, down);
}

IOF_BOTH double cubic(double a, double b, double c, double d, double part) {
  double second = -a + c, third = 2 * (a - b) + c - d, fourth = -a + b - c + d;
  return b + part * (second + part * (third + part * fourth));
}

IOF_BOTH double cubic_line(const uint32_t p[4], int shift, double part) {
  return cubic(level_at(p[0], shift), level_at(p[1], shift), level_at(p[2], shift), level_at(p[3], shift), part);
}

IOF_BOTH uint32_t cubic_level(const uint32_t p[16], int shift, double across, double down) {
  double v = cubic(cubic_line(p, shift, across), cubic_line(p + 4, shift, across), cubic_line(p + 8, shift, across),
                   cubic_line(p + 12, shift, across), down);
  v = v > 0 ? v : 0;
  return (uint32_t)(int32_t)(v < 255 ? v : 255) << shift;
}

IOF_BOTH uint32_t cubic_pixel(const uint32_t p[16], double across, double down) {
  return cubic_level(p, 0, across, down) | cubic_level(p, 8, across, down) | cubic_level(p, 16, across, down);
}

#define SET scalar
#define TARGET
#include "tile_loops.h"
#undef SET
#undef TARGET

#ifdef IOF_X86
#define SET avx2
#define TARGET __attribute__((target("avx2")))
#include "tile_loops.h"
#undef SET
#undef TARGET

#define SET avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#include "tile_loops.h"
#endif

const iof_tile_loops *iof_tile_loops_best(void) {
  const iof_tile_loops *best = &iof_tiles_scalar;
#ifdef IOF_X86
  const char *simd = iof_simd();
  if (!strcmp(simd, "avx2")) best = &iof_tiles_avx2;
  if (!strcmp(simd, "avx512")) best = &iof_tiles_avx512;
#endif
  return best;
}
