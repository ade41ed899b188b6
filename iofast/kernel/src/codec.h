/* Shared by jpeg.c (decoding) and encode.c only: libjpeg's objects and their error handling. */
#ifndef IOFAST_CODEC_H
#define IOFAST_CODEC_H

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs FILE */

#include <jpeglib.h>

#include <jerror.h>

#include "internal.h"

#if JPEG_LIB_VERSION >= 70 /* as of Ubuntu's headers: two names for what libjpeg-turbo always has equal */
#define DCT_scaled_size DCT_v_scaled_size
#define min_DCT_scaled_size min_DCT_v_scaled_size
#endif

/* Errors of all objects jump to `escape`: every caller of libjpeg calls setjmp first and returns `failure`. */
struct iof_jpeg {
  struct jpeg_decompress_struct decompress;
  struct jpeg_decompress_struct reader; /* of a JPEG whose coefficients are written again */
  struct jpeg_compress_struct compress;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  struct jpeg_destination_mgr destination;
  jmp_buf escape;
  iof_status failure;  /* set by error_exit */
  iof_status warning;  /* the worst of libjpeg's warnings */
  int strict;          /* such a warning ends the decode */
  iof_buffer pixels, encoded, rows;
  JHUFF_TBL tables[4];    /* of the image being encoded: DC and AC of luma, then of chroma */
  JHUFF_TBL *standard[4]; /* the standard's, in the same order; libjpeg's memory */
};

static inline iof_jpeg *owner(j_common_ptr info) { return info->client_data; }

/* Keep libjpeg's initial tables. Jumps to `escape` if memory is short. */
void iof_jpeg_prepare_encoder(iof_jpeg *jpeg);

/* Whether a progressive image, whose scans have been read, lacks bits of a coefficient. libjpeg smooths the blocks of
such an image. */
int iof_lacks_scans(const struct jpeg_decompress_struct *d);

#endif
