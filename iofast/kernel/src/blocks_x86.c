/* The loops of blocks.c in AVX2, and the inverse DCT in AVX-512 too. The same integers: the results are equal to the bit. */
#include "region.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))

#define V __m256i
#define TARGET inline __attribute__((target("avx2"), always_inline))
#define LANES(name) name##_two
#define OP(name) _mm256_##name
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define XOR _mm256_xor_si256
#define ZERO _mm256_setzero_si256
#include "idct_lanes.h"
#undef V
#undef TARGET
#undef LANES
#undef OP
#undef LOAD
#undef XOR
#undef ZERO

#define V __m512i
#define TARGET inline __attribute__((target("avx512bw"), always_inline))
#define LANES(name) name##_four
#define OP(name) _mm512_##name
#define LOAD(p) _mm512_loadu_si512(p)
#define XOR _mm512_xor_si512
#define ZERO _mm512_setzero_si512
#include "idct_lanes.h"

static AVX2 void idct_avx2(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride) {
  __m256i q[8], pairs[4];
  for (int i = 0; i < 8; i++) q[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(quant + 8 * i)));
  for (int two = 0; two < 2 * fours; two++, to += 16) {
    inverse_two(coefs + (two >> 1) * IOF_FOUR + 16 * (two & 1), q, pairs);
    for (int i = 0; i < 4; i++) {
      __m256i rows = _mm256_permute4x64_epi64(pairs[i], _MM_SHUFFLE(3, 1, 2, 0));
      _mm_storeu_si128((__m128i *)(to + (size_t)(2 * i) * stride), _mm256_castsi256_si128(rows));
      _mm_storeu_si128((__m128i *)(to + (size_t)(2 * i + 1) * stride), _mm256_extracti128_si256(rows, 1));
    }
  }
}

static __attribute__((target("avx512bw"))) void idct_avx512(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to,
                                                            size_t stride) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  __m512i q[8], pairs[4];
  for (int i = 0; i < 8; i++) q[i] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(quant + 8 * i)));
  for (int four = 0; four < fours; four++, coefs += IOF_FOUR, to += 32) {
    inverse_four(coefs, q, pairs);
    for (int i = 0; i < 4; i++) {
      __m512i rows = _mm512_permutexvar_epi64(order, pairs[i]);
      _mm256_storeu_si256((__m256i *)(to + (size_t)(2 * i) * stride), _mm512_castsi512_si256(rows));
      _mm256_storeu_si256((__m256i *)(to + (size_t)(2 * i + 1) * stride), _mm512_extracti64x4_epi64(rows, 1));
    }
  }
}

static AVX2 void blend(const uint8_t *near, const uint8_t *far, int n, int16_t *to) {
  for (int i = 0; i < n; i += 16) { /* rows and `to` have room behind their end */
    __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + i)));
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + i)));
    _mm256_storeu_si256((__m256i *)(to + i), _mm256_add_epi16(_mm256_add_epi16(a, _mm256_slli_epi16(a, 1)), b));
  }
}

static AVX2 void spread(const int16_t *sums, int n, int even, int odd, uint8_t *to) {
  __m256i half_even = _mm256_set1_epi16((short)even), half_odd = _mm256_set1_epi16((short)odd);
  for (int i = 0; i < n; i += 16) {
    __m256i s = _mm256_loadu_si256((const __m256i *)(sums + i));
    __m256i before = _mm256_loadu_si256((const __m256i *)(sums + i - 1));
    __m256i behind = _mm256_loadu_si256((const __m256i *)(sums + i + 1));
    s = _mm256_add_epi16(s, _mm256_slli_epi16(s, 1));
    __m256i a = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(s, before), half_even), 4);
    __m256i b = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(s, behind), half_odd), 4);
    _mm256_storeu_si256((__m256i *)(to + 2 * i), _mm256_or_si256(a, _mm256_slli_epi16(b, 8)));
  }
}

/* 16 pixels: chroma as 16-bit numbers around zero. (2x * f >> 16) + 1 >> 1 is x * f / 2^16, rounded. */
static inline __attribute__((target("avx2"), always_inline)) __m256i rounded(__m256i twice, int factor) {
  __m256i product = _mm256_mulhi_epi16(twice, _mm256_set1_epi16((short)factor));
  return _mm256_srai_epi16(_mm256_add_epi16(product, _mm256_set1_epi16(1)), 1);
}

static AVX2 void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx) {
  __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(32768), opaque = _mm256_set1_epi16((short)0xFF00);
  __m256i green = _mm256_set1_epi32((int)(((uint32_t)18734 << 16) | (uint16_t)-22554));
  for (int i = 0; i < n; i += 16) {
    __m256i luma = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(y + i)));
    __m256i b = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(cb + i))), middle);
    __m256i r = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(cr + i))), middle);
    __m256i twice_b = _mm256_add_epi16(b, b), twice_r = _mm256_add_epi16(r, r);
    __m256i red = _mm256_add_epi16(_mm256_add_epi16(luma, r), rounded(twice_r, 26345));        /* 1.402 = 1 + 0.402 */
    __m256i blue = _mm256_add_epi16(_mm256_add_epi16(luma, twice_b), rounded(twice_b, -14942)); /* 1.772 = 2 - 0.228 */
    __m256i low = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(b, r), green), half), 16);
    __m256i high = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(b, r), green), half), 16);
    __m256i mixed = _mm256_sub_epi16(_mm256_add_epi16(luma, _mm256_packs_epi32(low, high)), r); /* 0.714 = 1 - 0.286 */
    __m256i rb = _mm256_packus_epi16(red, blue), g = _mm256_packus_epi16(mixed, mixed);
    __m256i rg = _mm256_unpacklo_epi8(rb, g);                                       /* R G of eight pixels of each half */
    __m256i bx = _mm256_or_si256(_mm256_unpackhi_epi8(rb, _mm256_setzero_si256()), opaque);
    __m256i first = _mm256_unpacklo_epi16(rg, bx), second = _mm256_unpackhi_epi16(rg, bx);
    _mm256_storeu_si256((__m256i *)(rgbx + 4 * i), _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(rgbx + 4 * i + 32), _mm256_permute2x128_si256(first, second, 0x31));
  }
}

const iof_block_loops iof_block_loops_avx2 = {iof_decode_mcus_bmi2, iof_decode_two_bmi2, idct_avx2, blend, spread, colour};
const iof_block_loops iof_block_loops_avx512 = {iof_decode_mcus_bmi2, iof_decode_two_bmi2, idct_avx512, blend, spread, colour};
#endif
