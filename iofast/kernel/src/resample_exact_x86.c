/* The loops of resample_exact.c in AVX2. The integers are the same in another order, so the results are equal to the bit.

Weights have up to 24 bits, and instructions multiply 16, or 8 by 8. So a weight is cut: w = 2^15 u + l. Both sums fit 32
bits. For two taps without negative weights, w = 2^14 t + 2^7 m + l, and sums of 16 bits are enough: of samples less 128

    (2^14 T + 2^7 M + L + 2^21) >> 22 = (T + 128 + ((M + (L >> 7)) >> 7)) >> 8

exactly, because shifts round down. 128 times the sum of the weights is missing, of which only its excess over 2^22 counts:
it is added to M. A T that saturates becomes 0 or 255, as it must. */
#include "internal.h"

#ifdef IOF_X86
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) AVX2
#define BLOCK 32

/* Make the usual counts constants, so that the compiler unrolls the loops. */
#define WITH_CONSTANT_PAIRS(pairs, call) \
  switch (pairs) {                       \
    case 1: call(1); break;              \
    case 2: call(2); break;              \
    case 3: call(3); break;              \
    default: call(pairs);                \
  }

/* Sums of 32 bits of 16 outputs, in two registers of eight, to bytes: words in the order of packs_epi32. */
typedef struct {
  __m256i lower, upper;
} sums;

INLINE sums no_sums(void) {
  return (sums){_mm256_set1_epi32(1 << (IOF_EXACT_PRECISION - 1)), _mm256_setzero_si256()};
}

INLINE __m256i rounded(sums s) {
  return _mm256_srai_epi32(_mm256_add_epi32(s.lower, _mm256_slli_epi32(s.upper, 15)), IOF_EXACT_PRECISION);
}

INLINE void add_pairs(sums *s, __m256i samples, __m256i lower, __m256i upper) {
  s->lower = _mm256_add_epi32(s->lower, _mm256_madd_epi16(samples, lower));
  s->upper = _mm256_add_epi32(s->upper, _mm256_madd_epi16(samples, upper));
}

/* From pairs of samples and the three parts of their weights to 16 results less 128. */
INLINE __m256i two_taps(__m256i samples, __m256i top, __m256i middle, __m256i low, __m256i excess) {
  __m256i l = _mm256_srai_epi16(_mm256_maddubs_epi16(low, samples), 7);
  __m256i m = _mm256_add_epi16(_mm256_maddubs_epi16(middle, samples), _mm256_add_epi16(l, excess));
  m = _mm256_add_epi16(_mm256_srai_epi16(m, 7), _mm256_set1_epi16(128));
  return _mm256_srai_epi16(_mm256_adds_epi16(_mm256_maddubs_epi16(top, samples), m), 8);
}

INLINE __m256i window(const uint8_t *row, const int32_t *first, __m256i pick) {
  __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row + first[0])));
  return _mm256_shuffle_epi8(_mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(row + first[1])), 1), pick);
}

static AVX2 void horizontal_pairs(const iof_exact_table *t, const uint8_t *row, size_t plane, int flip, uint8_t *to,
                                  size_t to_plane) {
  const __m256i by = _mm256_set1_epi8((char)(flip ^ IOF_ROW_FLIP));
  const uint8_t *bytes = t->bytes;
  for (size_t i = 0; i < (size_t)t->axis->outputs; i += BLOCK, bytes += 6 * BLOCK) {
    __m256i pick[2], excess[2], parts[6];
    for (int h = 0; h < 2; h++) {
      pick[h] = _mm256_loadu_si256((const __m256i *)(t->pick + 2 * i + 32 * h));
      excess[h] = _mm256_loadu_si256((const __m256i *)(t->words + i + 16 * (size_t)h));
    }
    for (int p = 0; p < 6; p++) parts[p] = _mm256_loadu_si256((const __m256i *)(bytes + 32 * p));
    for (size_t c = 0; c < 3; c++) {
      __m256i made[2];
      for (int h = 0; h < 2; h++) {
        __m256i samples = window(row + c * plane, t->first + i / 8 + 2 * h, pick[h]);
        made[h] = two_taps(samples, parts[h], parts[2 + h], parts[4 + h], excess[h]);
      }
      __m256i out = _mm256_permute4x64_epi64(_mm256_packs_epi16(made[0], made[1]), _MM_SHUFFLE(3, 1, 2, 0));
      _mm256_storeu_si256((__m256i *)(to + c * to_plane + i), _mm256_xor_si256(out, by));
    }
  }
}

