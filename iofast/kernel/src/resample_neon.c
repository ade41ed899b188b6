/* The loops of resample.c and resample_short.c in NEON, which every 64-bit ARM has. The integers are the same in
another order, so the results are equal to the bit. */
#include "internal.h"

#ifdef IOF_NEON
#include <arm_neon.h>

#define WIDE_LIMIT (255 << IOF_FRACTION)

/* Shift sums and saturate them to 16 bits, so that a later clip cannot see a wrapped value. */
static inline int16x4_t shifted(int32x4_t sum, int shift) { return vqmovn_s32(vshlq_s32(sum, vdupq_n_s32(-shift))); }

static inline int16x8_t wide_of(int16x8_t v) { return vminq_s16(vmaxq_s16(v, vdupq_n_s16(0)), vdupq_n_s16(WIDE_LIMIT)); }

static void vertical_first(const uint8_t *const *rows, const int16_t *coef, int taps, int n, int shift, int16_t *dst) {
  for (int x = 0; x < n; x += 8) { /* rows and dst have room after their end */
    int32x4_t low = vdupq_n_s32(1 << (shift - 1)), high = low;
    for (int k = 0; k < taps; k++) {
      int16x8_t v = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(rows[k] + x)));
      low = vmlal_n_s16(low, vget_low_s16(v), coef[k]);
      high = vmlal_n_s16(high, vget_high_s16(v), coef[k]);
    }
    vst1q_s16(dst + x, wide_of(vcombine_s16(shifted(low, shift), shifted(high, shift))));
  }
}

static inline int16x4_t one_output(const int16_t *row, const iof_axis *axis, int i, int shift) {
  const int16_t *p = row + 4 * (ptrdiff_t)(axis->start[i] - axis->low), *coef = axis->coef + (size_t)i * (size_t)axis->taps;
  int32x4_t sum = vdupq_n_s32(1 << (shift - 1));
  for (int k = 0; k < axis->taps; k++) sum = vmlal_n_s16(sum, vld1_s16(p + 4 * k), coef[k]);
  return shifted(sum, shift);
}

static inline int16x8_t two_outputs(const int16_t *row, const iof_axis *axis, int i, int shift) {
  return vcombine_s16(one_output(row, axis, i, shift), one_output(row, axis, i + 1, shift));
}

static void horizontal_rgbx(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i += 2) vst1_u8(dst + 4 * i, vqmovun_s16(two_outputs(row, axis, i, shift)));
}

static void horizontal_wide(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst) {
  (void)pairs;
  for (int i = 0; i < ((axis->outputs + 7) & ~7); i += 2) vst1q_s16(dst + 4 * i, wide_of(two_outputs(row, axis, i, shift)));
}

