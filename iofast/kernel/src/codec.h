/* What jpeg.c (decoding) and encode.c share: libjpeg's two objects and the way out of an error. Nobody else includes it. */
#ifndef IOFAST_CODEC_H
#define IOFAST_CODEC_H

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h wants FILE */

#include <jpeglib.h>

#include <jerror.h>

#include "internal.h"

/* Errors of both objects jump to `escape`: every caller of libjpeg calls setjmp first and returns `failure`. */
struct iof_jpeg {
  struct jpeg_decompress_struct decompress;
  struct jpeg_decompress_struct reader; /* of a JPEG that is written again */
  struct jpeg_compress_struct compress;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  struct jpeg_destination_mgr destination;
  jmp_buf escape;
  iof_status failure;  /* set by error_exit */
  iof_status warning;  /* the worst thing libjpeg only warned of */
  int strict;          /* such a warning ends the decode */
  iof_buffer pixels, encoded, rows;
  JHUFF_TBL tables[4];    /* of the image being encoded: DC and AC of luma, then of chroma */
  JHUFF_TBL *standard[4]; /* those of the standard, in the same order; libjpeg's memory */
};

static inline iof_jpeg *owner(j_common_ptr info) { return info->client_data; }

/* Take note of the tables that libjpeg begins with. Jumps to `escape` where memory is short. */
void iof_jpeg_prepare_encoder(iof_jpeg *jpeg);

/* Of an image whose scans were read: a progressive one that has not all bits of each coefficient. libjpeg smooths its blocks. */
int iof_lacks_scans(const struct jpeg_decompress_struct *d);

#endif
