/* The loops of resample_short.c in AVX2 and AVX-512. The integers are the same in another order, so the results are
equal to the bit. */
#include "internal.h"

#ifdef IOF_X86
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512bw")))
#define VBMI __attribute__((target("avx512bw,avx512vbmi")))
#define INLINE __attribute__((always_inline)) inline

/* Make the usual counts constants, so that the compiler unrolls the loops. */
#define WITH_CONSTANTS(channels, pairs, call)           \
  switch (channels << 4 | pairs) {                      \
    case 0x31: call(3, 1); break;                       \
    case 0x32: call(3, 2); break;                       \
    case 0x11: call(1, 1); break;                       \
    case 0x12: call(1, 2); break;                       \
    default: call(channels, pairs);                     \
  }

#define WITH_CONSTANT_TAPS(taps, call) \
  switch (taps) {                      \
    case 1: call(1); break;            \
    case 2: call(2); break;            \
    case 3: call(3); break;            \
    case 4: call(4); break;            \
    default: call(taps);               \
  }

/* Eight pixels to eight bytes of each channel: R | G | B | X. */
static INLINE AVX2 __m256i eight_pixels(const uint8_t *rgbx) {
  const __m256i by_channel = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                              13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i v = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)rgbx), by_channel);
  return _mm256_permutevar8x32_epi32(v, order);
}

static AVX2 void split(const uint8_t *rgbx, int n, int flip, uint8_t *planes, size_t plane) {
  __m256i by = _mm256_set1_epi8((char)flip);
  int i = 0;
  for (; i + 32 <= n; i += 32, rgbx += 128) {
    __m256i a = eight_pixels(rgbx), b = eight_pixels(rgbx + 32), c = eight_pixels(rgbx + 64), d = eight_pixels(rgbx + 96);
    __m256i rb = _mm256_unpacklo_epi64(a, b), rb2 = _mm256_unpacklo_epi64(c, d);
    __m256i g = _mm256_unpackhi_epi64(a, b), g2 = _mm256_unpackhi_epi64(c, d);
    _mm256_storeu_si256((__m256i *)(planes + i), _mm256_xor_si256(by, _mm256_permute2x128_si256(rb, rb2, 0x20)));
    _mm256_storeu_si256((__m256i *)(planes + plane + i), _mm256_xor_si256(by, _mm256_permute2x128_si256(g, g2, 0x20)));
    _mm256_storeu_si256((__m256i *)(planes + 2 * plane + i), _mm256_xor_si256(by, _mm256_permute2x128_si256(rb, rb2, 0x31)));
  }
  for (; i < n; i += 8, rgbx += 32) {
    __m256i v = _mm256_xor_si256(by, eight_pixels(rgbx));
    __m128i rg = _mm256_castsi256_si128(v);
    _mm_storel_epi64((__m128i *)(planes + i), rg);
    _mm_storel_epi64((__m128i *)(planes + plane + i), _mm_unpackhi_epi64(rg, rg));
    _mm_storel_epi64((__m128i *)(planes + 2 * plane + i), _mm256_extracti128_si256(v, 1));
  }
}

/* 16 outputs at a time: two groups of eight, a window of 16 bytes each. */
static INLINE AVX2 void horizontal_with(const iof_windows *w, const uint8_t *row, size_t plane, int channels, int pairs,
                                        int16_t *dst) {
  size_t outputs = (size_t)w->axis->outputs, to_plane = IOF_SHORT_PLANE(outputs);
  __m256i bias = _mm256_set1_epi16((short)IOF_SHORT_BIAS(2 * pairs));
  const uint8_t *weights = w->weights;
  for (size_t i = 0; i < outputs; i += 16, weights += 64 * pairs) {
    __m256i pick = _mm256_loadu_si256((const __m256i *)(w->pick + 2 * i));
    const uint8_t *first = row + w->first[i / 8], *second = row + w->first[i / 8 + 1];
    for (int c = 0; c < channels; c++) {
      const uint8_t *a = first + (size_t)c * plane, *b = second + (size_t)c * plane;
      __m256i sum = bias;
      for (int p = 0; p < pairs; p++) {
        __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(a + 2 * p)));
        v = _mm256_shuffle_epi8(_mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(b + 2 * p)), 1), pick);
        __m256i upper = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i *)(weights + 64 * p)), v);
        __m256i lower = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i *)(weights + 64 * p + 32)), v);
        sum = _mm256_add_epi16(sum, _mm256_add_epi16(upper, _mm256_srai_epi16(lower, IOF_SHORT_FRACTION)));
      }
      _mm256_storeu_si256((__m256i *)(dst + (size_t)c * to_plane + i), sum);
    }
  }
}

