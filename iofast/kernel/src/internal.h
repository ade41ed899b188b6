/* Declarations shared by the kernel's files. They are not part of the contract in iofast.h. */
#ifndef IOFAST_INTERNAL_H
#define IOFAST_INTERNAL_H

#include "iofast.h"
#include "scalar.h"

/* Memory that only grows; it belongs to the context. */
typedef struct {
  void *data;
  size_t size;
} iof_buffer;

/* Returns at least `size` bytes, 64-aligned, without the old contents; NULL if memory is short. */
void *iof_reserve(iof_buffer *buffer, size_t size);

/* Read `length` bytes at `offset` of the file. IOF_SHORT if the file ends before, IOF_READ if it cannot be read (see
errno). */
iof_status iof_read_bytes(int fd, uint64_t offset, size_t length, uint8_t *to);

static inline int iof_divided_up(int size, int by) { return (size + by - 1) / by; }

/* Add the time since the last lap to `stage`. */
void iof_clock_start(iof_counters *counters);
void iof_clock_lap(iof_counters *counters, iof_stage stage);

/* Count an image. Only the decoding thread writes; others may read at the same time. */
static inline void iof_count(iof_counters *counters, iof_way way) {
  __atomic_store_n(&counters->images[way], counters->images[way] + 1, __ATOMIC_RELAXED);
}

/* Decoded pixels: `width` x `height` of the stored image from (x, y) on, as RGBX. If `row` is not NULL, rows are made
on request instead: row y of the image as three planes, `plane` bytes apart, each byte ^ IOF_ROW_FLIP. */
#define IOF_ROW_FLIP 0x80 /* the resampler's first product needs signed bytes */
typedef struct {
  uint8_t *pixels;
  size_t stride;
  int x, y, width, height;
  void (*row)(void *source, int y, uint8_t *planes, size_t plane);
  void *source;
} iof_pixels;

/* The interval [from, to) of an axis is resampled to `virtual_size` outputs. `outputs` of them are wanted, from `first`
on, in reverse order if `reverse`. If `exact`, weights are Pillow's, and the interval is counted from `low`, in single
precision. */
typedef struct {
  double from, to;
  int low, high; /* inputs that may be used: the region, in whole pixels */
  int virtual_size, first, outputs;
  int16_t reverse, exact;
} iof_span;

/* One axis of the resample: output i is the sum over its taps k of `coef[i * taps + k]` * input `start[i] + k`.

`taps` is even, and `coef` is zero after `count[i]`. Inputs lie in [low, high). The arrays are padded to a multiple of
eight outputs with coefficients of zero. Sums are scaled by 2^precision; it is IOF_PRECISION for `positive` axes
(filters without negative lobes) of few taps. Above IOF_PRECISION_32, sums of 14-bit inputs need more than 32 bits. An
exact axis has `exact` instead of `coef`, scaled by 2^IOF_EXACT_PRECISION, and NULL in `coef`. If `copies`, each output is one input: IOF_NEAREST, and axes that change nothing. */
typedef struct {
  int outputs, taps, precision;
  int low, high;
  int copies, positive;
  int32_t *start;
  int32_t *count;
  int16_t *coef;
  int32_t *exact;
  iof_buffer memory;
  iof_span made; /* the span it was made for; no outputs: none */
  int filter;
  unsigned serial; /* version of the contents: tables made from them are valid while it is the same */
} iof_axis;

#define IOF_PRECISION 14
#define IOF_PRECISION_32 16
#define IOF_EXACT_PRECISION 22

/* Fill `axis` unless it has been made for this span already. `scratch` is for the weights before quantisation. Returns
IOF_MEMORY or IOF_OK. */
iof_status iof_axis_make(iof_axis *axis, const iof_span *span, int filter, iof_buffer *scratch);

/* Mirror the axis in an image of `size` pixels: inputs i become size - 1 - i. */
void iof_axis_mirror(iof_axis *axis, int size);

/* An EXIF orientation: whether the image is stored on its side, and which upright axes run backwards. */
typedef struct {
  int turned, mirror_x, mirror_y;
} iof_orientation;
iof_orientation iof_orientation_of(int exif);

