/* Raw pixels: the bytes of a payload that a crop needs, their conversion to RGBX, and back for packing.

A payload is RGB (rows of R G B) or I420 (planes Y, Cb, Cr; chroma halved both ways, BT.601, full range). The arithmetic
of I420 is libjpeg's in both directions, so the planes of a 4:2:0 JPEG give the pixels of the JPEG.

`iof_raw_check` compares the index's data about a payload with its length; the functions after it trust both. Their
`raw` is the stored image: width and height are exchanged if it is stored on its side. */
#ifndef IOFAST_RAW_H
#define IOFAST_RAW_H

#include "region.h"

iof_status iof_raw_check(const iof_raw *raw, uint64_t length, uint64_t max_pixels);
size_t iof_raw_length(const iof_raw *raw);

/* Rows [y0, y1) of the image, and the rows of chroma [c0, c1) that they need; unused for RGB. */
typedef struct {
  int y0, y1, c0, c1;
} iof_rows;
iof_rows iof_raw_rows(const iof_raw *raw, int y0, int y1);

/* The bytes of `rows` as one run or three; returns their number. */
typedef struct {
  uint64_t offset; /* in the payload */
  size_t length;
} iof_run;
int iof_raw_runs(const iof_raw *raw, const iof_rows *rows, iof_run runs[3]);

/* Convert `rect` of the payload `data`, which needs to contain only those runs. No byte after it is read. With
`by_rows` the pixels may be rows that are made on request, from `data` and memory of the unpacker. */
typedef struct {
  const iof_block_loops *loops;
  iof_counters *counters;
  iof_raw raw;
  const uint8_t *data;
  int32_t rect[4];
  int tail;                    /* rows from here on are made from copies, which have room after them */
  iof_colouring upper, lower; /* before `tail`, and from it on */
  iof_buffer pixels, copies, rows, tail_rows;
} iof_unpacker;
iof_status iof_raw_region(iof_unpacker *unpacker, const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int by_rows,
                          iof_pixels *pixels);
void iof_unpacker_free(iof_unpacker *unpacker);

/* Convert RGB to an I420 payload: the first part of the `iof_yuv_room` bytes at `yuv`. */
size_t iof_yuv_room(int width, int height);
void iof_yuv_of_rgb(const uint8_t *rgb, int width, int height, uint8_t *yuv);

#endif
