/* Huffman codes to coefficients.

The loop is one dependent chain: bits -> table -> length -> bits. Two things keep it short. Tables hold run, length and
the value itself if code and value fit IOF_LOOK bits, and two coefficients at once if both fit. And the input has no
stuffing: after one load there are at least 56 bits, enough for four lookups, or for a DC coefficient (16 + 11 bits at
most) and two lookups. An AC coefficient that is not in the pairs (16 + 10 bits at most) loads before and after. */
#include <string.h>

#include "region.h"

#define END_OF_BLOCK 128 /* as a run or advance: beyond the last coefficient */
#define TOO_LONG 255     /* as the place of the second value: not even the first is in `two` */
#define NO_CODE 63       /* as a run: beyond the block, and not its end */

/* The value in the first `size` bits (T.81, F.2.2.1: EXTEND); 0 if `size` is 0. */
static inline int32_t value_of(uint64_t bits, uint32_t size) {
  uint32_t value = (uint32_t)(bits >> 1 >> (63 - size)), negative = (uint32_t)~((int64_t)bits >> 63);
  return (int32_t)(value - (negative & ((1u << size) - 1)));
}

/* The entry of `one` for a symbol. */
static uint32_t entry_of(int symbol, uint32_t length, int ac) {
  uint32_t size = (uint32_t)symbol & 15, run = ac ? (uint32_t)symbol >> 4 : 0;
  if (ac && !size && run < 15) run = END_OF_BLOCK; /* runs of 1 to 14 without a value are EOB runs of progressive files */
  return (length + size) | run << 8 | length << 16 | size << 24;
}

/* An entry of `two`. */
static uint64_t pair(uint32_t length, uint32_t run, uint32_t behind, int32_t first, int32_t second, uint32_t advance) {
  return length | run << 8 | behind << 16 | (uint64_t)(uint16_t)first << 24 | (uint64_t)(uint16_t)second << 40 |
         (uint64_t)advance << 56;
}

/* Make pairs of symbols with their values from single ones. */
static void make_pairs(iof_codes *codes) {
  const uint32_t mask = (1 << IOF_LOOK) - 1;
  for (uint32_t i = 0; i <= mask; i++) {
    uint32_t a = codes->one[i], length = a & 255, run = a >> 8 & 255, behind = run + 1, advance = run + 1;
    if (length > IOF_LOOK) {
      codes->two[i] = pair(0, 0, TOO_LONG, 0, 0, 0);
    } else if (run == END_OF_BLOCK) {
      codes->two[i] = pair(length, 0, 0, 0, 0, END_OF_BLOCK);
    } else {
      uint32_t b = codes->one[i << length & mask], skipped = b >> 8 & 255, both = length + (b & 255);
      uint32_t at = 63 - IOF_LOOK + (a >> 16 & 255); /* and one more: a shift by 64 is undefined */
      int32_t first = value_of((uint64_t)i << at << 1, a >> 24), second = 0;
      if (both <= IOF_LOOK) {
        second = value_of((uint64_t)i << (63 - IOF_LOOK + length + (b >> 16 & 255)) << 1, b >> 24);
        if (skipped != END_OF_BLOCK) behind += skipped;
        advance += skipped + (skipped != END_OF_BLOCK);
        length = both;
      }
      codes->two[i] = pair(length, run, behind, first, second, advance);
    }
  }
}

static int fits(const uint8_t *symbols, int n, int ac) {
  int fit = 1;
  for (int i = 0; i < n; i++) fit = fit && (ac ? (symbols[i] & 15) <= 10 : symbols[i] <= 11);
  return fit;
}

int iof_codes_make(iof_codes *codes, const iof_code_table *table, int ac) {
  int n = 16 + table->symbols;
  if (codes->made == n && !memcmp(codes->body, table->body, (size_t)n)) return codes->direct;
  memcpy(codes->body, table->body, (size_t)n);
  codes->made = n;
  const uint8_t *symbols = codes->body + 16;
  uint32_t code = 0;
  int i = 0, whole = fits(symbols, table->symbols, ac);
  for (uint32_t j = 0; j < 1 << IOF_LOOK; j++) codes->one[j] = IOF_LONG;
  for (uint32_t length = 1; length <= 16 && whole; length++, code <<= 1) {
    codes->first[length] = i - (int32_t)code;
    whole = code + codes->body[length - 1] < 1u << length; /* no code consists of ones only */
    for (int k = 0; k < codes->body[length - 1] && whole; k++, i++, code++) {
      uint32_t spare = length <= IOF_LOOK ? 1u << (IOF_LOOK - length) : 0, entry = entry_of(symbols[i], length, ac);
      for (uint32_t j = 0; j < spare; j++) codes->one[code * spare + j] = entry;
    }
    codes->limit[length] = code << (16 - length);
  }
  memcpy(codes->symbols, symbols, (size_t)table->symbols);
  if (ac && whole) make_pairs(codes);
  codes->direct = whole;
  return whole;
}

