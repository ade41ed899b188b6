/* Work on a decoded image: steps on bytes, then the store into the batch.

The image is in the context as three planes of bytes. Steps on single pixels run tile by tile, in integers of 16 bits.
tile_loops.h is plain C that is compiled once for each instruction set, and the compiler vectorises it. Integers are the
same everywhere, so all sets give the same bits without comparing them by hand. */
#ifndef IOFAST_PIXELS_H
#define IOFAST_PIXELS_H

#include "internal.h"
#include "levels.h"

#define IOF_TILE 1024 /* pixels: 6 KiB of 16 bits in three channels, a fifth of the first-level cache */

#define IOF_SLACK 320 /* bytes, or samples, that filters may read after a row */

/* Three planes, `plane` bytes apart, rows without gaps. `plane` is a multiple of IOF_TILE, so that a tile may reach
beyond the last pixel. There are IOF_SLACK bytes before the first plane and after the last. */
typedef struct {
  uint8_t *planes;
  size_t plane;
  int width, height;
} iof_canvas;

/* One channel of a row of an image, and the rows next to it: the input of sharpness. */
typedef struct {
  const uint8_t *above, *row, *below;
} iof_three_rows;

/* A row of a warp: pixel i comes from ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / ...) - `back`, where x is i
+ 0.5, y the middle of the row and `m` = a to h. The image is `width` x `height`, its frame has `stride` pixels per
row. */
typedef struct {
  const float *m;
  float y, back, width, height;
  int32_t stride;
} iof_map_row;

/* Input of `between`: pixels of a frame, and the results of `places`. */
typedef struct {
  const uint32_t *frame;
  const int32_t *place, *across, *down;
  int32_t stride;
} iof_frame_row;

/* A row of Pillow's affine transform. The frame has `stride` pixels per row: IOF_OUTSIDE rows of the outside's colour, then the
image with its outermost pixels repeated IOF_RIM times on each side; pixel (x, y) is at `first` + y * stride + x. `m` are the
six numbers, y the middle of the row; sources are pixels of `width` x `height`. */
#define IOF_RIM 2
#define IOF_OUTSIDE 4
#define IOF_BEYOND -5 /* a line of the outside, with those that a filter reads around it */
typedef struct {
  const uint32_t *frame;
  double m[6], y, width, height;
  int32_t stride, first;
} iof_affine_row;

/* What `affine_places` finds for each pixel of a row: the place of the pixel up and left of its source, and the distances
from it. */
typedef struct {
  int32_t *place;
  double *across, *down;
} iof_affine_places;

/* The rows of one step of a box filter down: `leaves` and `enters` change the sums, and the two farthest rows, `above` and
`below`, count by `far` instead of `near`. */
typedef struct {
  const uint8_t *leaves, *enters, *above, *below;
  uint32_t near, far;
} iof_box_rows;