/* Destination of a resample: pixel (column i, row j) is at data + i * x_stride + j * y_stride. */
typedef struct {
  uint8_t *data;
  int64_t x_stride, y_stride, channel_stride;
} iof_target;

/* Tables of the short horizontal loop. Outputs are in blocks, and a block in groups that see one window of samples. For
each output, `pick` has two bytes: the places in its group's window of the two samples of its first pair of taps. Later
pairs are two, four... samples on. For each block and pair of taps, `weights` has the upper 7 or 8 bits of the weights
in the order of `pick`, then the lower 7. */
typedef struct {
  const iof_axis *axis;
  const int32_t *first; /* first sample of each group's window, counted from axis->low */
  const uint8_t *pick, *weights;
} iof_windows;

/* Destination of the short vertical loop: a row of `n` samples of each channel, channel c at to + c *
channel_stride. */
typedef struct {
  uint8_t *to;
  int64_t channel_stride;
  int channels, n;
} iof_strip;

/* The loops in sums of 16 bits, for positive axes with small changes of size (resample_short.c defines the results).
There is one set for each instruction set; all give the same bits. Rows and dst have room after their end.

split       n pixels RGBX to three planes, each byte ^ flip
horizontal  the axis applied to `channels` rows of samples ^ 0x80, `plane` bytes apart; rows of dst are IOF_SHORT_PLANE
            words apart
vertical    rows of `horizontal` to bytes; nothing is written after the strip's n samples
interleave  n pixels from three planes to RGB; nothing is written after them */
typedef struct {
  void (*split)(const uint8_t *rgbx, int n, int flip, uint8_t *planes, size_t plane);
  void (*horizontal)(const iof_windows *windows, const uint8_t *row, size_t plane, int channels, int16_t *dst);
  void (*vertical)(const int16_t *const *rows, const int16_t *coef, int taps, const iof_strip *strip);
  void (*interleave)(const uint8_t *planes, size_t plane, int n, uint8_t *rgb);
  int block, group; /* in outputs; a window has two samples per output of a group. 0: `horizontal` reads the axis itself */
} iof_short_loops;

/* Tables of the exact horizontal loop, for the vector loops. PAIRS: axes of two taps without negative weights, blocks of
32 outputs in groups of eight that see a window of 16 samples: `pick` as in iof_windows; for each block `bytes` has three
parts of the weights in the order of `pick` (bits 14 on, 7 bits, 7 bits), and `words` by how much the sum of an output's
weights exceeds one. WINDOWS: groups of eight in the same way, with any number of taps, whose weights are in `words`: for
each group and pair of taps 15 bits of each weight, then those above. SINGLES: for each output, `taps` of the one, then of
the other; `first` is its first sample. */
typedef enum { IOF_EXACT_PAIRS, IOF_EXACT_WINDOWS, IOF_EXACT_SINGLES } iof_exact_kind;
typedef struct {
  const iof_axis *axis;
  iof_exact_kind kind;
  size_t taps;          /* even; of SINGLES a multiple of 16 */
  const int32_t *first; /* counted from axis->low */
  const uint8_t *pick, *bytes;
  const int16_t *words;
} iof_exact_table;

/* The loops of exact axes (resample_exact.c). Samples are bytes ^ 0x80, and results bytes ^ flip.

horizontal  the axis applied to three rows of samples, `plane` bytes apart; results are `to_plane` bytes apart and may be
            written up to there
vertical    rows of three planes, `plane` bytes apart, to a strip */
typedef struct {
  void (*horizontal)(const iof_exact_table *table, const uint8_t *row, size_t plane, int flip, uint8_t *to, size_t to_plane);
  void (*vertical)(const uint8_t *const *rows, size_t plane, const int32_t *coef, int taps, int flip, const iof_strip *strip);
  int vectors; /* whether `horizontal` needs more of the table than its axis */
} iof_exact_loops;