/* Decode a code of more than IOF_LOOK bits. */
static __attribute__((noinline)) uint32_t long_code(const iof_codes *codes, uint64_t bits, int ac) {
  uint32_t next = (uint32_t)(bits >> 48), length = IOF_LOOK + 1;
  while (length <= 16 && next >= codes->limit[length]) length++;
  if (length > 16) return 16 | NO_CODE << 8 | 16 << 16;
  return entry_of(codes->symbols[(codes->first[length] + (int32_t)(next >> (16 - length))) & 255], length, ac);
}

#define INLINE __attribute__((always_inline)) inline

/* A reading position in registers. Only the lowest 6 bits of `count` are meant, so that it can be counted in whole
entries of tables, whose lowest bits are a length. */
typedef struct {
  uint64_t bits, count;
  const uint8_t *at;
  int damaged;
} stream;

static INLINE void refill(stream *s) {
  uint64_t next, count = s->count & 63;
  memcpy(&next, s->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  next = __builtin_bswap64(next);
#endif
  s->bits |= next >> count;
  s->at += (63 - count) >> 3;
  s->count = count | 56;
}

static INLINE void skip(stream *s, uint64_t entry) {
  s->bits <<= entry & 63;
  s->count -= entry;
}

/* Take a symbol's run and value. The value is extracted beside the dependency chain to the next symbol. */
static INLINE uint32_t take(stream *s, const iof_codes *codes, int ac, int32_t *value) {
  uint32_t entry = codes->one[s->bits >> (64 - IOF_LOOK)];
  if (__builtin_expect(entry & IOF_LONG, 0)) entry = long_code(codes, s->bits, ac);
  *value = value_of(s->bits << (entry >> 16 & 63), entry >> 24);
  skip(s, entry);
  return entry >> 8 & 255;
}

/* Coefficient k of a block is at STEP[k] from the block's first. Places behind the block are only pointed to. */
#define AT(k, natural) [k] = 32 * ((natural) >> 3) + ((natural) & 7)
static const uint8_t STEP[64 + 256] = {
    AT(0, 0),   AT(1, 1),   AT(2, 8),   AT(3, 16),  AT(4, 9),   AT(5, 2),   AT(6, 3),   AT(7, 10),  AT(8, 17),  AT(9, 24),
    AT(10, 32), AT(11, 25), AT(12, 18), AT(13, 11), AT(14, 4),  AT(15, 5),  AT(16, 12), AT(17, 19), AT(18, 26), AT(19, 33),
    AT(20, 40), AT(21, 48), AT(22, 41), AT(23, 34), AT(24, 27), AT(25, 20), AT(26, 13), AT(27, 6),  AT(28, 7),  AT(29, 14),
    AT(30, 21), AT(31, 28), AT(32, 35), AT(33, 42), AT(34, 49), AT(35, 56), AT(36, 57), AT(37, 50), AT(38, 43), AT(39, 36),
    AT(40, 29), AT(41, 22), AT(42, 15), AT(43, 23), AT(44, 30), AT(45, 37), AT(46, 44), AT(47, 51), AT(48, 58), AT(49, 59),
    AT(50, 52), AT(51, 45), AT(52, 38), AT(53, 31), AT(54, 39), AT(55, 46), AT(56, 53), AT(57, 60), AT(58, 61), AT(59, 54),
    AT(60, 47), AT(61, 55), AT(62, 62), AT(63, 63)};

static INLINE int ended(const uint8_t *k) { return k > STEP + 63; }

/* Take one AC coefficient, or the end of the block, if the pair table does not have it: a long one, or the last of a
block, where the next bits belong to another block. `k` is where STEP has the next coefficient; returns the next k. */
static INLINE const uint8_t *take_one(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
  int32_t value;
  refill(s);
  uint32_t run = take(s, ac, 1, &value);
  refill(s);
  k += run;
  s->damaged |= ended(k) && run != END_OF_BLOCK;
  if (keep && !ended(k)) block[*k] = (int16_t)value;
  return k + 1;
}

static INLINE const uint8_t *take_two(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
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
static INLINE const uint8_t *take_dc(stream *s, const iof_codes *dc, int32_t *last, int16_t *block, const int keep) {
  int32_t difference;
  refill(s);
  s->damaged |= take(s, dc, 0, &difference) != 0;
  *last = (int32_t)((uint32_t)*last + (uint32_t)difference); /* unsigned: many damaged blocks could overflow it */
  if (keep) block[0] = (int16_t)*last;
  return STEP + 1;
}

static INLINE void finish_block(stream *s, const iof_codes *ac, const uint8_t *k, int16_t *block, const int keep) {
  while (!ended(k)) {
    refill(s);
    for (int i = 0; i < 4 && !ended(k); i++) k = take_two(s, ac, k, block, keep);
  }
}

/* Decode one block; with `keep` 0, skip it. */
static INLINE void decode_block(stream *s, const iof_codes *dc, const iof_codes *ac, int32_t *last, int16_t *block,
                                const int keep) {
  finish_block(s, ac, take_two(s, ac, take_dc(s, dc, last, block, keep), block, keep), block, keep);
}

static INLINE void decode_blocks(stream *a, stream *b, const iof_codes *dc, const iof_codes *ac, int32_t *last_a,
                                 int32_t *last_b, int16_t *block_a, int16_t *block_b, const int keep) {
  const uint8_t *i = take_dc(a, dc, last_a, block_a, keep), *j = take_dc(b, dc, last_b, block_b, keep);
  int left = 2; /* lookups until the next load */
  for (;;) {
    for (; left && !(ended(i) | ended(j)); left--) {
      i = take_two(a, ac, i, block_a, keep);
      j = take_two(b, ac, j, block_b, keep);
    }
    if (left) break;
    refill(a);
    refill(b);
    left = 4;
  }
  finish_block(a, ac, i, block_a, keep);
  finish_block(b, ac, j, block_b, keep);
}

static INLINE stream begin(const iof_bits *b) { return (stream){b->bits, (uint64_t)b->count, b->at, 0}; }

static INLINE void end(const stream *s, iof_bits *b) { b->bits = s->bits, b->at = s->at, b->count = (int)(s->count & 63); }

/* Block row v of component c at this block column of the wanted MCUs. */
static INLINE int16_t *block_at(const iof_mcu_row *row, int c, int v, int column) {
  return row->rows[c][v] + (size_t)(column >> 2) * IOF_FOUR + 8 * (column & 3);
}

static INLINE int within(const stream *s, const iof_bits *b) { return s->at <= b->end + 8 && !s->damaged; }

static INLINE int all_there(const iof_bits *b) { return (b->at - b->end) * 8 <= b->count; }

static INLINE int decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count, const int keep) {
  stream s = begin(bits);
  int whole = 1;
  for (int mcu = first; mcu < first + count && whole; mcu++) {
    for (int c = 0; c < row->frame->components; c++) {
      const iof_component *k = &row->frame->component[c];
      for (int v = 0; v < k->v; v++)
        for (int h = 0; h < k->h; h++)
          decode_block(&s, row->dc[c], row->ac[c], &bits->dc[c], keep ? block_at(row, c, v, mcu * k->h + h) : NULL, keep);
    }
    whole = within(&s, bits);
  }
  end(&s, bits);
  return whole && all_there(bits);
}

static INLINE int decode_two(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count, const int keep) {
  stream a = begin(&bits[0]), b = begin(&bits[1]);
  const iof_mcu_row *row = &rows[0];
  int whole = 1;
  for (int mcu = first; mcu < first + count && whole; mcu++) {
    for (int c = 0; c < row->frame->components; c++) {
      const iof_component *k = &row->frame->component[c];
      for (int v = 0; v < k->v; v++) {
        for (int h = 0; h < k->h; h++) {
          int column = mcu * k->h + h;
          int16_t *block_a = keep ? block_at(row, c, v, column) : NULL;
          int16_t *block_b = keep ? block_at(&rows[1], c, v, column) : NULL;
          decode_blocks(&a, &b, row->dc[c], row->ac[c], &bits[0].dc[c], &bits[1].dc[c], block_a, block_b, keep);
        }
      }
    }
    whole = within(&a, &bits[0]) & within(&b, &bits[1]);
  }
  end(&a, &bits[0]);
  end(&b, &bits[1]);
  return whole && all_there(&bits[0]) && all_there(&bits[1]);
}

#define TWICE(decode, to, from) first < 0 ? decode(to, from, 0, count, 0) : decode(to, from, first, count, 1)

int iof_decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count) {
  return TWICE(decode_mcus, row, bits);
}

int iof_decode_two(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count) {
  return TWICE(decode_two, rows, bits);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same with BMI2's shifts, which need no flags and no fixed register. */
#define BMI2 __attribute__((target("bmi2")))

BMI2 int iof_decode_mcus_bmi2(const iof_mcu_row *row, iof_bits *bits, int first, int count) {
  return TWICE(decode_mcus, row, bits);
}

BMI2 int iof_decode_two_bmi2(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count) {
  return TWICE(decode_two, rows, bits);
}
#endif
