/* The loops of blocks.c in AVX2 and AVX-512. The integers are the same, so the results are equal to the bit. */
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

static AVX2 int idct_avx2(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride) {
  __m256i q[8], pairs[4], wild = _mm256_setzero_si256();
  for (int i = 0; i < 8; i++) q[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(quant + 8 * i)));
  for (int two = 0; two < 2 * fours; two++, to += 16) {
    inverse_two(coefs + (two >> 1) * IOF_FOUR + 16 * (two & 1), q, pairs, &wild);
    for (int i = 0; i < 4; i++) {
      __m256i rows = _mm256_permute4x64_epi64(pairs[i], _MM_SHUFFLE(3, 1, 2, 0));
      _mm_storeu_si128((__m128i *)(to + (size_t)(2 * i) * stride), _mm256_castsi256_si128(rows));
      _mm_storeu_si128((__m128i *)(to + (size_t)(2 * i + 1) * stride), _mm256_extracti128_si256(rows, 1));
    }
  }
  return _mm256_testz_si256(wild, wild);
}

static __attribute__((target("avx512bw"))) int idct_avx512(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to,
                                                           size_t stride) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  __m512i q[8], pairs[4], wild = _mm512_setzero_si512();
  for (int i = 0; i < 8; i++) q[i] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(quant + 8 * i)));
  for (int four = 0; four < fours; four++, coefs += IOF_FOUR, to += 32) {
    inverse_four(coefs, q, pairs, &wild);
    for (int i = 0; i < 4; i++) {
      __m512i rows = _mm512_permutexvar_epi64(order, pairs[i]);
      _mm256_storeu_si256((__m256i *)(to + (size_t)(2 * i) * stride), _mm512_castsi512_si256(rows));
      _mm256_storeu_si256((__m256i *)(to + (size_t)(2 * i + 1) * stride), _mm512_extracti64x4_epi64(rows, 1));
    }
  }
  return !_mm512_test_epi16_mask(wild, wild);
}

static AVX2 void blend(const uint8_t *near, const uint8_t *far, int n, int16_t *to) {
  for (int i = 0; i < n; i += 16) { /* rows and `to` have room after their end */
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

/* For chroma x around zero, x * 13172 / 2^15 and x * -7471 / 2^15, rounded, are the scalar loop's 0.402 x and -0.228 x. */
#define RED 13172
#define BLUE (-7471)

/* 16 pixels as 16-bit numbers that may lie outside 0 to 255. */
typedef struct {
  __m256i red, green, blue;
} sixteen;

static inline __attribute__((target("avx2"), always_inline)) sixteen colours(const uint8_t *y, const uint8_t *cb, const uint8_t *cr) {
  const __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(32768);
  const __m256i green = _mm256_set1_epi32((int)(((uint32_t)18734 << 16) | (uint16_t)-22554));
  __m256i luma = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)y));
  __m256i b = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cb)), middle);
  __m256i r = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cr)), middle);
  __m256i low = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(b, r), green), half), 16);
  __m256i high = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(b, r), green), half), 16);
  return (sixteen){
      .red = _mm256_add_epi16(_mm256_add_epi16(luma, r), /* 1.402 = 1 + 0.402 */
                              _mm256_mulhrs_epi16(r, _mm256_set1_epi16(RED))),
      .green = _mm256_sub_epi16(_mm256_add_epi16(luma, _mm256_packs_epi32(low, high)), r), /* 0.714 = 1 - 0.286 */
      .blue = _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(b, b)), /* 1.772 = 2 - 0.228 */
                               _mm256_mulhrs_epi16(b, _mm256_set1_epi16(BLUE)))};
}