static AVX2 void horizontal(const iof_windows *w, const uint8_t *row, size_t plane, int channels, int16_t *dst) {
  int pairs = w->axis->taps / 2;
#define CALL(c, p) horizontal_with(w, row, plane, c, p, dst)
  WITH_CONSTANTS(channels, pairs, CALL)
#undef CALL
}

static INLINE AVX2 __m256i sixteen_sums(const int16_t *const *rows, size_t at, const __m256i *weight, int taps) {
  __m256i sum = _mm256_mulhrs_epi16(_mm256_loadu_si256((const __m256i *)(rows[0] + at)), weight[0]);
  for (int k = 1; k < taps; k++) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(rows[k] + at));
    sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(v, weight[k]));
  }
  return _mm256_srli_epi16(sum, IOF_SHORT_FRACTION);
}

static INLINE AVX2 __m256i thirty_two(const int16_t *const *rows, size_t at, const __m256i *weight, int taps) {
  __m256i bytes = _mm256_packus_epi16(sixteen_sums(rows, at, weight, taps), sixteen_sums(rows, at + 16, weight, taps));
  return _mm256_permute4x64_epi64(bytes, _MM_SHUFFLE(3, 1, 2, 0));
}

static INLINE AVX2 void vertical_taps(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
  size_t plane = IOF_SHORT_PLANE(strip->n), n = (size_t)strip->n;
  __m256i weight[8];
  for (int k = 0; k < taps; k++) weight[k] = _mm256_set1_epi16((short)iof_short_weight(coef[k]));
  for (int c = 0; c < strip->channels; c++) {
    uint8_t *to = strip->to + c * strip->channel_stride, rest[32];
    size_t x = 0, from = (size_t)c * plane;
    for (; x + 32 <= n; x += 32) _mm256_storeu_si256((__m256i *)(to + x), thirty_two(rows, from + x, weight, taps));
    if (x < n) {
      _mm256_storeu_si256((__m256i *)rest, thirty_two(rows, from + x, weight, taps));
      memcpy(to + x, rest, n - x);
    }
  }
}

static AVX2 void vertical(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
#define CALL(t) vertical_taps(rows, coef, t, strip)
  WITH_CONSTANT_TAPS(taps, CALL)
#undef CALL
}

/* 32 pixels at a time: 16 in each half, three times 16 bytes from each. */
static INLINE AVX2 __m256i woven(__m256i r, __m256i g, __m256i b, const int8_t (*pick)[16]) {
  __m256i v = _mm256_shuffle_epi8(r, _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)pick[0])));
  v = _mm256_or_si256(v, _mm256_shuffle_epi8(g, _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)pick[1]))));
  return _mm256_or_si256(v, _mm256_shuffle_epi8(b, _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)pick[2]))));
}

static AVX2 void interleave(const uint8_t *planes, size_t plane, int n, uint8_t *rgb) {
  static const int8_t PICK[3][3][16] = {{{0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5},
                                         {-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1},
                                         {-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1}},
                                        {{-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1},
                                         {5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10},
                                         {-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1}},
                                        {{-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1},
                                         {-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1},
                                         {10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15}}};
  uint8_t rest[96];
  for (int i = 0; i < n; i += 32) { /* planes have room after their end */
    __m256i r = _mm256_loadu_si256((const __m256i *)(planes + i)), g = _mm256_loadu_si256((const __m256i *)(planes + plane + i));
    __m256i b = _mm256_loadu_si256((const __m256i *)(planes + 2 * plane + i));
    uint8_t *to = i + 32 <= n ? rgb + 3 * (size_t)i : rest;
    for (int q = 0; q < 3; q++) {
      __m256i v = woven(r, g, b, PICK[q]);
      _mm_storeu_si128((__m128i *)(to + 16 * q), _mm256_castsi256_si128(v));
      _mm_storeu_si128((__m128i *)(to + 16 * q + 48), _mm256_extracti128_si256(v, 1));
    }
    if (to == rest) memcpy(rgb + 3 * (size_t)i, rest, 3 * (size_t)(n - i));
  }
}

