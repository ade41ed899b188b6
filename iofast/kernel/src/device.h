/* A decoder for a GPU, from JPEGs with restart markers to a finished batch.

    iof_device_read    host: a payload becomes a record: tables, places of its segments, the scan without stuffing
    iof_device_place   host: the work that a box needs, and its places in the device's memory
    stages             device: a thread for each output of an axis, restart segment, block, or pixel; for the steps
                       of iof_work a group of threads for each image (device_steps.h)

The stages are functions of a batch, an image and a thread's number. Compiled by NVRTC they are kernels; on the host
each thread is a turn of a loop. Pixels equal those of iof_decode_batch bit for bit. A stage that finds damage says so in
`status`, and the image belongs to iof_decode_batch.

Bounds: `place` computes every size from a header that `read` has checked. Segments, columns and rows are clamped to
them, and IOF_OVERREAD bytes that damaged codes may read follow the last record. */
#ifndef IOFAST_DEVICE_H
#define IOFAST_DEVICE_H

#include "codes.h"
#include "iofast.h"

#define IOF_DEVICE_TAPS 16 /* of an axis */
#define IOF_DEVICE_BLUR 128 /* at least the most weights of a blur */
#define IOF_DEVICE_TABLES 64 /* different Huffman tables of all images */

/* An image in device memory. If `components` is 0, raw pixels RGB at `place`, else a JPEG with the record
at `place`: uint16_t quant[3][64], uint32_t begin[segments + 1], and from the
next multiple of 16 bytes on the scan, to which `begin` refers. */
typedef struct {
  uint64_t place; /* a multiple of 16 */
  uint32_t scan, segments;
  int32_t width, height, components, h, v, across, down, restart;
  int32_t dc[3], ac[3]; /* numbers of its tables */
} iof_device_file;

typedef struct {
  iof_device_file file;
  int32_t x0, y0, x1, y1, virtual_w, virtual_h, x, y; /* the box, upright */
  int32_t flip, exif, aliased;
  int32_t refused; /* not decoded: 0, or 1 + the number of its pixels in `given`, if there are any */
  int32_t left, top, right, bottom; /* the stored pixels that it needs */
  int32_t mcu_x0, mcu_y0, mcu_x1, mcu_y1;
  int32_t first, in_row, step, segments; /* segment t: first + t / in_row * step + t % in_row */
  int32_t fours[3], blocks;
  uint64_t coefs, samples, pixels; /* the first of each */
} iof_device_image;

/* Weights of a blur, `wide` and `high` of them. */
typedef struct {
  int32_t wide, high;
  uint16_t across[IOF_DEVICE_BLUR], down[IOF_DEVICE_BLUR];
} iof_device_blur;

/* A batch: all memory is the device's. Without a canvas there are no steps, erasings or partners. */
typedef struct {
  const iof_device_image *images;
  const uint8_t *jpegs;
  const iof_codes *codes;
  int16_t *coefs;
  uint8_t *samples;
  uint32_t *pixels;                  /* RGBX */
  int32_t *taps;                     /* [images][2]: x, y of the stored image; zero at first */
  int32_t *starts, *counts;          /* [images][2][room] */
  int16_t *weights;                  /* [images][2][IOF_DEVICE_TAPS][room] */
  int32_t *status;                   /* [images]: zero at first, else a bit for each reason */
  int32_t *moved;                    /* [images]: whether the steps ended in `other`; zero at first */
  uint32_t *canvas, *other;          /* [images][height][width] RGBX */
  uint16_t *rows;                    /* [images][3][height][width]: of blurs */
  const iof_device_blur *blurs;
  const int32_t *blurred; /* [images][steps]: number of a blur */
  const uint8_t *given;   /* pixels [...][height][width][3], with strides */
  uint8_t *out;
  int64_t given_row, given_y, given_x, given_channel;
  int64_t row_stride, y_stride, x_stride, channel_stride; /* in bytes */
  iof_work work;
  iof_mix mix; /* partners may be NULL */
  int32_t count, room, width, height, type;
} iof_device_batch;

enum { IOF_DEVICE_DAMAGED = 1, IOF_DEVICE_WIDE = 2 /* no error: sums of 32 bits */ };
enum { IOF_DEVICE_STAGES = 8 };

#ifndef __CUDACC__
#include <stdatomic.h>

/* The Huffman tables of all records: the first `count` are valid. */
typedef struct {
  _Atomic int32_t count;
  atomic_flag busy;
  int32_t ac[IOF_DEVICE_TABLES];
  iof_codes codes[IOF_DEVICE_TABLES];
} iof_device_tables;

/* Record i goes to bytes + places[i] and ends before places[i + 1]; places are multiples of 16. */
typedef struct {
  uint8_t *bytes;
  const int64_t *places;
  iof_device_tables *tables;
} iof_device_arena;

/* What is wanted of each file: as in iof_decode_batch. */
typedef struct {
  const iof_box *boxes;
  const uint8_t *flips, *orientations;
  int32_t filter, clip, width, height;
} iof_device_wish;

/* The memory of a batch, in coefficients (as many as samples) and pixels; the most segments, blocks and pixels of an
image. */
typedef struct {
  uint64_t coefs, pixels;
  int32_t threads[3];
} iof_device_sizes;

/* Make the records of rows [start, stop). A row with a status is iof_decode_batch's: not baseline, without markers,
damaged ones, more than the room, or too many different tables. */
void iof_device_read(iof_context *context, const iof_source *source, const iof_device_arena *to, iof_device_file *files,
                     int32_t *status, int64_t start, int64_t stop);
void iof_device_place(const iof_device_wish *wish, const iof_device_file *files, iof_device_image *images, int64_t count,
                      iof_device_sizes *sizes);
/* The blurs among a batch's steps: their weights, and their numbers in `blurred`. Returns how many; at most `room`. */
int64_t iof_device_blurs(const iof_work *work, int64_t count, iof_device_blur *blurs, int64_t room, int32_t *blurred);
/* A stage on the host, of `threads` for each image: each is a turn of a loop, in an order that means nothing. */
void iof_device_run(const iof_device_batch *batch, int stage, int threads);
#endif
#endif
