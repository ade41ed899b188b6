/* The loops of tile_loops.h for every instruction set, and the choice among them. */
#include <string.h>

#include "pixels.h"

#define INLINE static inline __attribute__((always_inline))
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

/* a * b >> 16: vectors have an instruction for the upper half alone. */
INLINE int16_t times(int16_t a, int16_t b) { return (int16_t)((int32_t)a * b >> 16); }

/* From `bits` bits of fraction to a byte. */
INLINE int16_t level(int16_t v, int bits) {
  v = (int16_t)(v >> bits);
  v = v < 0 ? 0 : v;
  return v > 255 ? 255 : v;
}

/* times 128; the cast tells the compiler that the product has 16 bits */
INLINE int16_t seven_up(int v) { return (int16_t)((uint16_t)v << 7); }

/* own * f + other * (1 - f), as other + (own - other) * f. One bit compensates the loss of the product's shift. */
INLINE int16_t blended(int16_t own, int16_t other, int16_t factor, int bits) {
  return (int16_t)(times(seven_up(own - other), factor) + (int16_t)((other << bits) + (bits > 0)));
}

/* 0.2989 R + 0.587 G + 0.114 B, rounded down, from products with 8 bits of fraction; 1 compensates the loss of their
shifts. */
INLINE int16_t gray_of(int16_t r, int16_t g, int16_t b) {
  uint16_t x = (uint16_t)(r << 8), y = (uint16_t)(g << 8), z = (uint16_t)(b << 8);
  return (int16_t)((uint16_t)((x * 19589u >> 16) + (y * 38470u >> 16) + (z * 7471u >> 16) + 1) >> 8);
}

/* A value with 4 bits of fraction to a byte as in torchvision: times 255.999 / 255, rounded down. */
INLINE int16_t from_hue(int16_t least, int16_t share, int16_t chroma) {
  share = share < 0 ? 0 : share;
  share = share > chroma ? chroma : share;
  int16_t v = (int16_t)((least << 4) + share);
  return (int16_t)((int16_t)(v + ((int16_t)(v + 8) >> 8)) >> 4);
}

INLINE int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }
INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Turn a pixel's hue as Pillow does by converting to HSV in bytes and back, `shift` 255ths of the circle. Single and double
precision are where Pillow has them, because results are rounded down. Without branches, so that the compiler can
vectorise. */
INLINE void pillow_hue(uint8_t *r, uint8_t *g, uint8_t *b, uint8_t shift) {
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
  *r = (uint8_t)(sector == 0 || sector == 5 ? value : sector == 1 ? q : sector == 4 ? t : p);
  *g = (uint8_t)(sector == 1 || sector == 2 ? value : sector == 3 ? q : sector == 0 ? t : p);
  *b = (uint8_t)(sector == 3 || sector == 4 ? value : sector == 5 ? q : sector == 2 ? t : p);
}

/* Interpolate between four values, at x and y in 2048ths. */
INLINE uint32_t mixed(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t x, int32_t y) {
  int32_t upper = (int32_t)(a << 11) + (int32_t)(b - a) * x, lower = (int32_t)(c << 11) + (int32_t)(d - c) * x;
  return (uint32_t)((upper << 9) + ((lower - upper) >> 2) * y + (1 << 19)) >> 20;
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
