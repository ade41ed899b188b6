/* The arithmetic on coefficients, samples and pixels that our decoder and resampler have in common on every machine. */
#ifndef IOFAST_SCALAR_H
#define IOFAST_SCALAR_H

#include "codes.h"

IOF_BOTH int32_t saturate16(int32_t value) { return value < -32768 ? -32768 : value > 32767 ? 32767 : value; }

IOF_BOTH uint8_t to_sample(int32_t value) { return (uint8_t)(value < -128 ? 0 : value > 127 ? 255 : value + 128); }

IOF_BOTH uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* Transform eight values `step` apart, scaled by 2^13, rounded and shifted down by `shift`. */
IOF_BOTH void transform(const int16_t *in, size_t step, int shift, int32_t out[8]) {
  int32_t d[8];
  IOF_UNROLL
  for (size_t i = 0; i < 8; i++) d[i] = in[i * step];
  uint32_t half = 1u << (shift - 1);
  uint32_t sum = (uint32_t)(int16_t)(d[0] + d[4]) << 13, difference = (uint32_t)(int16_t)(d[0] - d[4]) << 13;
  uint32_t inner = (uint32_t)(d[2] * 4433 - d[6] * 10704), outer = (uint32_t)(d[2] * 10703 + d[6] * 4433);
  uint32_t even[4] = {sum + outer + half, difference + inner + half, difference - inner + half, sum - outer + half};
  int32_t a = (int16_t)(d[7] + d[3]), b = (int16_t)(d[5] + d[1]);
  uint32_t za = (uint32_t)(b * 9633 - a * 6436), zb = (uint32_t)(a * 9633 + b * 6437);
  uint32_t odd[4] = {(uint32_t)(d[1] * 4926 - d[7] * 7373) + zb, (uint32_t)(d[3] * 4177 - d[5] * 20995) + za,
                     (uint32_t)(-d[5] * 4176 - d[3] * 20995) + zb, (uint32_t)(-d[7] * 4927 - d[1] * 7373) + za};
  IOF_UNROLL
  for (int i = 0; i < 4; i++) {
    out[i] = (int32_t)(even[i] + odd[i]) >> shift;
    out[7 - i] = (int32_t)(even[i] - odd[i]) >> shift;
  }
}

/* The eight coefficients of a row of a block: on a GPU at once. */
IOF_BOTH void load_eight(const int16_t *from, int16_t to[8]) {
#ifdef __CUDACC__
  union { uint4 all; int16_t each[8]; } row;
  row.all = *(const uint4 *)from;
  IOF_UNROLL
  for (int i = 0; i < 8; i++) to[i] = row.each[i];
#else
  memcpy(to, from, 8 * sizeof *to);
#endif
}

IOF_BOTH void store_eight(const uint8_t from[8], uint8_t *to) {
#ifdef __CUDACC__
  *(uint2 *)to = make_uint2(from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24,
                            from[4] | from[5] << 8 | from[6] << 16 | (uint32_t)from[7] << 24);
#else
  memcpy(to, from, 8);
#endif
}

/* The inverse DCT of a block of a group of four. Returns 0 if a value of its first row needs more than 14 bits. */
IOF_BOTH int inverse(const int16_t *coefs, const uint16_t *quant, uint8_t *to, size_t stride) {
  int16_t work[64];
  int32_t out[8], wild = 0;
  IOF_UNROLL
  for (int y = 0; y < 8; y++) {
    load_eight(coefs + 32 * y, work + 8 * y);
    IOF_UNROLL
    for (int x = 0; x < 8; x++) work[8 * y + x] = (int16_t)(work[8 * y + x] * quant[8 * y + x]);
  }
  IOF_UNROLL
  for (int i = 0; i < 8; i++) wild |= work[i] >> 13 ^ work[i] >> 15;
  IOF_UNROLL
  for (int x = 0; x < 8; x++) {
    transform(work + x, 8, 11, out);
    IOF_UNROLL
    for (int y = 0; y < 8; y++) work[8 * y + x] = (int16_t)saturate16(out[y]);
  }
  IOF_UNROLL
  for (int y = 0; y < 8; y++) {
    uint8_t samples[8];
    transform(work + 8 * y, 1, 18, out);
    IOF_UNROLL
    for (int x = 0; x < 8; x++) samples[x] = to_sample(out[x]);
    store_eight(samples, to + (size_t)y * stride);
  }
  return !wild;
}

/* libjpeg's triangle filter for chroma, down and then across. */
IOF_BOTH int16_t blended_samples(int near, int far) { return (int16_t)(3 * near + far); }

IOF_BOTH uint8_t spread_sums(int near, int far, int rounding) { return (uint8_t)((3 * near + far + rounding) >> 4); }

IOF_BOTH void to_rgb(int y, int cb, int cr, uint8_t rgb[3]) {
  int32_t b = cb - 128, r = cr - 128;
  rgb[0] = clamp(y + ((91881 * r + 32768) >> 16));
  rgb[1] = clamp(y + ((-22554 * b - 46802 * r + 32768) >> 16));
  rgb[2] = clamp(y + ((116130 * b + 32768) >> 16));
}

#define IOF_FRACTION 6 /* bits below a pixel's 8 between the two passes of 32 bits: 14 bits in all */
#define IOF_SHORT_FRACTION 7 /* bits below a pixel's 8 between the two passes of 16 bits: 15 bits in all */

/* The constant in each sum of the short horizontal loop. It restores the 128 that was subtracted from each sample, and
rounds both passes: half a level for the second, and for the first half of what each of its shifts drops. */
#define IOF_SHORT_BIAS(taps) ((128 << IOF_SHORT_FRACTION) + (1 << (IOF_SHORT_FRACTION - 1)) + (taps) / 4)

IOF_BOTH int iof_short_weight(int coef) { return 2 * coef > 32767 ? 32767 : 2 * coef; }

/* A pair of taps of the short horizontal pass, of samples less 128; a tap of the short vertical pass. */
IOF_BOTH int32_t short_pair(int32_t a, int32_t b, int32_t weight_a, int32_t weight_b) {
  return (a * weight_a + b * weight_b) >> IOF_SHORT_FRACTION;
}

IOF_BOTH int32_t short_tap(int32_t sum, int32_t coef) { return (sum * iof_short_weight(coef) + (1 << 14)) >> 15; }

IOF_BOTH uint32_t bits_of(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

IOF_BOTH float float_of(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

/* To float16: exponents move by 112; below the smallest normal number an addition rounds like denormals. */
IOF_BOTH uint16_t half_of(float from) {
  uint32_t bits = bits_of(from), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - (112u << 23)) >> 13;
  uint32_t small = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
  uint32_t value = size < (113u << 23) ? small : normal;
  return (uint16_t)(sign | (size >= (143u << 23) ? 0x7C00 : value));
}

/* To bfloat16, rounded to even. */
IOF_BOTH uint16_t brain_of(float from) { return (uint16_t)((bits_of(from) + 0x7FFF + (bits_of(from) >> 16 & 1)) >> 16); }

#endif