static AVX2 void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx) {
  __m256i opaque = _mm256_set1_epi16((short)0xFF00);
  for (int i = 0; i < n; i += 16) {
    sixteen c = colours(y + i, cb + i, cr + i);
    __m256i rb = _mm256_packus_epi16(c.red, c.blue), g = _mm256_packus_epi16(c.green, c.green);
    __m256i rg = _mm256_unpacklo_epi8(rb, g);                                       /* R G of eight pixels in each half */
    __m256i bx = _mm256_or_si256(_mm256_unpackhi_epi8(rb, _mm256_setzero_si256()), opaque);
    __m256i first = _mm256_unpacklo_epi16(rg, bx), second = _mm256_unpackhi_epi16(rg, bx);
    _mm256_storeu_si256((__m256i *)(rgbx + 4 * i), _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(rgbx + 4 * i + 32), _mm256_permute2x128_si256(first, second, 0x31));
  }
}

static inline __attribute__((target("avx2"), always_inline)) void put_32(__m256i low, __m256i high, __m256i flip,
                                                                          uint8_t *to) {
  __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), _MM_SHUFFLE(3, 1, 2, 0));
  _mm256_storeu_si256((__m256i *)to, _mm256_xor_si256(bytes, flip));
}

static AVX2 void planes(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int flip, uint8_t *to, size_t plane) {
  __m256i by = _mm256_set1_epi8((char)flip);
  int i = 0;
  for (; i + 16 < n; i += 32) {
    sixteen c = colours(y + i, cb + i, cr + i), d = colours(y + i + 16, cb + i + 16, cr + i + 16);
    put_32(c.red, d.red, by, to + i);
    put_32(c.green, d.green, by, to + plane + i);
    put_32(c.blue, d.blue, by, to + 2 * plane + i);
  }
  if (i < n) { /* the last 16: nothing is read or written beyond their reach */
    sixteen c = colours(y + i, cb + i, cr + i);
    __m256i rg = _mm256_xor_si256(_mm256_permute4x64_epi64(_mm256_packus_epi16(c.red, c.green), _MM_SHUFFLE(3, 1, 2, 0)), by);
    __m256i bb = _mm256_xor_si256(_mm256_permute4x64_epi64(_mm256_packus_epi16(c.blue, c.blue), _MM_SHUFFLE(3, 1, 2, 0)), by);
    _mm_storeu_si128((__m128i *)(to + i), _mm256_castsi256_si128(rg));
    _mm_storeu_si128((__m128i *)(to + plane + i), _mm256_extracti128_si256(rg, 1));
    _mm_storeu_si128((__m128i *)(to + 2 * plane + i), _mm256_castsi256_si128(bb));
  }
}

/* The same in registers twice as long. The last 16 pixels use the shorter ones, so nothing is read or written beyond
their reach. */
#define AVX512 __attribute__((target("avx512bw,avx512vl")))

static AVX512 void blend_avx512(const uint8_t *near, const uint8_t *far, int n, int16_t *to) {
  int i = 0;
  for (; i + 16 < n; i += 32) {
    __m512i a = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(near + i)));
    __m512i b = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(far + i)));
    _mm512_storeu_si512(to + i, _mm512_add_epi16(_mm512_add_epi16(a, _mm512_slli_epi16(a, 1)), b));
  }
  if (i < n) blend(near + i, far + i, n - i, to + i);
}

static AVX512 void spread_avx512(const int16_t *sums, int n, int even, int odd, uint8_t *to) {
  __m512i half_even = _mm512_set1_epi16((short)even), half_odd = _mm512_set1_epi16((short)odd);
  int i = 0;
  for (; i + 16 < n; i += 32) {
    __m512i s = _mm512_loadu_si512(sums + i);
    __m512i before = _mm512_loadu_si512(sums + i - 1), behind = _mm512_loadu_si512(sums + i + 1);
    s = _mm512_add_epi16(s, _mm512_slli_epi16(s, 1));
    __m512i a = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(s, before), half_even), 4);
    __m512i b = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(s, behind), half_odd), 4);
    _mm512_storeu_si512(to + 2 * i, _mm512_or_si512(a, _mm512_slli_epi16(b, 8)));
  }
  if (i < n) spread(sums + i, n - i, even, odd, to + 2 * i);
}