/* The loops in sums of 32 bits, for any filter and reduction (resample.c); again one set for each instruction set. The
scalar ones have sums of 64 bits, for axes above IOF_PRECISION_32.

vertical_first     dst[x] = sum_k rows[k][x] * coef[k] >> shift, clipped to [0, 255 << IOF_FRACTION], n bytes
horizontal         dst pixel i = the axis applied to an int16 RGBX row, clipped to [0, limit], int16 or uint8 RGBX
horizontal_spread, spread_wide  horizontal_rgbx and _wide for axes whose neighbouring outputs see neighbouring inputs
                   (iof_spread), or NULL
horizontal_gray    the same for rows of one channel, to uint8
vertical_last      like vertical_first, from int16 rows to uint8 */
typedef struct {
  void (*vertical_first)(const uint8_t *const *rows, const int16_t *coef, int taps, int n, int shift, int16_t *dst);
  void (*horizontal_rgbx)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst);
  void (*horizontal_wide)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst);
  void (*horizontal_spread)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst);
  void (*spread_wide)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, int16_t *dst);
  void (*horizontal_gray)(const int16_t *row, const iof_axis *axis, const int32_t *pairs, int shift, uint8_t *dst);
  void (*vertical_last)(const int16_t *const *rows, const int16_t *coef, int taps, int n, int shift, uint8_t *dst);
  const iof_short_loops *shorts;
  const iof_exact_loops *exact;
  const char *name; /* the result of iof_simd; AVX-512 has one name, with VBMI or without */
} iof_loops;

#define IOF_SHORT_PLANE(outputs) (((size_t)(outputs) + 63) & ~(size_t)63)

#define IOF_SPREAD 8 /* inputs that four neighbouring outputs may see for one pair of taps: 64 bytes of RGBX */

/* The argument `pairs` of horizontal_spread, for each four outputs: the 32 words to pick from eight pixels, the first
of these pixels, then 16 coefficients for each pair of taps. */
typedef struct {
  const uint16_t *words;
  const int32_t *first;
  const int32_t *coefs;
} iof_spread;
static inline iof_spread iof_spread_of(const int32_t *pairs, int outputs) {
  size_t fours = ((size_t)outputs + 7) / 8 * 2;
  return (iof_spread){(const uint16_t *)pairs, pairs + 16 * fours, pairs + 16 * fours + ((fours + 15) & ~(size_t)15)};
}

const iof_loops *iof_loops_best(void);
extern const iof_loops iof_loops_scalar;
extern const iof_short_loops iof_short_scalar;
extern const iof_exact_loops iof_exact_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
#define IOF_X86
extern const iof_loops iof_loops_avx2, iof_loops_avx512, iof_loops_vbmi;
extern const iof_short_loops iof_short_avx2, iof_short_vbmi;
extern const iof_exact_loops iof_exact_avx2;
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__AARCH64EB__)
#define IOF_NEON
extern const iof_loops iof_loops_neon;
extern const iof_short_loops iof_short_neon;
#endif

typedef enum { IOF_NO_TABLE, IOF_PAIRS, IOF_SPREADS, IOF_EIGHTS, IOF_WINDOWS, IOF_EXACTS } iof_table;

typedef struct {
  iof_axis x, y;
  iof_buffer weights, rows, row, wide, split, table;
  iof_table kind;         /* contents of `table` */
  unsigned serial;        /* of the x axis that `table` was made from */
  const iof_loops *loops; /* chosen with the context, under the GIL: getenv is not safe during a setenv */
} iof_resampler;

/* Apply the two axes (in stored coordinates) to `pixels`. `horizontal_first` matters for filters with negative lobes:
Pillow clips between the passes, so their order is part of the result. It is for exact axes too. For other filters the geometry alone decides: the
horizontal pass first, if sums of 16 bits suffice; else the vertical one, which leaves less work to the other. */
iof_status iof_resample(iof_resampler *r, const iof_pixels *pixels, const iof_target *target, int horizontal_first);
void iof_resampler_free(iof_resampler *r);

/* One colour component: `width` x `height` samples that represent `across` x `down` samples of the image (the last
chroma sample of an odd image is only half used). */
typedef struct {
  uint8_t *samples;
  size_t stride;
  int width, height;
  double across, down;
} iof_plane;

