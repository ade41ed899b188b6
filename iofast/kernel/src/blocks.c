/* Coefficients to samples and samples to pixels: the scalar loops, and the choice of the fastest set.

The inverse DCT is libjpeg's accurate integer one (Loeffler, Ligtenberg and Moschytz 1989, 13-bit constants), the
upsampling its triangle filter, the colours BT.601 full range in 16-bit fixed point. Sums that overflow only in damaged
files wrap and saturate as in libjpeg-turbo's vector code, so that all sets give the same bits. */
#include <stdlib.h>
#include <string.h>

#include "region.h"
#include "scalar.h"

static int idct(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride) {
  int whole = 1;
  for (int four = 0; four < fours; four++, coefs += IOF_FOUR, to += 32)
    for (int b = 0; b < 4; b++) whole &= inverse(coefs + 8 * b, quant, to + 8 * b, stride);
  return whole;
}

static void blend(const uint8_t *near, const uint8_t *far, int n, int16_t *to) {
  for (int i = 0; i < n; i++) to[i] = blended_samples(near[i], far[i]);
}

static void spread(const int16_t *sums, int n, int even, int odd, uint8_t *to) {
  for (int i = 0; i < n; i++) {
    to[2 * i] = spread_sums(sums[i], sums[i - 1], even);
    to[2 * i + 1] = spread_sums(sums[i], sums[i + 1], odd);
  }
}

static void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx) {
  for (int i = 0; i < n; i++, rgbx += 4) {
    to_rgb(y[i], cb[i], cr[i], rgbx);
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