const iof_short_loops iof_short_avx2 = {split, horizontal, vertical, interleave, 16, 8};

/* Four pixels in each quarter: 4 R, 4 G, 4 B, 4 X. */
static INLINE AVX512 __m512i sixteen_pixels(__m512i rgbx) {
  return _mm512_shuffle_epi8(
      rgbx, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

static INLINE AVX512 __m512i some_pixels(const uint8_t *rgbx, int n) {
  return sixteen_pixels(_mm512_maskz_loadu_epi32(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (__mmask16)((1u << n) - 1), rgbx));
}

static INLINE AVX512 void split_64(const __m512i v[4], __m512i by, uint8_t *planes, size_t plane) {
  const __m512i red_green = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i blue = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 2, 6, 10, 14, 18, 22, 26, 30);
  __m512i low = _mm512_permutex2var_epi32(v[0], red_green, v[1]), high = _mm512_permutex2var_epi32(v[2], red_green, v[3]);
  __m512i r = _mm512_shuffle_i64x2(low, high, 0x44), g = _mm512_shuffle_i64x2(low, high, 0xEE);
  low = _mm512_permutex2var_epi32(v[0], blue, v[1]), high = _mm512_permutex2var_epi32(v[2], blue, v[3]);
  _mm512_storeu_si512(planes, _mm512_xor_si512(r, by));
  _mm512_storeu_si512(planes + plane, _mm512_xor_si512(g, by));
  _mm512_storeu_si512(planes + 2 * plane, _mm512_xor_si512(_mm512_shuffle_i64x2(low, high, 0x44), by));
}

static AVX512 void split_512(const uint8_t *rgbx, int n, int flip, uint8_t *planes, size_t plane) {
  __m512i by = _mm512_set1_epi8((char)flip), v[4];
  int i = 0;
  for (; i + 64 <= n; i += 64, rgbx += 256) {
    for (int q = 0; q < 4; q++) v[q] = sixteen_pixels(_mm512_loadu_si512(rgbx + 64 * q));
    split_64(v, by, planes + i, plane);
  }
  if (i < n) { /* planes have room after their end */
    for (int q = 0; q < 4; q++) v[q] = some_pixels(rgbx + 64 * q, n - i - 16 * q);
    split_64(v, by, planes + i, plane);
  }
}

static INLINE AVX512 __m512i wide_sums(const int16_t *const *rows, size_t at, const __m512i *weight, int taps) {
  __m512i sum = _mm512_mulhrs_epi16(_mm512_loadu_si512(rows[0] + at), weight[0]);
  for (int k = 1; k < taps; k++)
    sum = _mm512_add_epi16(sum, _mm512_mulhrs_epi16(_mm512_loadu_si512(rows[k] + at), weight[k]));
  return _mm512_srli_epi16(sum, IOF_SHORT_FRACTION);
}

static INLINE AVX512 void vertical_512_taps(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  size_t plane = IOF_SHORT_PLANE(strip->n), n = (size_t)strip->n;
  __m512i weight[8];
  for (int k = 0; k < taps; k++) weight[k] = _mm512_set1_epi16((short)iof_short_weight(coef[k]));
  for (int c = 0; c < strip->channels; c++) {
    uint8_t *to = strip->to + c * strip->channel_stride;
    size_t from = (size_t)c * plane;
    for (size_t x = 0; x < n; x += 64) {
      __m512i sums = wide_sums(rows, from + x, weight, taps);
      if (n - x > 32) { /* with 224 outputs the last step has only 32 */
        sums = _mm512_packus_epi16(sums, wide_sums(rows, from + x + 32, weight, taps));
      } else {
        sums = _mm512_packus_epi16(sums, sums);
      }
      __mmask64 wanted = n - x >= 64 ? ~0ull : (1ull << (n - x)) - 1;
      _mm512_mask_storeu_epi8(to + x, wanted, _mm512_permutexvar_epi64(order, sums));
    }
  }
}

static AVX512 void vertical_512(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
#define CALL(t) vertical_512_taps(rows, coef, t, strip)
  WITH_CONSTANT_TAPS(taps, CALL)
#undef CALL
}

/* With a shuffle of 64 bytes, 32 outputs see one window. AVX-512 without it is less than a tenth faster than AVX2, so
it has no loop here. */
static INLINE VBMI void horizontal_vbmi_with(const iof_windows *w, const uint8_t *row, size_t plane, int channels, int pairs,
                                             int16_t *dst) {
  size_t outputs = (size_t)w->axis->outputs, to_plane = IOF_SHORT_PLANE(outputs);
  __m512i bias = _mm512_set1_epi16((short)IOF_SHORT_BIAS(2 * pairs));
  const uint8_t *weights = w->weights;
  for (size_t i = 0; i < outputs; i += 32, weights += 128 * pairs) {
    __m512i pick = _mm512_loadu_si512(w->pick + 2 * i);
    const uint8_t *first = row + w->first[i / 32];
    for (int c = 0; c < channels; c++) {
      const uint8_t *samples = first + (size_t)c * plane;
      __m512i sum = bias;
      for (int p = 0; p < pairs; p++) {
        __m512i v = _mm512_permutexvar_epi8(pick, _mm512_loadu_si512(samples + 2 * p));
        __m512i upper = _mm512_maddubs_epi16(_mm512_loadu_si512(weights + 128 * p), v);
        __m512i lower = _mm512_maddubs_epi16(_mm512_loadu_si512(weights + 128 * p + 64), v);
        sum = _mm512_add_epi16(sum, _mm512_add_epi16(upper, _mm512_srai_epi16(lower, IOF_SHORT_FRACTION)));
      }
      _mm512_storeu_si512(dst + (size_t)c * to_plane + i, sum);
    }
  }
}

static VBMI void horizontal_vbmi(const iof_windows *w, const uint8_t *row, size_t plane, int channels, int16_t *dst) {
  int pairs = w->axis->taps / 2;
#define CALL(c, p) horizontal_vbmi_with(w, row, plane, c, p, dst)
  WITH_CONSTANTS(channels, pairs, CALL)
#undef CALL
}

/* 64 pixels at a time: byte q of the 192 is channel q % 3 of pixel q / 3. */
static VBMI void interleave_vbmi(const uint8_t *planes, size_t plane, int n, uint8_t *rgb) {
  uint8_t pixel[192];
  for (int q = 0; q < 192; q++) pixel[q] = (uint8_t)(q / 3);
  const __mmask64 reds = 0x9249249249249249ull; /* every third */
  for (int i = 0; i < n; i += 64, rgb += 192) { /* planes have room after their end */
    __m512i r = _mm512_loadu_si512(planes + i), g = _mm512_loadu_si512(planes + plane + i);
    __m512i b = _mm512_loadu_si512(planes + 2 * plane + i);
    int bytes = 3 * (n - i);
    for (int q = 0; q < 3; q++, bytes -= 64) {
      __m512i pick = _mm512_loadu_si512(pixel + 64 * q); /* the first byte is of channel q, because 64 % 3 is 1 */
      __mmask64 red = q == 0 ? reds : q == 1 ? reds << 2 : reds << 1, green = q == 0 ? reds << 1 : q == 1 ? reds : reds << 2;
      __mmask64 wanted = bytes >= 64 ? ~0ull : bytes <= 0 ? 0 : (1ull << bytes) - 1;
      __m512i v = _mm512_permutexvar_epi8(pick, b);
      v = _mm512_mask_permutexvar_epi8(v, red, pick, r);
      v = _mm512_mask_permutexvar_epi8(v, green, pick, g);
      _mm512_mask_storeu_epi8(rgb + 64 * q, wanted, v);
    }
  }
}

const iof_short_loops iof_short_vbmi = {split_512, horizontal_vbmi, vertical_512, interleave_vbmi, 32, 32};
#endif
