/* Decoding by libjpeg-turbo: open, region and planes. Errors are returned as a status: longjmp stays within this file
and encode.c. */
#include <stdlib.h>
#include <string.h>

#include "codec.h"

#define MAX_SCANS 500 /* more scans of a progressive file are an attack: each scan passes over all pixels */
#define MARGIN 2      /* pixels that fancy upsampling reads beyond an edge: 1, made even like chroma samples */
#define SLACK 64      /* bytes after each row and after the last: vector loads read past the end */
#define NARROW 64     /* below this width a crop saves nothing, and libjpeg upsamples tiny widths differently */

static iof_status status_of_error(int code) {
  switch (code) {
    case JERR_OUT_OF_MEMORY: return IOF_MEMORY;
    case JERR_INPUT_EMPTY:
    case JERR_INPUT_EOF: return IOF_TRUNCATED;
    case JERR_NO_SOI:
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
#if JPEG_LIB_VERSION < 70 /* Ubuntu's headers have the interface of libjpeg 8, which lacks it */
    case JERR_ARITH_NOTIMPL:
#endif
    case JERR_NOT_COMPILED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL: return IOF_UNSUPPORTED;
    case JERR_NOTIMPL: /* coefficients that cannot be rewritten */
    case JERR_MISMATCHED_QUANT_TABLE: return IOF_UNSUPPORTED;
    default: return IOF_CORRUPT;
  }
}

static void error_exit(j_common_ptr info) {
  iof_jpeg *jpeg = owner(info);
  jpeg->failure = status_of_error(info->err->msg_code);
  if (jpeg->failure == IOF_CORRUPT && jpeg->warning == IOF_TRUNCATED) jpeg->failure = IOF_TRUNCATED; /* the real cause */
  longjmp(jpeg->escape, 1);
}

/* Warnings about lost pixels. Extraneous bytes and odd version numbers are harmless and common. */
static void emit_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF: owner(info)->warning = IOF_TRUNCATED; break;
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_NOT_SEQUENTIAL:
      if (!owner(info)->warning) owner(info)->warning = IOF_CORRUPT;
  }
  iof_jpeg *jpeg = owner(info);
  if (jpeg->strict && jpeg->warning) { /* at once, because libjpeg would fill whatever size the header claims */
    jpeg->failure = jpeg->warning;
    longjmp(jpeg->escape, 1);
  }
}

static void output_message(j_common_ptr info) { (void)info; }

static void count_scans(j_common_ptr info) {
  if (info->is_decompressor && ((j_decompress_ptr)info)->input_scan_number > MAX_SCANS) {
    owner(info)->failure = IOF_LIMIT;
    longjmp(owner(info)->escape, 1);
  }
}

static iof_status create(iof_jpeg *jpeg) { /* jpeg_create clears everything but err and client_data */
  jpeg_create_decompress(&jpeg->decompress);
  jpeg_create_compress(&jpeg->compress);
  jpeg->decompress.progress = &jpeg->progress;
  iof_jpeg_prepare_encoder(jpeg);
  return IOF_OK;
}

iof_jpeg *iof_jpeg_new(void) {
  iof_jpeg *volatile jpeg = calloc(1, sizeof *jpeg);
  if (jpeg) {
    jpeg_std_error(&jpeg->errors);
    jpeg->errors.error_exit = error_exit;
    jpeg->errors.emit_message = emit_message;
    jpeg->errors.output_message = output_message;
    jpeg->progress.progress_monitor = count_scans;
    jpeg->decompress.err = jpeg->compress.err = &jpeg->errors;
    jpeg->decompress.client_data = jpeg->compress.client_data = jpeg;
    if (setjmp(jpeg->escape) ? jpeg->failure : create(jpeg)) {
      iof_jpeg_free(jpeg);
      jpeg = NULL;
    }
  }
  return jpeg;
}

void iof_jpeg_free(iof_jpeg *jpeg) {
  if (!jpeg) return;
  jpeg_destroy_decompress(&jpeg->decompress);
  jpeg_destroy_compress(&jpeg->compress);
  free(jpeg->pixels.data);
  free(jpeg->encoded.data);
  free(jpeg->rows.data);
  free(jpeg);
}

static iof_status open_image(iof_jpeg *jpeg, const uint8_t *data, size_t length, int *width, int *height, int *components) {
  struct jpeg_decompress_struct *d = &jpeg->decompress;
  jpeg_create_decompress(d);
  d->progress = &jpeg->progress;
  jpeg_mem_src(d, data, length);
  jpeg_read_header(d, TRUE);
  *width = (int)d->image_width;
  *height = (int)d->image_height;
  *components = d->num_components;
  return *components == 1 || *components == 3 || *components == 4 ? IOF_OK : IOF_UNSUPPORTED;
}

