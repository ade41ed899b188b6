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
