/* Coefficients to samples and samples to pixels: the scalar loops, and the choice of the fastest set.

The inverse DCT is libjpeg's accurate integer one (Loeffler, Ligtenberg and Moschytz 1989, 13-bit constants), the
upsampling its triangle filter, the colours BT.601 full range in 16-bit fixed point. Sums that overflow only in damaged
files wrap and saturate as in libjpeg-turbo's vector code, so that all sets give the same bits. */
#include <stdlib.h>
#include <string.h>

#include "region.h"

static int32_t saturate16(int32_t value) { return value < -32768 ? -32768 : value > 32767 ? 32767 : value; }

static uint8_t to_sample(int32_t value) {
  return (uint8_t)(value < -128 ? 0 : value > 127 ? 255 : value + 128);
}

/* Transform eight values `step` apart, scaled by 2^13, rounded and shifted down by `shift`. */
static void transform(const int16_t *in, size_t step, int shift, int32_t out[8]) {
  int32_t d[8];
  for (size_t i = 0; i < 8; i++) d[i] = in[i * step];
  uint32_t half = 1u << (shift - 1);
  uint32_t sum = (uint32_t)(int16_t)(d[0] + d[4]) << 13, difference = (uint32_t)(int16_t)(d[0] - d[4]) << 13;
  uint32_t inner = (uint32_t)(d[2] * 4433 - d[6] * 10704), outer = (uint32_t)(d[2] * 10703 + d[6] * 4433);
  uint32_t even[4] = {sum + outer + half, difference + inner + half, difference - inner + half, sum - outer + half};
  int32_t a = (int16_t)(d[7] + d[3]), b = (int16_t)(d[5] + d[1]);
  uint32_t za = (uint32_t)(b * 9633 - a * 6436), zb = (uint32_t)(a * 9633 + b * 6437);
  uint32_t odd[4] = {(uint32_t)(d[1] * 4926 - d[7] * 7373) + zb, (uint32_t)(d[3] * 4177 - d[5] * 20995) + za,
                     (uint32_t)(-d[5] * 4176 - d[3] * 20995) + zb, (uint32_t)(-d[7] * 4927 - d[1] * 7373) + za};
  for (int i = 0; i < 4; i++) {
    out[i] = (int32_t)(even[i] + odd[i]) >> shift;
    out[7 - i] = (int32_t)(even[i] - odd[i]) >> shift;
  }
}

static int inverse(const int16_t *coefs, const uint16_t *quant, uint8_t *to, size_t stride) {
  int16_t work[64];
  int32_t out[8], wild = 0;
  for (int i = 0; i < 64; i++) work[i] = (int16_t)(coefs[32 * (i >> 3) + (i & 7)] * quant[i]);
  for (int i = 0; i < 8; i++) wild |= work[i] >> 13 ^ work[i] >> 15;
  for (int x = 0; x < 8; x++) {
    transform(work + x, 8, 11, out);
    for (int y = 0; y < 8; y++) work[8 * y + x] = (int16_t)saturate16(out[y]);
  }
  for (int y = 0; y < 8; y++) {
    transform(work + 8 * y, 1, 18, out);
    for (int x = 0; x < 8; x++) to[(size_t)y * stride + (size_t)x] = to_sample(out[x]);
  }
  return !wild;
}

static int idct(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride) {
  int whole = 1;
  for (int four = 0; four < fours; four++, coefs += IOF_FOUR, to += 32)
    for (int b = 0; b < 4; b++) whole &= inverse(coefs + 8 * b, quant, to + 8 * b, stride);
  return whole;
}

static void blend(const uint8_t *near, const uint8_t *far, int n, int16_t *to) {
  for (int i = 0; i < n; i++) to[i] = (int16_t)(3 * near[i] + far[i]);
}

static void spread(const int16_t *sums, int n, int even, int odd, uint8_t *to) {
  for (int i = 0; i < n; i++) {
    to[2 * i] = (uint8_t)((3 * sums[i] + sums[i - 1] + even) >> 4);
    to[2 * i + 1] = (uint8_t)((3 * sums[i] + sums[i + 1] + odd) >> 4);
  }
}

static uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

static void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx) {
  for (int i = 0; i < n; i++, rgbx += 4) {
    int32_t b = cb[i] - 128, r = cr[i] - 128;
    rgbx[0] = clamp(y[i] + ((91881 * r + 32768) >> 16));
    rgbx[1] = clamp(y[i] + ((-22554 * b - 46802 * r + 32768) >> 16));
    rgbx[2] = clamp(y[i] + ((116130 * b + 32768) >> 16));
    rgbx[3] = 255;
  }
}

static void planes(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int flip, uint8_t *to, size_t plane) {
  for (int i = 0; i < n; i++) {
    uint8_t pixel[4];
    colour(y + i, cb + i, cr + i, 1, pixel);
    for (size_t c = 0; c < 3; c++) to[c * plane + (size_t)i] = (uint8_t)(pixel[c] ^ flip);
  }
}

const iof_block_loops iof_block_loops_scalar = {iof_decode_mcus, iof_decode_two, idct, blend, spread, colour, planes};

const iof_block_loops *iof_block_loops_best(void) {
  const iof_block_loops *best = &iof_block_loops_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
  const char *simd = iof_simd();
  if (!strcmp(simd, "avx2") && __builtin_cpu_supports("bmi2")) best = &iof_block_loops_avx2;
  if (!strcmp(simd, "avx512") && __builtin_cpu_supports("bmi2")) best = &iof_block_loops_avx512;
#endif
  return best;
}