/* Eight outputs: two samples of each become words. */
INLINE sums eight_outputs(const uint8_t *row, __m128i pick, const int16_t *words, int pairs) {
  const __m128i plain = _mm_set1_epi8((char)IOF_ROW_FLIP);
  sums s = no_sums();
  for (int p = 0; p < pairs; p++) {
    __m128i two = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(row + 2 * p)), pick);
    const __m256i *w = (const __m256i *)(words + 32 * p);
    add_pairs(&s, _mm256_cvtepu8_epi16(_mm_xor_si128(two, plain)), _mm256_loadu_si256(w), _mm256_loadu_si256(w + 1));
  }
  return s;
}

INLINE void horizontal_windows(const iof_exact_table *t, const uint8_t *row, size_t plane, int flip, uint8_t *to,
                               size_t to_plane, int pairs) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), by = _mm256_set1_epi8((char)flip);
  for (size_t i = 0; i < (size_t)t->axis->outputs; i += BLOCK)
    for (size_t c = 0; c < 3; c++) {
      __m256i made[4];
      for (size_t g = 0; g < 4; g++) {
        size_t group = i / 8 + g;
        __m128i pick = _mm_loadu_si128((const __m128i *)(t->pick + 16 * group));
        made[g] = rounded(eight_outputs(row + c * plane + t->first[group], pick, t->words + group * 32 * (size_t)pairs, pairs));
      }
      __m256i out = _mm256_packus_epi16(_mm256_packs_epi32(made[0], made[1]), _mm256_packs_epi32(made[2], made[3]));
      out = _mm256_xor_si256(_mm256_permutevar8x32_epi32(out, order), by);
      _mm256_storeu_si256((__m256i *)(to + c * to_plane + i), out);
    }
}

/* The sum of one output in eight parts: its samples are neighbours. */
INLINE __m256i one_output(const uint8_t *row, const int16_t *words, size_t taps) {
  const __m128i plain = _mm_set1_epi8((char)IOF_ROW_FLIP);
  sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t k = 0; k < taps; k += 16) {
    __m256i v = _mm256_cvtepu8_epi16(_mm_xor_si128(_mm_loadu_si128((const __m128i *)(row + k)), plain));
    add_pairs(&s, v, _mm256_loadu_si256((const __m256i *)(words + k)), _mm256_loadu_si256((const __m256i *)(words + taps + k)));
  }
  return _mm256_add_epi32(s.lower, _mm256_slli_epi32(s.upper, 15));
}

static AVX2 void horizontal_singles(const iof_exact_table *t, const uint8_t *row, size_t plane, int flip, uint8_t *to,
                                    size_t to_plane) {
  for (size_t c = 0; c < 3; c++)
    for (size_t i = 0; i < (size_t)t->axis->outputs; i += 4) { /* the table has zeros for a multiple of 32 outputs */
      __m256i sum[4];
      for (size_t o = 0; o < 4; o++)
        sum[o] = one_output(row + c * plane + t->first[i + o], t->words + (i + o) * 2 * t->taps, t->taps);
      __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
      __m128i all = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
      all = _mm_srai_epi32(_mm_add_epi32(all, _mm_set1_epi32(1 << (IOF_EXACT_PRECISION - 1))), IOF_EXACT_PRECISION);
      all = _mm_packs_epi32(all, all);
      int32_t bytes = _mm_cvtsi128_si32(_mm_xor_si128(_mm_packus_epi16(all, all), _mm_set1_epi8((char)flip)));
      memcpy(to + c * to_plane + i, &bytes, sizeof bytes);
    }
}

static AVX2 void horizontal(const iof_exact_table *t, const uint8_t *row, size_t plane, int flip, uint8_t *to, size_t to_plane) {
  int pairs = (int)t->taps / 2;
#define CALL(p) horizontal_windows(t, row, plane, flip, to, to_plane, p)
  if (t->kind == IOF_EXACT_PAIRS) horizontal_pairs(t, row, plane, flip, to, to_plane);
  else if (t->kind == IOF_EXACT_SINGLES) horizontal_singles(t, row, plane, flip, to, to_plane);
  else WITH_CONSTANT_PAIRS(pairs, CALL)
#undef CALL
}

INLINE __m256i load(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }

/* 32 samples of two rows, whose weights have three parts; the samples of the rows alternate. */
typedef struct {
  __m256i top, middle, low, excess;
} two_weights;

INLINE __m256i thirty_two_pairs(const uint8_t *const *rows, size_t at, const two_weights *w) {
  __m256i a = load(rows[0] + at), b = load(rows[1] + at);
  __m256i first = two_taps(_mm256_unpacklo_epi8(a, b), w->top, w->middle, w->low, w->excess);
  return _mm256_packs_epi16(first, two_taps(_mm256_unpackhi_epi8(a, b), w->top, w->middle, w->low, w->excess));
}

