/* The inverse DCT of blocks.c on the blocks of one vector, eight 16-bit lanes each. blocks_x86.c includes this file
once for each vector length, with V, TARGET, LANES(name), OP(name), LOAD, XOR and ZERO defined for it.

Rounding is added to the even part, before the butterflies: once for two outputs. */

typedef struct {
  V low, high; /* 32-bit sums of the lower and the upper four lanes of each block */
} LANES(sums);

/* a * x + b * y of each lane, for two pairs of factors */
static TARGET LANES(sums) LANES(dot)(V low, V high, int a, int b) {
  V factors = OP(set1_epi32)((int)((uint32_t)(uint16_t)a | (uint32_t)b << 16));
  return (LANES(sums)){OP(madd_epi16)(low, factors), OP(madd_epi16)(high, factors)};
}

static TARGET LANES(sums) LANES(plus)(LANES(sums) a, LANES(sums) b) {
  return (LANES(sums)){OP(add_epi32)(a.low, b.low), OP(add_epi32)(a.high, b.high)};
}

static TARGET LANES(sums) LANES(minus)(LANES(sums) a, LANES(sums) b) {
  return (LANES(sums)){OP(sub_epi32)(a.low, b.low), OP(sub_epi32)(a.high, b.high)};
}

/* x << 13, plus half of the last bit that remains after the final shift */
static TARGET LANES(sums) LANES(scaled)(V x, V half) {
  V zero = ZERO();
  return (LANES(sums)){OP(add_epi32)(OP(srai_epi32)(OP(unpacklo_epi16)(zero, x), 3), half),
                       OP(add_epi32)(OP(srai_epi32)(OP(unpackhi_epi16)(zero, x), 3), half)};
}

static TARGET V LANES(packed)(LANES(sums) s, int shift) {
  return OP(packs_epi32)(OP(srai_epi32)(s.low, (unsigned)shift), OP(srai_epi32)(s.high, (unsigned)shift));
}

static TARGET void LANES(transform)(V d[8], const int shift) {
  V half = OP(set1_epi32)(1 << (shift - 1));
  LANES(sums) sum = LANES(scaled)(OP(add_epi16)(d[0], d[4]), half), difference = LANES(scaled)(OP(sub_epi16)(d[0], d[4]), half);
  V low = OP(unpacklo_epi16)(d[2], d[6]), high = OP(unpackhi_epi16)(d[2], d[6]);
  LANES(sums) inner = LANES(dot)(low, high, 4433, -10704), outer = LANES(dot)(low, high, 10703, 4433);
  LANES(sums) even[4] = {LANES(plus)(sum, outer), LANES(plus)(difference, inner), LANES(minus)(difference, inner),
                         LANES(minus)(sum, outer)};
  V a = OP(add_epi16)(d[7], d[3]), b = OP(add_epi16)(d[5], d[1]);
  low = OP(unpacklo_epi16)(a, b), high = OP(unpackhi_epi16)(a, b);
  LANES(sums) za = LANES(dot)(low, high, -6436, 9633), zb = LANES(dot)(low, high, 9633, 6437);
  V low71 = OP(unpacklo_epi16)(d[7], d[1]), high71 = OP(unpackhi_epi16)(d[7], d[1]);
  V low53 = OP(unpacklo_epi16)(d[5], d[3]), high53 = OP(unpackhi_epi16)(d[5], d[3]);
  LANES(sums) odd[4] = {LANES(plus)(LANES(dot)(low71, high71, -7373, 4926), zb),
                        LANES(plus)(LANES(dot)(low53, high53, -20995, 4177), za),
                        LANES(plus)(LANES(dot)(low53, high53, -4176, -20995), zb),
                        LANES(plus)(LANES(dot)(low71, high71, -4927, -7373), za)};
  for (int i = 0; i < 4; i++) {
    d[i] = LANES(packed)(LANES(plus)(even[i], odd[i]), shift);
    d[7 - i] = LANES(packed)(LANES(minus)(even[i], odd[i]), shift);
  }
}

static TARGET void LANES(transpose)(V d[8]) {
  V a[8], b[8];
  for (int i = 0; i < 4; i++) {
    a[2 * i] = OP(unpacklo_epi16)(d[2 * i], d[2 * i + 1]);
    a[2 * i + 1] = OP(unpackhi_epi16)(d[2 * i], d[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 2; j++) {
      b[4 * i + 2 * j] = OP(unpacklo_epi32)(a[4 * i + j], a[4 * i + j + 2]);
      b[4 * i + 2 * j + 1] = OP(unpackhi_epi32)(a[4 * i + j], a[4 * i + j + 2]);
    }
  }
  for (int i = 0; i < 4; i++) {
    d[2 * i] = OP(unpacklo_epi64)(b[i], b[i + 4]);
    d[2 * i + 1] = OP(unpackhi_epi64)(b[i], b[i + 4]);
  }
}

/* Columns of 16-bit values to pairs of rows of bytes: rows 2i and 2i + 1 in pairs[i], block by block. */
static TARGET void LANES(rows)(const V d[8], V pairs[4]) {
  V a = OP(packs_epi16)(d[0], d[2]), b = OP(packs_epi16)(d[1], d[3]), c = OP(packs_epi16)(d[4], d[6]);
  V e = OP(packs_epi16)(d[5], d[7]), middle = OP(set1_epi8)((char)0x80);
  V c01 = OP(unpacklo_epi8)(a, b), c23 = OP(unpackhi_epi8)(a, b), c45 = OP(unpacklo_epi8)(c, e), c67 = OP(unpackhi_epi8)(c, e);
  V left = OP(unpacklo_epi16)(c01, c23), left4 = OP(unpackhi_epi16)(c01, c23);
  V right = OP(unpacklo_epi16)(c45, c67), right4 = OP(unpackhi_epi16)(c45, c67);
  pairs[0] = XOR(OP(unpacklo_epi32)(left, right), middle);
  pairs[1] = XOR(OP(unpackhi_epi32)(left, right), middle);
  pairs[2] = XOR(OP(unpacklo_epi32)(left4, right4), middle);
  pairs[3] = XOR(OP(unpackhi_epi32)(left4, right4), middle);
}

/* `coefs` is the first row of the blocks; `quant` has eight rows, each repeated for every block. `wild` becomes nonzero
if a value of the first row does not fit 14 bits. */
static TARGET void LANES(inverse)(const int16_t *coefs, const V quant[8], V pairs[4], V *wild) {
  V d[8];
  for (int i = 0; i < 8; i++) d[i] = OP(mullo_epi16)(LOAD(coefs + 32 * i), quant[i]);
  *wild = OP(max_epu16)(*wild, XOR(OP(srai_epi16)(d[0], 13), OP(srai_epi16)(d[0], 15)));
  LANES(transform)(d, 11);
  LANES(transpose)(d);
  LANES(transform)(d, 18);
  LANES(rows)(d, pairs);
}
