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