/* Return room for the x axis's table of this kind. `made` is set if it still has this table, from an image with the
same axis. */
void *iof_table_room(iof_resampler *r, iof_table kind, size_t size, int *made);

/* Whether both passes fit sums of 16 bits: a function of the geometry alone, so that pixels depend on no machine or
batch. */
int iof_fits_short(const iof_resampler *r);
int iof_takes_rows(const iof_resampler *r); /* whether these axes accept pixels with `row` */

/* The passes in sums of 16 bits, horizontal first. */
typedef struct {
  const uint8_t *data; /* first byte of the axes' first pixel */
  size_t stride;
  int channels; /* 3: RGBX, 1: one plane */
  const iof_pixels *rows; /* not NULL: the source of rows, of 3 channels */
} iof_origin;
iof_status iof_resample_short(iof_resampler *r, const iof_origin *from, const iof_target *target);

/* The passes of Pillow's arithmetic, unless both axes copy. */
iof_status iof_resample_exact(iof_resampler *r, const iof_pixels *pixels, const iof_target *target, int horizontal_first);
/* Whether two weights fit sums of 16 bits: neither negative nor one, and together one but for their roundings. */
int iof_is_pair(const int32_t weights[2]);
static inline int iof_is_exact(const iof_resampler *r) { return r->x.exact || r->y.exact; }

/* Whether each `group` neighbouring outputs see a window of twice as many samples, for one pair of taps. */
int iof_sees_windows(const iof_axis *axis, int group);

/* Store a row of `n` RGB pixels, given in planes, in the target. */
void iof_put_row(const iof_short_loops *loops, const uint8_t *planes, size_t plane, int n, uint8_t *at, const iof_target *target);

/* Apply the two axes to one plane; output (column i, row j) goes to data + i * x_stride + j * y_stride. */
iof_status iof_resample_plane(iof_resampler *r, const iof_plane *plane, const iof_target *target);

/* Convert n pixels in place. */

/* libjpeg in three calls. `open` reads the header. `region` decodes at least [x0, x1) x [y0, y1) of the image scaled by
1/denominator. After any failure the decoder is ready for the next `open`. */
typedef struct iof_jpeg iof_jpeg;
typedef struct {
  const uint8_t *data; /* in the encoder's buffer, valid until the next image is encoded */
  size_t length;
} iof_encoded;
iof_jpeg *iof_jpeg_new(void);
void iof_jpeg_free(iof_jpeg *jpeg);
iof_status iof_jpeg_open(iof_jpeg *jpeg, const uint8_t *data, size_t length, int *width, int *height, int *components);
iof_status iof_jpeg_region(iof_jpeg *jpeg, const int32_t rect[4], int denominator, int strict, iof_pixels *pixels);
/* Rows of `count` interleaved channels: 3 = RGB, 1 = gray. */
iof_status iof_jpeg_encode(iof_jpeg *jpeg, const uint8_t *pixels, int count, const iof_recipe *recipe, iof_encoded *encoded);

/* The same without colour conversion and chroma resampling: the planes as stored, 1 or 3. After `open`, `planar`
returns their number, or 0 if the image must be decoded by `region`. Planes to be encoded must have room for whole iMCUs
after their last row and column. */
int iof_jpeg_planar(const iof_jpeg *jpeg);
iof_status iof_jpeg_planes(iof_jpeg *jpeg, int denominator, int strict, iof_plane planes[3]);
iof_status iof_jpeg_encode_planes(iof_jpeg *jpeg, const iof_plane *planes, int count, const iof_recipe *recipe,
                                  iof_encoded *encoded);

/* Write the coefficients of a JPEG sequentially: no pixel changes, and every APPn and COM marker stays. IOF_UNSUPPORTED
if one baseline scan cannot represent them, or if scans are missing. */
iof_status iof_jpeg_rewrite(iof_jpeg *jpeg, const uint8_t *data, size_t length, const iof_rewriting *how,
                            iof_encoded *encoded);

#endif