/* The loops of tile_loops.h. A tile is IOF_TILE samples of 16 bits for each channel, one channel after another.

widen, narrow  IOF_TILE bytes to samples of 16 bits, and back
line         samples x of one channel to iof_line's v
saturation   blend of a tile with its gray values, by line's factor and bits
hue          the hue of a tile turned by `shift` / 8192 sixths of the circle
on_...       a step of level_steps.h
gray_sum     the sum of the gray values of a tile's first n pixels
range        the least and the largest of n samples
sharpen      n pixels of a row blended with the weighted mean of their 3 x 3 neighbours
blur_down    n samples of 8 bits of fraction: the weighted sum of `taps` rows
blur_across  n pixels: the weighted sum of `taps` neighbours from `row` on, of samples with 8 bits of fraction; `sums` is
             scratch
places       the sources in iof_warp's frame of the pixels of a row: the upper left of four pixels, and the distance
             from it in 2048ths; or the nearest pixel, without `across` and `down`
join         n pixels of three planes as RGBX
nearest      n pixels RGBX of a frame at their places
between      the same, interpolated between four pixels
split        n pixels RGBX to three planes
mix          n bytes: from + factor * (to - from) in single precision, clipped and rounded towards 0
smooth       n pixels of a row: the weighted mean of their 3 x 3 neighbours, as in sharpen
turn_hue     n pixels of three planes: Pillow's bytes of hue, saturation and value, `shift` added to the hue, and back
affine_...   n pixels of an affine transform of Pillow's: see pillow_affine.c
box_rows     n bytes of a box filter down: see pillow_steps.c
luma         n bytes 0.299 R + 0.587 G + 0.114 B
mirror       n bytes in reverse order
weave        n values of 1, 2 or 4 bytes of each of three channels, interleaved
scale        n bytes to x * scale + bias
half, brain  n floats to float16 and bfloat16, rounded to even */
typedef struct {
  void (*widen)(const uint8_t *from, int16_t *tile);
  void (*narrow)(const int16_t *tile, uint8_t *to);
  void (*line)(int16_t *samples, const iof_line *line);
  void (*saturation)(int16_t *tile, const iof_line *line);
  void (*hue)(int16_t *tile, int16_t shift);
#define IOF_LOOP(name, ...) void (*on_##name)(int16_t *samples, int16_t a, int16_t b);
  IOF_LEVEL_STEPS(IOF_LOOP)
#undef IOF_LOOP
  uint32_t (*gray_sum)(const int16_t *tile, int n);
  void (*range)(const uint8_t *samples, size_t n, uint8_t *least, uint8_t *most);
  void (*sharpen)(const iof_three_rows *from, int n, const iof_line *line, uint8_t *to);
  void (*blur_down)(const uint8_t *const *rows, const uint16_t *weights, int taps, int n, uint16_t *to);
  void (*blur_across)(const uint16_t *row, const uint16_t *weights, int taps, int n, uint16_t *sums, uint8_t *to);
  void (*places)(const iof_map_row *map, int n, int32_t *place, int32_t *across, int32_t *down);
  void (*join)(const uint8_t *r, const uint8_t *g, const uint8_t *b, int n, uint32_t *to);
  void (*nearest)(const uint32_t *frame, const int32_t *place, int n, uint32_t *to);
  void (*between)(const iof_frame_row *from, int n, uint32_t *to);
  void (*split)(const uint32_t *from, int n, uint8_t *to, size_t plane);
  void (*mix)(const uint8_t *from, const uint8_t *own, size_t n, float factor, uint8_t *to);
  void (*smooth)(const iof_three_rows *from, int n, uint8_t *to);
  void (*turn_hue)(uint8_t *planes, size_t plane, size_t n, uint8_t shift);
  void (*affine_fixed)(const iof_affine_row *row, const uint32_t start[2], const uint32_t step[2], int n, int32_t *place);
  void (*affine_places)(const iof_affine_row *row, int n, const iof_affine_places *to);
  void (*affine_linear)(const iof_affine_row *row, const iof_affine_places *at, int n, uint32_t *to);
  void (*affine_cubic)(const iof_affine_row *row, const iof_affine_places *at, int n, uint32_t *to);
  void (*box_rows)(uint32_t *sums, const iof_box_rows *rows, int n, uint8_t *to);
  void (*luma)(const uint8_t *from, size_t plane, size_t n, uint8_t *to);
  void (*mirror)(const uint8_t *from, int n, uint8_t *to);
  void (*weave_1)(const uint8_t *r, const uint8_t *g, const uint8_t *b, int n, uint8_t *to);
  void (*weave_2)(const uint16_t *r, const uint16_t *g, const uint16_t *b, int n, uint16_t *to);
  void (*weave_4)(const uint32_t *r, const uint32_t *g, const uint32_t *b, int n, uint32_t *to);
  void (*scale)(const uint8_t *from, int n, float scale, float bias, float *to);
  void (*half)(const float *from, int n, uint16_t *to);
  void (*brain)(const float *from, int n, uint16_t *to);
} iof_tile_loops;

const iof_tile_loops *iof_tile_loops_best(void);
extern const iof_tile_loops iof_tiles_scalar;
#ifdef IOF_X86
extern const iof_tile_loops iof_tiles_avx2, iof_tiles_avx512;
#endif

/* Scratch of steps and store. */
typedef struct {
  const iof_tile_loops *loops;
  iof_buffer canvas, other, rows, lines;
} iof_painter;
void iof_painter_free(iof_painter *painter);

/* Make room for an image. Returns IOF_MEMORY if memory is short. */
iof_status iof_canvas_make(iof_painter *painter, int width, int height, iof_canvas *canvas);

/* Apply the steps of one image in their order. `canvas` may be at another address afterwards. */
iof_status iof_take_steps(iof_painter *painter, const iof_work *work, int64_t row, iof_canvas *canvas);

/* Filters and changes of geometry of a whole image, from `from` to `to`, which has the same size. */
void iof_sharpen(const iof_tile_loops *loops, const iof_canvas *from, const iof_line *line, uint8_t *to);
iof_status iof_blur(iof_painter *painter, const iof_canvas *from, const float *numbers, uint8_t *to);
iof_status iof_warp(iof_painter *painter, const iof_canvas *from, const float *numbers, int bilinear, uint8_t *to);

void iof_flip(const iof_tile_loops *loops, const iof_canvas *from, int across, int down, uint8_t *to);
iof_status iof_pad(iof_painter *painter, const iof_canvas *from, const float *numbers, uint8_t *to);

/* Apply one of Pillow's operations to the canvas; `to` has its size. */
iof_status iof_pillow_step(iof_painter *painter, int code, const float *numbers, const iof_canvas *from, uint8_t *to);
iof_status iof_affine(iof_painter *painter, const iof_canvas *from, const float *numbers, int code, uint8_t *to);

#define IOF_MOST_TAPS 127 /* of a blur: the roundings of so many still fit 16 bits */

/* Compute a Gaussian in 16 bits without taps that round to nothing. The weights add up to 65536. Returns the number of
taps; 1 = no change. */
int iof_gaussian(float sigma, int radius, uint16_t weights[IOF_MOST_TAPS]);

/* An image after its steps, and its row in the work. */
typedef struct {
  const iof_canvas *canvas;
  int64_t row;
} iof_image;

/* Normalise an image, erase, mix with `partner` unless that is NULL, cast, and store it in the batch. `to` is its row
of `out`. */
iof_status iof_put_image(iof_painter *painter, const iof_work *work, const iof_image *image, const iof_image *partner,
                         const iof_mix *mix, const iof_output *out, uint8_t *to);

#endif
