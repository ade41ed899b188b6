/* The loops of tile_loops.h for every instruction set, and the choice among them. */
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
  *r = (uint8_t)(sector == 0 || sector == 5 ? value : sector == 1 ? q : sector == 4 ? t : p);
  *g = (uint8_t)(sector == 1 || sector == 2 ? value : sector == 3 ? q : sector == 0 ? t : p);
  *b = (uint8_t)(sector == 3 || sector == 4 ? value : sector == 5 ? q : sector == 2 ? t : p);
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