iof_status iof_jpeg_open(iof_jpeg *jpeg, const uint8_t *data, size_t length, int *width, int *height, int *components) {
  /* aborting is not enough: tables would survive, and decode a file that lacks its own */
  jpeg_destroy_decompress(&jpeg->decompress);
  jpeg->warning = jpeg->failure = IOF_OK;
  jpeg->strict = 0; /* the header's warnings are reported with the pixels */
  return setjmp(jpeg->escape) ? jpeg->failure : open_image(jpeg, data, length, width, height, components);
}

int iof_lacks_scans(const struct jpeg_decompress_struct *d) {
  int missing = 0;
  for (int i = 0; i < d->num_components && d->progressive_mode; i++)
    for (int k = 0; k < DCTSIZE2; k++) missing |= d->coef_bits[i][k];
  return missing != 0;
}

/* Crop to columns [x0, x1) with the margin that fancy upsampling needs, beginning at an iMCU's edge as libjpeg
requires. */
static void crop_columns(struct jpeg_decompress_struct *d, int x0, int x1, iof_pixels *pixels) {
  JDIMENSION width = d->output_width;
  int low = x0 - MARGIN, high = x1 + MARGIN;
  if (high - low < NARROW) high = low + NARROW;
  if (high > (int)width) {
    high = (int)width;
    if (high - low < NARROW) low = high - NARROW;
  }
  if (low < 0) low = 0;
  pixels->x = 0;
  pixels->width = (int)width;
  if (width >= 2 * NARROW && high - low < (int)width) {
    JDIMENSION offset = (JDIMENSION)low, wanted = (JDIMENSION)(high - low);
    jpeg_crop_scanline(d, &offset, &wanted);
    pixels->x = (int)offset;
    pixels->width = (int)wanted;
  }
}

/* Pillow's conversion of a CMYK JPEG: Adobe's inverted inks, then (255 - K) * (255 - C) / 255. */
static void cmyk_to_rgbx(uint8_t *p, int n) {
  for (int i = 0; i < n; i++, p += 4) {
    unsigned light = p[3];
    for (int c = 0; c < 3; c++) {
      unsigned product = (255u - p[c]) * light + 128;
      int value = (int)light - (int)((product + (product >> 8)) >> 8);
      p[c] = (uint8_t)(value < 0 ? 0 : value);
    }
    p[3] = 255;
  }
}

static void read_rows(struct jpeg_decompress_struct *d, const iof_pixels *pixels) {
  JSAMPROW rows[16]; /* more than the rows of a row group, which libjpeg returns at a time */
  for (int done = 0; done < pixels->height;) {
    int ask = pixels->height - done < 16 ? pixels->height - done : 16;
    for (int i = 0; i < ask; i++) rows[i] = pixels->pixels + (size_t)(done + i) * pixels->stride;
    done += (int)jpeg_read_scanlines(d, rows, (JDIMENSION)ask);
  }
  if (d->out_color_space == JCS_CMYK)
    for (int y = 0; y < pixels->height; y++) cmyk_to_rgbx(pixels->pixels + (size_t)y * pixels->stride, pixels->width);
}

static iof_status decode_region(iof_jpeg *jpeg, const int32_t rect[4], int denominator, iof_pixels *pixels) {
  struct jpeg_decompress_struct *d = &jpeg->decompress;
  d->scale_num = 1;
  d->scale_denom = (unsigned)denominator;
  d->dct_method = JDCT_ISLOW;
  d->do_fancy_upsampling = TRUE;
  d->out_color_space = d->num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
  jpeg_start_decompress(d);
  int whole = iof_lacks_scans(d); /* smoothed blocks depend on their neighbours, which a crop does not have */
  crop_columns(d, whole ? 0 : rect[0], whole ? (int)d->output_width : rect[2], pixels);
  int first = whole || rect[1] - MARGIN < 0 ? 0 : rect[1] - MARGIN;
  pixels->y = first;
  pixels->height = rect[3] - first;
  pixels->stride = (4 * (size_t)pixels->width + SLACK - 1) / SLACK * SLACK;
  pixels->pixels = iof_reserve(&jpeg->pixels, pixels->stride * (size_t)pixels->height + SLACK);
  if (!pixels->pixels) return IOF_MEMORY;
  if (first) jpeg_skip_scanlines(d, (JDIMENSION)first);
  read_rows(d, pixels);
  return IOF_OK;
}

