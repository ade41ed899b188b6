/* Raw pixels: the bytes of a payload that a crop needs, and their conversion to RGBX. A payload has rows of R G B.

`iof_raw_check` compares the index's data about a payload with its length; the functions after it trust both. Their
`raw` is the stored image: width and height are exchanged if it is stored on its side. */
#ifndef IOFAST_RAW_H
#define IOFAST_RAW_H

#include "region.h"

iof_status iof_raw_check(const iof_raw *raw, uint64_t length, uint64_t max_pixels);
size_t iof_raw_length(const iof_raw *raw);

/* The bytes of the rows [y0, y1) of an image. */
typedef struct {
  uint64_t offset; /* in the payload */
  size_t length;
} iof_run;
iof_run iof_raw_run(const iof_raw *raw, int y0, int y1);

/* Convert `rect` of the payload `data`, which needs to contain only those rows. No byte after it is read. With
`by_rows` the pixels may be rows that are made on request, from `data` and memory of the unpacker. */
typedef struct {
  const iof_block_loops *loops;
  iof_counters *counters;
  iof_raw raw;
  const uint8_t *data;
  int32_t rect[4];
  iof_buffer pixels;
} iof_unpacker;
iof_status iof_raw_region(iof_unpacker *unpacker, const iof_raw *raw, const uint8_t *data, const int32_t rect[4], int by_rows,
                          iof_pixels *pixels);
void iof_unpacker_free(iof_unpacker *unpacker);

#endif
