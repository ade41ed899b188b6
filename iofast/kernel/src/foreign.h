/* Images of other formats, decoded as a whole to RGB by shared libraries that are looked for at run time: PNG by libdeflate
or zlib, WebP by libwebp. Their interfaces are declared here, so that the build needs no headers of theirs.

IOF_UNSUPPORTED means that Pillow must decide: about rare kinds, damage, limits, and metadata that may hold an
orientation. Nothing but IOF_OK and IOF_MEMORY is decided here. */
#ifndef IOFAST_FOREIGN_H
#define IOFAST_FOREIGN_H

#include "internal.h"

/* Decompress `length` bytes of zlib data to exactly `size` bytes, checksum included. Returns 0 unless it succeeds. */
typedef struct {
  void *decompressor; /* libdeflate's */
  iof_buffer packed, rows;
} iof_inflater;
int iof_inflate(iof_inflater *inflater, const uint8_t *data, size_t length, uint8_t *to, size_t size);
int iof_can_inflate(void);
uint32_t iof_crc32(const uint8_t *data, size_t length);
void iof_inflater_free(iof_inflater *inflater);

/* What is known of an image before it is decoded. */
typedef struct {
  int width, height;
  int described; /* it has metadata that may hold an orientation */
  int depth, colour; /* of a PNG */
  const uint8_t *palette;
  int colours;
  size_t first, packed; /* of a PNG: the offset of the first chunk of pixels, and the bytes in all of them */
} iof_foreign;

iof_status iof_png_open(const uint8_t *data, size_t length, iof_foreign *image);
/* Rows [0, rows) to RGB; the others are decompressed, too. */
iof_status iof_png_decode(iof_inflater *inflater, const iof_foreign *image, const uint8_t *data, int rows, uint8_t *rgb);

iof_status iof_webp_open(const uint8_t *data, size_t length, iof_foreign *image);
iof_status iof_webp_decode(const iof_foreign *image, const uint8_t *data, size_t length, uint8_t *rgb);

#endif