static void horizontal_gray(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst) {
  (void)pairs;
  for (int i = 0; i < axis->outputs; i++) {
    const int16_t *p = row + (axis->start[i] - axis->low), *coef = axis->coef + (size_t)i * (size_t)axis->taps;
    int32x4_t sums = vdupq_n_s32(0);
    int k = 0;
    for (; k + 4 <= axis->taps; k += 4) sums = vmlal_s16(sums, vld1_s16(p + k), vld1_s16(coef + k));
    int32_t sum = (1 << (shift - 1)) + vaddvq_s32(sums);
    for (; k < axis->taps; k++) sum += p[k] * coef[k];
    sum >>= shift;
    dst[i] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
}

static void vertical_last(const int16_t *const *rows, const int16_t *coef, int taps, int n, int shift, uint8_t *dst) {
  for (int x = 0; x < n; x += 8) { /* n is a multiple of 32 */
    int32x4_t low = vdupq_n_s32(1 << (shift - 1)), high = low;
    for (int k = 0; k < taps; k++) {
      int16x8_t v = vld1q_s16(rows[k] + x);
      low = vmlal_n_s16(low, vget_low_s16(v), coef[k]);
      high = vmlal_n_s16(high, vget_high_s16(v), coef[k]);
    }
    vst1_u8(dst + x, vqmovun_s16(vcombine_s16(shifted(low, shift), shifted(high, shift))));
  }
}

const iof_loops iof_loops_neon = {vertical_first,  horizontal_rgbx, horizontal_wide, NULL, NULL,
                                  horizontal_gray, vertical_last,   &iof_short_neon, &iof_exact_scalar, "neon"};

static void split(const uint8_t *rgbx, int n, int flip, uint8_t *planes, size_t plane) {
  uint8x16_t by = vdupq_n_u8((uint8_t)flip);
  for (int i = 0; i < n; i += 16) { /* rows and planes have room after their end */
    uint8x16x4_t v = vld4q_u8(rgbx + 4 * i);
    for (size_t c = 0; c < 3; c++) vst1q_u8(planes + c * plane + i, veorq_u8(v.val[c], by));
  }
}

/* Products, added in neighbouring pairs. */
static inline int16x8_t pairs_of(int8x16_t samples, int8x16_t weights) {
  return vpaddq_s16(vmull_s8(vget_low_s8(samples), vget_low_s8(weights)), vmull_high_s8(samples, weights));
}

static inline __attribute__((always_inline)) void horizontal_with(const iof_windows *w, const uint8_t *row, size_t plane,
                                                                  int channels, int pairs, int16_t *dst) {
  size_t outputs = (size_t)w->axis->outputs, to_plane = IOF_SHORT_PLANE(outputs);
  const int8_t *weights = (const int8_t *)w->weights;
  for (size_t i = 0; i < outputs; i += 8, weights += 32 * pairs) {
    uint8x16_t pick = vld1q_u8(w->pick + 2 * i);
    const uint8_t *first = row + w->first[i / 8];
    for (size_t c = 0; c < (size_t)channels; c++) {
      int16x8_t sum = vdupq_n_s16(IOF_SHORT_BIAS(2 * pairs));
      for (int p = 0; p < pairs; p++) {
        int8x16_t v = vreinterpretq_s8_u8(vqtbl1q_u8(vld1q_u8(first + c * plane + 2 * p), pick));
        /* upper weights go up to 128, which does not fit a signed byte; the negative does */
        sum = vsubq_s16(sum, pairs_of(v, vnegq_s8(vld1q_s8(weights + 32 * p))));
        sum = vsraq_n_s16(sum, pairs_of(v, vld1q_s8(weights + 32 * p + 16)), IOF_SHORT_FRACTION);
      }
      vst1q_s16(dst + c * to_plane + i, sum);
    }
  }
}

static void horizontal(const iof_windows *w, const uint8_t *row, size_t plane, int channels, int16_t *dst) {
  int pairs = w->axis->taps / 2;
  if (channels == 3 && pairs == 1) {
    horizontal_with(w, row, plane, 3, 1, dst);
  } else if (channels == 3 && pairs == 2) {
    horizontal_with(w, row, plane, 3, 2, dst);
  } else {
    horizontal_with(w, row, plane, channels, pairs, dst);
  }
}

static inline uint8x8_t eight_sums(const int16_t *const *rows, size_t at, const int16_t *weight, int taps) {
  int16x8_t sum = vqrdmulhq_n_s16(vld1q_s16(rows[0] + at), weight[0]);
  for (int k = 1; k < taps; k++) sum = vaddq_s16(sum, vqrdmulhq_n_s16(vld1q_s16(rows[k] + at), weight[k]));
  return vshrn_n_u16(vreinterpretq_u16_s16(sum), IOF_SHORT_FRACTION);
}

static void vertical(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip) {
  size_t plane = IOF_SHORT_PLANE(strip->n), n = (size_t)strip->n;
  int16_t weight[8];
  for (int k = 0; k < taps; k++) weight[k] = (int16_t)iof_short_weight(coef[k]);
  for (size_t c = 0; c < (size_t)strip->channels; c++) {
    uint8_t *to = strip->to + (int64_t)c * strip->channel_stride, rest[8];
    size_t x = 0;
    for (; x + 8 <= n; x += 8) vst1_u8(to + x, eight_sums(rows, c * plane + x, weight, taps));
    if (x < n) vst1_u8(rest, eight_sums(rows, c * plane + x, weight, taps));
    for (size_t i = 0; x + i < n; i++) to[x + i] = rest[i];
  }
}

static void interleave(const uint8_t *planes, size_t plane, int n, uint8_t *rgb) {
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    uint8x16x3_t v = {{vld1q_u8(planes + i), vld1q_u8(planes + plane + i), vld1q_u8(planes + 2 * plane + i)}};
    vst3q_u8(rgb + 3 * i, v);
  }
  for (; i < n; i++)
    for (size_t c = 0; c < 3; c++) rgb[3 * (size_t)i + c] = planes[c * plane + (size_t)i];
}

const iof_short_loops iof_short_neon = {split, horizontal, vertical, interleave, 8, 8};
#endif