static inline __attribute__((target("avx512bw,avx512vl"), always_inline)) __m512i centred(const uint8_t *p) {
  return _mm512_sub_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p)), _mm512_set1_epi16(128));
}

typedef struct {
  __m512i red, green, blue;
} thirty_two;

static inline __attribute__((target("avx512bw,avx512vl"), always_inline)) thirty_two colours_wide(const uint8_t *y, const uint8_t *cb,
                                                                                                 const uint8_t *cr) {
  const __m512i half = _mm512_set1_epi32(32768);
  const __m512i green = _mm512_set1_epi32((int)(((uint32_t)18734 << 16) | (uint16_t)-22554));
  __m512i luma = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)y));
  __m512i b = centred(cb), r = centred(cr);
  __m512i low = _mm512_srai_epi32(_mm512_add_epi32(_mm512_madd_epi16(_mm512_unpacklo_epi16(b, r), green), half), 16);
  __m512i high = _mm512_srai_epi32(_mm512_add_epi32(_mm512_madd_epi16(_mm512_unpackhi_epi16(b, r), green), half), 16);
  return (thirty_two){.red = _mm512_add_epi16(_mm512_add_epi16(luma, r), _mm512_mulhrs_epi16(r, _mm512_set1_epi16(RED))),
                      .green = _mm512_sub_epi16(_mm512_add_epi16(luma, _mm512_packs_epi32(low, high)), r),
                      .blue = _mm512_add_epi16(_mm512_add_epi16(luma, _mm512_add_epi16(b, b)),
                                               _mm512_mulhrs_epi16(b, _mm512_set1_epi16(BLUE)))};
}

static AVX512 void colour_avx512(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx) {
  const __m512i opaque = _mm512_set1_epi16((short)0xFF00);
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  int i = 0;
  for (; i + 16 < n; i += 32) {
    thirty_two c = colours_wide(y + i, cb + i, cr + i);
    __m512i rb = _mm512_packus_epi16(c.red, c.blue), g = _mm512_packus_epi16(c.green, c.green);
    __m512i rg = _mm512_unpacklo_epi8(rb, g), bx = _mm512_or_si512(_mm512_unpackhi_epi8(rb, _mm512_setzero_si512()), opaque);
    __m512i first = _mm512_unpacklo_epi16(rg, bx), second = _mm512_unpackhi_epi16(rg, bx);
    _mm512_storeu_si512(rgbx + 4 * i, _mm512_permutex2var_epi64(first, lower, second));
    _mm512_storeu_si512(rgbx + 4 * i + 64, _mm512_permutex2var_epi64(first, upper, second));
  }
  if (i < n) colour(y + i, cb + i, cr + i, n - i, rgbx + 4 * i);
}

static inline __attribute__((target("avx512bw,avx512vl"), always_inline)) void put_bytes(__m512i words, __m256i flip, uint8_t *to) {
  __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(words, _mm512_setzero_si512()));
  _mm256_storeu_si256((__m256i *)to, _mm256_xor_si256(bytes, flip));
}

static AVX512 void planes_avx512(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int flip, uint8_t *to,
                                 size_t plane) {
  __m256i by = _mm256_set1_epi8((char)flip);
  int i = 0;
  for (; i + 16 < n; i += 32) {
    thirty_two c = colours_wide(y + i, cb + i, cr + i);
    put_bytes(c.red, by, to + i);
    put_bytes(c.green, by, to + plane + i);
    put_bytes(c.blue, by, to + 2 * plane + i);
  }
  if (i < n) planes(y + i, cb + i, cr + i, n - i, flip, to + i, plane);
}

const iof_block_loops iof_block_loops_avx2 = {iof_decode_mcus_bmi2, iof_decode_two_bmi2, idct_avx2, blend,
                                               spread,               colour,              planes};
const iof_block_loops iof_block_loops_avx512 = {iof_decode_mcus_bmi2, iof_decode_two_bmi2, idct_avx512,  blend_avx512,
                                                 spread_avx512,        colour_avx512,       planes_avx512};
#endif
