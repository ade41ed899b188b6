/* Huffman codes to coefficients.

The loop is one dependent chain: bits -> table -> length -> bits. It is kept short by tables that hold run, length and the
value itself wherever code and value fit IOF_LOOK bits, and by input without stuffing: 56 bits or more are there after one
load, enough for two coefficients of the longest kind (16 + 10 bits each). */
#include <string.h>

#include "region.h"

#define END_OF_BLOCK 128 /* as a run: behind any coefficient */

/* The value that `size` bits stand for (T.81, F.2.2.1: EXTEND). */
static inline int32_t extend(uint32_t value, int size) {
  return (int32_t)value - (int32_t)((value >> (size - 1) ^ 1) * ((1u << size) - 1));
}

/* One symbol into every place of `fast` that begins with its code. */
static void place(iof_codes *codes, uint32_t code, int length, int symbol, int ac) {
  int size = symbol & 15, free_bits = IOF_LOOK - length;
  uint32_t run = ac ? (uint32_t)symbol >> 4 : 0;
  if (ac && !size && run < 15) run = END_OF_BLOCK; /* runs of 1 to 14 without a value are EOB runs of progressive files */
  uint32_t *to = codes->fast + (code << free_bits);
  for (uint32_t rest = 0; rest < 1u << free_bits; rest++) {
    if (!size) {
      to[rest] = (uint32_t)length | run << 8;
    } else if (size <= free_bits) {
      int32_t value = extend(rest >> (free_bits - size), size);
      to[rest] = (uint32_t)(length + size) | run << 8 | (uint32_t)value << 16;
    } else {
      to[rest] = IOF_VALUE | (uint32_t)length | run << 8 | (uint32_t)size << 16;
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
  for (uint32_t j = 0; j < 1 << IOF_LOOK; j++) codes->fast[j] = IOF_LONG;
  for (int length = 1; length <= 16 && whole; length++, code <<= 1) {
    codes->first[length] = i - (int32_t)code;
    whole = code + codes->body[length - 1] <= 1u << length;
    for (int k = 0; k < codes->body[length - 1] && whole; k++, i++, code++)
      if (length <= IOF_LOOK) place(codes, code, length, symbols[i], ac);
    codes->limit[length] = code << (16 - length);
  }
  memcpy(codes->symbols, symbols, (size_t)table->symbols);
  codes->direct = whole;
  return whole;
}

/* A code of more than IOF_LOOK bits, as an entry of `fast` with IOF_VALUE. No such code: a run behind the block. */
static uint32_t long_code(const iof_codes *codes, uint64_t bits, int ac) {
  uint32_t next = (uint32_t)(bits >> 48);
  int length = IOF_LOOK + 1;
  while (length <= 16 && next >= codes->limit[length]) length++;
  if (length > 16) return 16 | (END_OF_BLOCK - 1) << 8;
  int symbol = codes->symbols[(codes->first[length] + (int32_t)(next >> (16 - length))) & 255];
  int size = ac ? symbol & 15 : symbol;
  uint32_t run = ac ? (uint32_t)symbol >> 4 : 0;
  if (size) return IOF_VALUE | (uint32_t)length | run << 8 | (uint32_t)size << 16;
  return (uint32_t)length | (ac && run < 15 ? END_OF_BLOCK : run) << 8;
}

/* The same with the value's bits taken in. */
static __attribute__((noinline)) uint32_t finish(const iof_codes *codes, uint32_t entry, uint64_t bits, int ac) {
  if (entry & IOF_LONG) entry = long_code(codes, bits, ac);
  if (entry & IOF_VALUE) {
    int length = entry & 31, size = (int)(entry >> 16);
    int32_t value = extend((uint32_t)(bits << length >> (64 - size)), size);
    entry = (uint32_t)(length + size) | (entry & 0xFF00) | (uint32_t)value << 16;
  }
  return entry;
}

#define INLINE __attribute__((always_inline)) inline

static INLINE void refill(iof_bits *b) {
  uint64_t next;
  memcpy(&next, b->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  next = __builtin_bswap64(next);
#endif
  b->bits |= next >> b->count;
  b->at += (63 - b->count) >> 3;
  b->count |= 56;
}

static INLINE uint32_t take(iof_bits *b, const iof_codes *codes, int ac) {
  uint32_t entry = codes->fast[b->bits >> (64 - IOF_LOOK)];
  if (__builtin_expect(entry & (IOF_LONG | IOF_VALUE), 0)) entry = finish(codes, entry, b->bits, ac);
  b->bits <<= entry & 63;
  b->count -= (int)(entry & 63);
  return entry;
}

/* Coefficient k of a block lies at STEP[k] from the block's first. */
#define AT(k, natural) [k] = 32 * ((natural) >> 3) + ((natural) & 7)
static const uint8_t STEP[64] = {
    AT(0, 0),   AT(1, 1),   AT(2, 8),   AT(3, 16),  AT(4, 9),   AT(5, 2),   AT(6, 3),   AT(7, 10),  AT(8, 17),  AT(9, 24),
    AT(10, 32), AT(11, 25), AT(12, 18), AT(13, 11), AT(14, 4),  AT(15, 5),  AT(16, 12), AT(17, 19), AT(18, 26), AT(19, 33),
    AT(20, 40), AT(21, 48), AT(22, 41), AT(23, 34), AT(24, 27), AT(25, 20), AT(26, 13), AT(27, 6),  AT(28, 7),  AT(29, 14),
    AT(30, 21), AT(31, 28), AT(32, 35), AT(33, 42), AT(34, 49), AT(35, 56), AT(36, 57), AT(37, 50), AT(38, 43), AT(39, 36),
    AT(40, 29), AT(41, 22), AT(42, 15), AT(43, 23), AT(44, 30), AT(45, 37), AT(46, 44), AT(47, 51), AT(48, 58), AT(49, 59),
    AT(50, 52), AT(51, 45), AT(52, 38), AT(53, 31), AT(54, 39), AT(55, 46), AT(56, 53), AT(57, 60), AT(58, 61), AT(59, 54),
    AT(60, 47), AT(61, 55), AT(62, 62), AT(63, 63)};

/* One block; `block` is NULL for one that is only passed over. 0 where a coefficient lies behind the block's end. */
static INLINE int decode_block(iof_bits *b, const iof_codes *dc, const iof_codes *ac, int32_t *last, int16_t *block) {
  uint32_t k = 1, entry;
  refill(b);
  *last += (int32_t)take(b, dc, 0) >> 16;
  if (block) block[0] = (int16_t)*last;
  for (;;) { /* a refill is enough for a DC and an AC coefficient, or for two AC coefficients */
    entry = take(b, ac, 1);
    k += entry >> 8 & 255;
    if (k > 63) break;
    if (block) block[STEP[k]] = (int16_t)(entry >> 16);
    if (++k > 63) break;
    refill(b);
    entry = take(b, ac, 1);
    k += entry >> 8 & 255;
    if (k > 63) break;
    if (block) block[STEP[k]] = (int16_t)(entry >> 16);
    if (++k > 63) break;
  }
  return k == 64 || k >= END_OF_BLOCK;
}

static INLINE int decode_mcu(const iof_mcu_row *row, iof_bits *b, int mcu) {
  int whole = 1;
  for (int c = 0; c < row->frame->components; c++) {
    const iof_component *component = &row->frame->component[c];
    for (int v = 0; v < component->v; v++) {
      for (int h = 0; h < component->h; h++) {
        int column = mcu * component->h + h;
        int16_t *block = mcu < 0 ? NULL : row->rows[c][v] + (size_t)(column >> 2) * IOF_FOUR + 8 * (column & 3);
        whole &= decode_block(b, row->dc[c], row->ac[c], &b->dc[c], block);
      }
    }
  }
  return whole;
}

static INLINE int decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count) {
  iof_bits b = *bits; /* in registers */
  int whole = 1;
  for (int i = 0; i < count && whole; i++) whole = decode_mcu(row, &b, first < 0 ? -1 : first + i) && b.at <= b.end + 8;
  *bits = b;
  return whole && (b.at - b.end) * 8 <= b.count;
}

int iof_decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count) {
  return first < 0 ? decode_mcus(row, bits, -1, count) : decode_mcus(row, bits, first, count);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same with shifts that need no flags and no fixed register. */
__attribute__((target("bmi2"))) int iof_decode_mcus_bmi2(const iof_mcu_row *row, iof_bits *bits, int first, int count) {
  return first < 0 ? decode_mcus(row, bits, -1, count) : decode_mcus(row, bits, first, count);
}
#endif
