/* What the kernel's files share. Nothing here is part of the contract in iofast.h. */
#ifndef IOFAST_INTERNAL_H
#define IOFAST_INTERNAL_H

#include "iofast.h"

/* Memory that only grows; it belongs to the context. */
typedef struct {
  void *data;
  size_t size;
} iof_buffer;

/* At least `size` bytes, 64-aligned, old contents lost; NULL where memory is short. */
void *iof_reserve(iof_buffer *buffer, size_t size);

/* Decoded pixels RGBX: `width` x `height` of the stored image from (x, y) on. */
typedef struct {
  uint8_t *pixels;
  size_t stride;
  int x, y, width, height;
} iof_pixels;

/* One axis of the resample: output i is the sum of taps `coef[i * taps + k]` on inputs `start[i] + k`.

`taps` is even and `coef` zero behind `count[i]`; inputs lie in [low, high). `outputs` is rounded up to a multiple of
eight (coefficients zero). Sums are scaled by 2^precision. For IOF_NEAREST and for axes that change nothing there are
no coefficients: taps = 0 and `start` is the pixel to copy. */
typedef struct {
  int outputs, taps, precision;
  int low, high;
  int32_t *start;
  int32_t *count;
  int16_t *coef;
  iof_buffer memory;
} iof_axis;

/* The interval [from, to) of an axis of `size` inputs becomes `virtual_size` outputs; `outputs` of them are wanted from
`first` on, in reverse where `reverse`. */
typedef struct {
  double from, to;
  int low, high; /* inputs that may be used: the region, in whole pixels */
  int virtual_size, first, outputs, reverse;
} iof_span;

/* Fill `axis`; `scratch` is for the weights before they are quantised. IOF_MEMORY or IOF_OK. */
iof_status iof_axis_make(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch);

/* See the axis from the other end of an image of `size` pixels: inputs i become size - 1 - i. */
void iof_axis_mirror(iof_axis *axis, int size);

/* Where the result of a resample goes: pixel (column i, row j) at data + i * x_stride + j * y_stride. */
typedef struct {
  uint8_t *data;
  int64_t x_stride, y_stride, channel_stride;
} iof_target;

/* The pixel loops, once for each instruction set; all give the same bits.

vertical_first   dst[x] = sum_k rows[k][x] * coef[k] >> shift, clipped to [0, 255 << IOF_FRACTION], n bytes
horizontal       dst pixel i = the axis applied to an int16 RGBX row, clipped to [0, limit], int16 RGBX or uint8 RGB
vertical_last    dst[x] = the same on int16 rows, to uint8 */
typedef struct {
  void (*vertical_first)(const uint8_t *const *rows, const int16_t *coef, int taps, int n, int shift, int16_t *dst);
  void (*horizontal_rgb)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst);
  void (*horizontal_wide)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst);
  void (*vertical_last)(const int16_t *const *rows, const int16_t *coef, int taps, int n, int shift, uint8_t *dst);
  const char *name;
} iof_loops;

#define IOF_FRACTION 6 /* bits below the 8 of a pixel between the two passes: 14 bits in all */

const iof_loops *iof_loops_best(void);
extern const iof_loops iof_loops_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
extern const iof_loops iof_loops_avx2;
#endif

typedef struct {
  iof_axis x, y;
  iof_buffer weights, rows, row, wide, pairs;
} iof_resampler;

/* Apply the two axes (in stored coordinates) to `pixels`. `horizontal_first` matters for filters with negative lobes:
Pillow clips between the passes, so the order is part of the result. */
iof_status iof_resample(iof_resampler *r, const iof_pixels *pixels, const iof_target *target, int horizontal_first);
void iof_resampler_free(iof_resampler *r);

/* libjpeg behind three calls. `open` reads the header; `region` decodes at least [x0, x1) x [y0, y1) of the image scaled
by 1/denominator; any failure leaves the decoder ready for the next `open`. */
typedef struct iof_jpeg iof_jpeg;
iof_jpeg *iof_jpeg_new(void);
void iof_jpeg_free(iof_jpeg *jpeg);
iof_status iof_jpeg_open(iof_jpeg *jpeg, const uint8_t *data, size_t length, int *width, int *height, int *components);
iof_status iof_jpeg_region(iof_jpeg *jpeg, const int32_t rect[4], int denominator, int strict, iof_pixels *pixels);
iof_status iof_jpeg_encode(iof_jpeg *jpeg, const uint8_t *rgb, const iof_recipe *recipe, int gray,
                           const uint8_t **encoded, size_t *encoded_length);

#endif
