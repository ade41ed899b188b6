/* Huffman codes to coefficients.

The loop is one dependent chain: bits -> table -> length -> bits. Two things keep it short. Tables hold run, length and
the value itself if code and value fit IOF_LOOK bits, and two coefficients at once if both fit. And the input has no
stuffing: after one load there are at least 56 bits, enough for four lookups, or for a DC coefficient (16 + 11 bits at
most) and two lookups. An AC coefficient that is not in the pairs (16 + 10 bits at most) loads before and after. */
#include "entropy.h"
#include "region.h"

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

IOF_BOTH void decode_blocks(stream *a, stream *b, const iof_codes *dc, const iof_codes *ac, int32_t *last_a,
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

IOF_BOTH stream begin(const iof_bits *b) { return (stream){b->bits, (uint64_t)b->count, b->at, 0}; }

IOF_BOTH void end(const stream *s, iof_bits *b) { b->bits = s->bits, b->at = s->at, b->count = (int)(s->count & 63); }

/* Block row v of component c at this block column of the wanted MCUs. */
IOF_BOTH int16_t *block_at(const iof_mcu_row *row, int c, int v, int column) {
  return row->rows[c][v] + (size_t)(column >> 2) * IOF_FOUR + 8 * (column & 3);
}

IOF_BOTH int within(const stream *s, const iof_bits *b) { return s->at <= b->end + 8 && !s->damaged; }

IOF_BOTH int all_there(const iof_bits *b) { return (b->at - b->end) * 8 <= b->count; }

IOF_BOTH int decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count, const int keep) {
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

IOF_BOTH int decode_two(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count, const int keep) {
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
