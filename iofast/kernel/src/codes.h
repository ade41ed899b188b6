/* The decoder's Huffman tables. */
#ifndef IOFAST_CODES_H
#define IOFAST_CODES_H

#include "everywhere.h"

#define IOF_LOOK 11 /* bits of one table lookup */

/* `one[next bits]` is a symbol. From the lowest byte: length of code and value, or IOF_LONG if the code does not fit;
run; length of the code; size of the value. End of block is run 128.

`two[next bits]`, of AC codes, is two symbols with their values if they fit, else one. From the lowest byte: length of
all; run of the first (0 for an end of block); distance from the next coefficient to the second value, or 255 if not
even the first fits; the two values, of two bytes; advance of both, at least 128 with an end of block. If there is one
symbol, the second value is a harmless zero. */
#define IOF_LONG 0x80u
typedef struct {
  uint64_t two[1 << IOF_LOOK];
  uint32_t one[1 << IOF_LOOK];
  uint32_t limit[18]; /* codes of `length` bits are below limit[length], as 16 bits left-aligned */
  int32_t first[18];  /* symbol number of a code: first[length] + code */
  uint8_t symbols[256];
  uint8_t body[16 + 256]; /* its source */
  int made;               /* bytes of `body`, 0 = nothing */
  int direct;
} iof_codes;

#define IOF_OVERREAD 2048 /* zero bytes after the last segment: a damaged MCU reads at most 1,250 until detected */

/* Coefficients are in groups of four blocks side by side: coefficient (row, column) of block b is at 32 * row + 8 * b +
column, so that one vector holds a row of all four. */
#define IOF_FOUR 256 /* coefficients of a group */

#endif