/* 32 samples of any number of rows, as bytes. */
INLINE __m256i thirty_two(const uint8_t *const *rows, size_t at, const int32_t *lower, const int32_t *upper, int pairs) {
  const __m256i zero = _mm256_setzero_si256(), plain = _mm256_set1_epi8((char)IOF_ROW_FLIP);
  sums s[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
  for (int p = 0; p < pairs; p++) {
    __m256i a = _mm256_xor_si256(load(rows[2 * p] + at), plain), b = _mm256_xor_si256(load(rows[2 * p + 1] + at), plain);
    __m256i first = _mm256_unpacklo_epi8(a, b), second = _mm256_unpackhi_epi8(a, b);
    __m256i l = _mm256_set1_epi32(lower[p]), u = _mm256_set1_epi32(upper[p]);
    add_pairs(&s[0], _mm256_unpacklo_epi8(first, zero), l, u);
    add_pairs(&s[1], _mm256_unpackhi_epi8(first, zero), l, u);
    add_pairs(&s[2], _mm256_unpacklo_epi8(second, zero), l, u);
    add_pairs(&s[3], _mm256_unpackhi_epi8(second, zero), l, u);
  }
  return _mm256_packus_epi16(_mm256_packs_epi32(rounded(s[0]), rounded(s[1])), _mm256_packs_epi32(rounded(s[2]), rounded(s[3])));
}

/* Store the results of a strip, 32 at a time; nothing is written after its end. */
#define STORE_STRIP(strip, plane, by, call)                                                             \
  for (size_t c = 0; c < (size_t)(strip)->channels; c++) {                                              \
    uint8_t *to = (strip)->to + (int64_t)c * (strip)->channel_stride, rest[32];                         \
    size_t x = 0, n = (size_t)(strip)->n, from = c * (plane);                                           \
    for (; x + 32 <= n; x += 32) _mm256_storeu_si256((__m256i *)(to + x), _mm256_xor_si256(call(from + x), by)); \
    if (x < n) {                                                                                        \
      _mm256_storeu_si256((__m256i *)rest, _mm256_xor_si256(call(from + x), by));                       \
      memcpy(to + x, rest, n - x);                                                                      \
    }                                                                                                   \
  }

static AVX2 void vertical_two(const uint8_t *const *rows, size_t plane, const int32_t *coef, int flip, const iof_strip *strip) {
  const __m256i by = _mm256_set1_epi8((char)(flip ^ IOF_ROW_FLIP));
  int32_t a = coef[0], b = coef[1];
  two_weights w = {_mm256_set1_epi16((short)(a >> 14 | b >> 14 << 8)), _mm256_set1_epi16((short)((a >> 7 & 127) | (b >> 7 & 127) << 8)),
                   _mm256_set1_epi16((short)((a & 127) | (b & 127) << 8)), _mm256_set1_epi16((short)(a + b - (1 << IOF_EXACT_PRECISION)))};
#define CALL(at) thirty_two_pairs(rows, at, &w)
  STORE_STRIP(strip, plane, by, CALL)
#undef CALL
}

INLINE void vertical_pairs(const uint8_t *const *rows, size_t plane, const int32_t *lower, const int32_t *upper, int pairs, int flip,
                           const iof_strip *strip) {
  const __m256i by = _mm256_set1_epi8((char)flip);
#define CALL(at) thirty_two(rows, at, lower, upper, pairs)
  STORE_STRIP(strip, plane, by, CALL)
#undef CALL
}

#define MOST_PAIRS 64 /* of which the weights are cut at once; further ones are rare, and left to the scalar loop */

static AVX2 void vertical(const uint8_t *const *rows, size_t plane, const int32_t *coef, int taps, int flip, const iof_strip *strip) {
  int pairs = taps / 2;
  int32_t lower[MOST_PAIRS], upper[MOST_PAIRS];
  if (taps == 2 && iof_is_pair(coef)) {
    vertical_two(rows, plane, coef, flip, strip);
  } else if (pairs > MOST_PAIRS) {
    iof_exact_scalar.vertical(rows, plane, coef, taps, flip, strip);
  } else {
    for (int p = 0; p < pairs; p++) {
      uint32_t a = (uint32_t)coef[2 * p], b = (uint32_t)coef[2 * p + 1];
      lower[p] = (int32_t)((a & 0x7FFF) | (b & 0x7FFF) << 16);
      upper[p] = (int32_t)(((uint32_t)(coef[2 * p] >> 15) & 0xFFFF) | (uint32_t)(coef[2 * p + 1] >> 15) << 16);
    }
#define CALL(p) vertical_pairs(rows, plane, lower, upper, p, flip, strip)
    WITH_CONSTANT_PAIRS(pairs, CALL)
#undef CALL
  }
}

const iof_exact_loops iof_exact_avx2 = {horizontal, vertical, 1};
#endif