iof_status iof_jpeg_region(iof_jpeg *jpeg, const int32_t rect[4], int denominator, int strict, iof_pixels *pixels) {
  jpeg->strict = strict;
  iof_status status = setjmp(jpeg->escape) ? jpeg->failure : decode_region(jpeg, rect, denominator, pixels);
  jpeg_abort_decompress(&jpeg->decompress);
  return !status && strict ? jpeg->warning : status;
}

int iof_jpeg_planar(const iof_jpeg *jpeg) {
  const struct jpeg_decompress_struct *d = &jpeg->decompress;
  int whole = 1; /* whether each component's samples represent whole numbers of pixels */
  for (int i = 0; i < d->num_components; i++)
    whole = whole && d->max_h_samp_factor % d->comp_info[i].h_samp_factor == 0 &&
            d->max_v_samp_factor % d->comp_info[i].v_samp_factor == 0;
  int known = d->jpeg_color_space == JCS_GRAYSCALE || d->jpeg_color_space == JCS_YCbCr;
  return whole && known ? d->num_components : 0;
}

static void read_planes(struct jpeg_decompress_struct *d, const iof_plane *planes) {
  JSAMPROW rows[3][MAX_SAMP_FACTOR * 2 * DCTSIZE]; /* libjpeg may scale chroma up to twice a block, to the luma's size */
  JSAMPARRAY arrays[3] = {rows[0], rows[1], rows[2]};
  unsigned lines = (unsigned)d->max_v_samp_factor * (unsigned)d->min_DCT_scaled_size;
  for (unsigned group = 0; d->output_scanline < d->output_height; group++) {
    for (int p = 0; p < d->num_components; p++) {
      unsigned own = (unsigned)d->comp_info[p].v_samp_factor * (unsigned)d->comp_info[p].DCT_scaled_size;
      for (unsigned i = 0; i < own; i++) rows[p][i] = planes[p].samples + (size_t)(group * own + i) * planes[p].stride;
    }
    jpeg_read_raw_data(d, arrays, lines);
  }
}

static size_t describe_planes(const struct jpeg_decompress_struct *d, iof_plane planes[3]) {
  size_t size = 0;
  for (int p = 0; p < d->num_components; p++) {
    const jpeg_component_info *c = &d->comp_info[p];
    size_t block = (size_t)c->DCT_scaled_size, per_row = (size_t)d->max_h_samp_factor * DCTSIZE;
    planes[p].width = (int)c->downsampled_width;
    planes[p].height = (int)c->downsampled_height;
    planes[p].across = (double)d->image_width * (double)((size_t)c->h_samp_factor * block) / (double)per_row;
    planes[p].down = (double)d->image_height * (double)((size_t)c->v_samp_factor * block) /
                     (double)(d->max_v_samp_factor * DCTSIZE);
    planes[p].stride = (c->width_in_blocks * block + SLACK - 1) / SLACK * SLACK;
    planes[p].samples = (uint8_t *)size; /* an offset, until the memory is allocated */
    size += planes[p].stride * d->total_iMCU_rows * (size_t)c->v_samp_factor * block + SLACK;
  }
  return size;
}

static iof_status decode_planes(iof_jpeg *jpeg, int denominator, iof_plane planes[3]) {
  struct jpeg_decompress_struct *d = &jpeg->decompress;
  d->scale_num = 1;
  d->scale_denom = (unsigned)denominator;
  d->dct_method = JDCT_ISLOW;
  d->out_color_space = d->jpeg_color_space;
  d->raw_data_out = TRUE;
  jpeg_start_decompress(d);
  uint8_t *memory = iof_reserve(&jpeg->pixels, describe_planes(d, planes));
  if (!memory) return IOF_MEMORY;
  for (int p = 0; p < d->num_components; p++) planes[p].samples = memory + (size_t)planes[p].samples;
  read_planes(d, planes);
  return IOF_OK;
}

iof_status iof_jpeg_planes(iof_jpeg *jpeg, int denominator, int strict, iof_plane planes[3]) {
  jpeg->strict = strict;
  iof_status status = setjmp(jpeg->escape) ? jpeg->failure : decode_planes(jpeg, denominator, planes);
  jpeg_abort_decompress(&jpeg->decompress);
  return !status && strict ? jpeg->warning : status;
}

int iof_jpeg_version(void) {
#ifdef LIBJPEG_TURBO_VERSION_NUMBER
  return LIBJPEG_TURBO_VERSION_NUMBER;
#else
  return 0;
#endif
}
