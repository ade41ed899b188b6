/* Huffman codes to coefficients, a block at a time; see entropy.c. */
#ifndef IOFAST_ENTROPY_H
#define IOFAST_ENTROPY_H

#include "codes.h"

#define END_OF_BLOCK 128 /* as a run or advance: beyond the last coefficient */
#define TOO_LONG 255     /* as the place of the second value: not even the first is in `two` */
#define NO_CODE 63       /* as a run: beyond the block, and not its end */

/* The value in the first `size` bits (T.81, F.2.2.1: EXTEND); 0 if `size` is 0. */
IOF_BOTH int32_t value_of(uint64_t bits, uint32_t size) {
  uint32_t value = (uint32_t)(bits >> 1 >> (63 - size)), negative = (uint32_t)~((int64_t)bits >> 63);
  return (int32_t)(value - (negative & ((1u << size) - 1)));
}

/* The entry of `one` for a symbol. */
IOF_BOTH uint32_t entry_of(int symbol, uint32_t length, int ac) {
  uint32_t size = (uint32_t)symbol & 15, run = ac ? (uint32_t)symbol >> 4 : 0;
  if (ac && !size && run < 15) run = END_OF_BLOCK; /* runs of 1 to 14 without a value are EOB runs of progressive files */
  return (length + size) | run << 8 | length << 16 | size << 24;
}

/* Decode a code of more than IOF_LOOK bits. */
IOF_RARE uint32_t long_code(const iof_codes *codes, uint64_t bits, int ac) {
  uint32_t next = (uint32_t)(bits >> 48), length = IOF_LOOK + 1;
  while (length <= 16 && next >= codes->limit[length]) length++;
  if (length > 16) return 16 | NO_CODE << 8 | 16 << 16;
  return entry_of(codes->symbols[(codes->first[length] + (int32_t)(next >> (16 - length))) & 255], length, ac);
}

/* A reading position in registers. Only the lowest 6 bits of `count` are meant, so that it can be counted in whole
entries of tables, whose lowest bits are a length. */
typedef struct {
  uint64_t bits, count;
  const uint8_t *at;
  int damaged;
} stream;

/* The next eight bytes, the first on top. A GPU reads up to three more at each end. */
IOF_BOTH uint64_t eight_bytes(const uint8_t *at) {
#ifdef __CUDACC__
  const uint32_t *word = (const uint32_t *)((uintptr_t)at & ~(uintptr_t)3);
  uint32_t shift = 8 * (uint32_t)((uintptr_t)at & 3), a = word[0], b = word[1], c = word[2];
  return (uint64_t)__byte_perm(__funnelshift_r(a, b, shift), 0, 0x0123) << 32 | __byte_perm(__funnelshift_r(b, c, shift), 0, 0x0123);
#else
  uint64_t next;
  memcpy(&next, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  next = __builtin_bswap64(next);
#endif
  return next;
#endif
}

IOF_BOTH void refill(stream *s) {
  uint64_t count = s->count & 63;
  s->bits |= eight_bytes(s->at) >> count;
  s->at += (63 - count) >> 3;
  s->count = count | 56;
}

IOF_BOTH void skip(stream *s, uint64_t entry) {
  s->bits <<= entry & 63;
  s->count -= entry;
}

/* Take a symbol's run and value. The value is extracted beside the dependency chain to the next symbol. */
IOF_BOTH uint32_t take(stream *s, const iof_codes *codes, int ac, int32_t *value) {
  uint32_t entry = codes->one[s->bits >> (64 - IOF_LOOK)];
  if (__builtin_expect(entry & IOF_LONG, 0)) entry = long_code(codes, s->bits, ac);
  *value = value_of(s->bits << (entry >> 16 & 63), entry >> 24);
  skip(s, entry);
  return entry >> 8 & 255;
}

/* Coefficient k of a block is at STEP[k] from the block's first. Places behind the block are only pointed to. */
#define AT(k, natural) 32 * ((natural) >> 3) + ((natural) & 7)
IOF_TABLE uint8_t STEP[64 + 256] = {
    AT(0, 0),   AT(1, 1),   AT(2, 8),   AT(3, 16),  AT(4, 9),   AT(5, 2),   AT(6, 3),   AT(7, 10),  AT(8, 17),  AT(9, 24),
    AT(10, 32), AT(11, 25), AT(12, 18), AT(13, 11), AT(14, 4),  AT(15, 5),  AT(16, 12), AT(17, 19), AT(18, 26), AT(19, 33),
    AT(20, 40), AT(21, 48), AT(22, 41), AT(23, 34), AT(24, 27), AT(25, 20), AT(26, 13), AT(27, 6),  AT(28, 7),  AT(29, 14),
    AT(30, 21), AT(31, 28), AT(32, 35), AT(33, 42), AT(34, 49), AT(35, 56), AT(36, 57), AT(37, 50), AT(38, 43), AT(39, 36),
    AT(40, 29), AT(41, 22), AT(42, 15), AT(43, 23), AT(44, 30), AT(45, 37), AT(46, 44), AT(47, 51), AT(48, 58), AT(49, 59),
    AT(50, 52), AT(51, 45), AT(52, 38), AT(53, 31), AT(54, 39), AT(55, 46), AT(56, 53), AT(57, 60), AT(58, 61), AT(59, 54),
    AT(60, 47), AT(61, 55), AT(62, 62), AT(63, 63)};

IOF_BOTH int ended(const uint8_t *k) { return k > STEP + 63; }

/* Take one AC coefficient, or the end of the block, if the pair table does not have it: a long one, or the last of a
block, where the next bits belong to another block. `k` is where STEP has the next coefficient; returns the next k. */
IOF_BOTH const uint8_t *take_one(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
  int32_t value;
  refill(s);
  uint32_t run = take(s, ac, 1, &value);
  refill(s);
  k += run;
  s->damaged |= ended(k) && run != END_OF_BLOCK;
  if (keep && !ended(k)) block[*k] = (int16_t)value;
  return k + 1;
}

IOF_BOTH const uint8_t *take_two(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
  uint64_t entry = ac->two[s->bits >> (64 - IOF_LOOK)];
  const uint8_t *behind = k + (entry >> 16 & 255);
  if (__builtin_expect(ended(behind), 0)) return take_one(s, ac, k, block, keep);
  if (keep) {
    block[k[entry >> 8 & 255]] = (int16_t)(entry >> 24);
    block[*behind] = (int16_t)(entry >> 40);
  }
  skip(s, entry);
  return k + (entry >> 56);
}

/* Returns the next k. */
IOF_BOTH const uint8_t *take_dc(stream *s, const iof_codes *dc, int32_t *last, int16_t *block, const int keep) {
  int32_t difference;
  refill(s);
  s->damaged |= take(s, dc, 0, &difference) != 0;
  *last = (int32_t)((uint32_t)*last + (uint32_t)difference); /* unsigned: many damaged blocks could overflow it */
  if (keep) block[0] = (int16_t)*last;
  return STEP + 1;
}

IOF_BOTH void finish_block(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
  while (!ended(k)) {
    refill(s);
    for (int i = 0; i < 4 && !ended(k); i++) k = take_two(s, ac, k, block, keep);
  }
}

/* Decode one block; with `keep` 0, skip it. */
IOF_BOTH void decode_block(stream *s, const iof_codes *dc, const iof_codes *ac, int32_t *last, int16_t *block,
                                const int keep) {
  finish_block(s, ac, take_two(s, ac, take_dc(s, dc, last, block, keep), block, keep), block, keep);
}

#endif
