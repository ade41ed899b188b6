/* Encoding: a picture with our Huffman tables and restart markers, or the coefficients of another JPEG. */
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "huffman.h"

/* The destination grows in the context's buffer, so that a steady stream of images allocates nothing. */
static void start_output(j_compress_ptr c) {
  iof_jpeg *jpeg = owner((j_common_ptr)c);
  c->dest->next_output_byte = jpeg->encoded.data;
  c->dest->free_in_buffer = jpeg->encoded.size;
}

static boolean grow_output(j_compress_ptr c) { /* called only when the whole buffer is used */
  iof_jpeg *jpeg = owner((j_common_ptr)c);
  size_t used = jpeg->encoded.size;
  iof_buffer larger = {0};
  if (!iof_reserve(&larger, 2 * used)) ERREXIT1(c, JERR_OUT_OF_MEMORY, 0);
  memcpy(larger.data, jpeg->encoded.data, used);
  free(jpeg->encoded.data);
  jpeg->encoded = larger;
  c->dest->next_output_byte = (JOCTET *)larger.data + used;
  c->dest->free_in_buffer = larger.size - used;
  return TRUE;
}

static void end_output(j_compress_ptr c) { (void)c; }

void iof_jpeg_prepare_encoder(iof_jpeg *jpeg) {
  struct jpeg_compress_struct *c = &jpeg->compress;
  c->in_color_space = JCS_GRAYSCALE;
  c->input_components = 1;
  jpeg_set_defaults(c);
  for (int i = 0; i < 2; i++) {
    jpeg->standard[2 * i] = c->dc_huff_tbl_ptrs[i];
    jpeg->standard[2 * i + 1] = c->ac_huff_tbl_ptrs[i];
  }
}

/* Tables for photographs are fixed. The best tables for each image would save another 1.7 % of the bytes. But libjpeg's
counting of symbols adds a quarter to the time of packing, and a decoder prepares known tables only once. */
static void set_tables(struct jpeg_compress_struct *c, int tables) {
  iof_jpeg *jpeg = owner((j_common_ptr)c);
  int band = 0;
  while (band < IOF_BANDS - 1 && tables > BAND_TOP[band]) band++;
  memcpy(jpeg->tables, PHOTOGRAPHS[band], sizeof jpeg->tables);
  for (int i = 0; i < 2; i++) { /* jpeg_set_defaults made the standard's tables; they stay unchanged */
    c->dc_huff_tbl_ptrs[i] = tables == IOF_STANDARD ? jpeg->standard[2 * i] : &jpeg->tables[2 * i];
    c->ac_huff_tbl_ptrs[i] = tables == IOF_STANDARD ? jpeg->standard[2 * i + 1] : &jpeg->tables[2 * i + 1];
  }
  c->optimize_coding = tables == IOF_OPTIMAL;
}

/* Input of the encoder: rows of `count` interleaved channels (3 = RGB, 1 = gray), or as many planes. */
typedef struct {
  const uint8_t *pixels;
  const iof_plane *planes;
  int count;
} picture;

static void set_encoding(struct jpeg_compress_struct *c, const iof_recipe *recipe, const picture *p) {
  c->image_width = (JDIMENSION)recipe->width;
  c->image_height = (JDIMENSION)recipe->height;
  c->input_components = p->count;
  c->in_color_space = p->count == 1 ? JCS_GRAYSCALE : p->pixels ? JCS_RGB : JCS_YCbCr;
  jpeg_set_defaults(c);
  jpeg_set_quality(c, recipe->quality, TRUE);
  c->raw_data_in = !p->pixels;
  set_tables(c, recipe->quality);
  c->restart_interval = (unsigned)recipe->restart;
  if (c->num_components == 3) {
    c->comp_info[0].h_samp_factor = recipe->h_samp;
    c->comp_info[0].v_samp_factor = recipe->v_samp;
  }
}

static void write_rows(struct jpeg_compress_struct *c, const uint8_t *pixels) {
  size_t stride = (size_t)c->input_components * c->image_width;
  while (c->next_scanline < c->image_height) {
    JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + c->next_scanline * stride); /* libjpeg only reads it */
    jpeg_write_scanlines(c, &row, 1);
  }
}

static void write_planes(struct jpeg_compress_struct *c, const iof_plane *planes) {
  JSAMPROW rows[3][4 * DCTSIZE];
  JSAMPARRAY arrays[3] = {rows[0], rows[1], rows[2]};
  unsigned lines = (unsigned)c->max_v_samp_factor * DCTSIZE;
  while (c->next_scanline < c->image_height) {
    for (int p = 0; p < c->num_components; p++) {
      unsigned own = (unsigned)c->comp_info[p].v_samp_factor * DCTSIZE;
      size_t first = (size_t)(c->next_scanline / lines) * own;
      for (unsigned i = 0; i < own; i++) rows[p][i] = planes[p].samples + (first + i) * planes[p].stride;
    }
    jpeg_write_raw_data(c, arrays, lines);
  }
}

static iof_status write_picture(iof_jpeg *jpeg, const picture *p, const iof_recipe *recipe) {
  struct jpeg_compress_struct *c = &jpeg->compress;
  set_encoding(c, recipe, p);
  jpeg_start_compress(c, TRUE);
  if (p->pixels) {
    write_rows(c, p->pixels);
  } else {
    write_planes(c, p->planes);
  }
  jpeg_finish_compress(c);
  return IOF_OK;
}

/* Prepare the output buffer. */
static iof_status begin(iof_jpeg *jpeg) {
  jpeg->destination = (struct jpeg_destination_mgr){.init_destination = start_output,
                                                    .empty_output_buffer = grow_output,
                                                    .term_destination = end_output};
  jpeg->compress.dest = &jpeg->destination;
  return iof_reserve(&jpeg->encoded, 65536) ? IOF_OK : IOF_MEMORY;
}

static iof_encoded written(const iof_jpeg *jpeg) {
  return (iof_encoded){jpeg->encoded.data, jpeg->encoded.size - jpeg->destination.free_in_buffer};
}

static iof_status encode(iof_jpeg *jpeg, const picture *p, const iof_recipe *recipe, iof_encoded *encoded) {
  iof_status status = begin(jpeg);
  if (!status) status = setjmp(jpeg->escape) ? jpeg->failure : write_picture(jpeg, p, recipe);
  jpeg_abort_compress(&jpeg->compress);
  *encoded = written(jpeg);
  return status;
}

iof_status iof_jpeg_encode(iof_jpeg *jpeg, const uint8_t *pixels, int count, const iof_recipe *recipe, iof_encoded *encoded) {
  return encode(jpeg, &(picture){.pixels = pixels, .count = count}, recipe, encoded);
}

iof_status iof_jpeg_encode_planes(iof_jpeg *jpeg, const iof_plane *planes, int count, const iof_recipe *recipe,
                                  iof_encoded *encoded) {
  return encode(jpeg, &(picture){.planes = planes, .count = count}, recipe, encoded);
}

/* One scan holds all components, and the standard allows it ten blocks per MCU. Files with more need several scans. */
static int fits_one_scan(const struct jpeg_decompress_struct *d) {
  int blocks = 0;
  for (int i = 0; i < d->num_components; i++) blocks += d->comp_info[i].h_samp_factor * d->comp_info[i].v_samp_factor;
  return d->num_components == 1 || (d->num_components <= MAX_COMPS_IN_SCAN && blocks <= D_MAX_BLOCKS_IN_MCU);
}

/* Whether each coefficient has a code. Those of 8-bit samples have one, but a file can contain others, for which
libjpeg's vector loops silently write wrong data. */
static int fit_baseline(struct jpeg_decompress_struct *d, jvirt_barray_ptr *coefficients) {
  int fit = 1;
  for (int i = 0; i < d->num_components && fit; i++) {
    const jpeg_component_info *c = &d->comp_info[i];
    for (JDIMENSION y = 0; y < c->height_in_blocks && fit; y++) {
      JBLOCKROW row = d->mem->access_virt_barray((j_common_ptr)d, coefficients[i], y, 1, FALSE)[0];
      for (JDIMENSION x = 0; x < c->width_in_blocks; x++) {
        fit &= row[x][0] >= -1024 && row[x][0] <= 1023;
        for (int k = 1; k < DCTSIZE2; k++) fit &= row[x][k] >= -1023 && row[x][k] <= 1023;
      }
    }
  }
  return fit;
}

/* Make a new object for each image: an old one would decode a file without tables with those of the previous file. */
static void create_reader(iof_jpeg *jpeg) {
  jpeg_create_decompress(&jpeg->reader);
  jpeg->reader.progress = &jpeg->progress;
  jpeg_save_markers(&jpeg->reader, JPEG_COM, 0xFFFF);
  for (int i = 0; i < 16; i++) jpeg_save_markers(&jpeg->reader, JPEG_APP0 + i, 0xFFFF);
}

static iof_status read_and_write(iof_jpeg *jpeg, const uint8_t *data, size_t length, const iof_rewriting *how) {
  struct jpeg_decompress_struct *d = &jpeg->reader;
  struct jpeg_compress_struct *c = &jpeg->compress;
  create_reader(jpeg);
  jpeg_mem_src(d, data, length);
  jpeg_read_header(d, TRUE);
  if ((uint64_t)d->image_width * d->image_height > how->max_pixels) return IOF_LIMIT;
  if (!fits_one_scan(d)) return IOF_UNSUPPORTED;
  jpeg->strict = 1;
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(d);
  if (iof_lacks_scans(d) || !fit_baseline(d, coefficients)) return IOF_UNSUPPORTED;
  jpeg_copy_critical_parameters(d, c);
  set_tables(c, how->tables);
  c->restart_interval = (unsigned)how->restart;
  c->write_JFIF_header = c->write_Adobe_marker = FALSE; /* the original's markers are copied below */
  jpeg_write_coefficients(c, coefficients);
  for (jpeg_saved_marker_ptr m = d->marker_list; m; m = m->next) jpeg_write_marker(c, m->marker, m->data, m->data_length);
  jpeg_finish_compress(c);
  jpeg_finish_decompress(d);
  return IOF_OK;
}

iof_status iof_jpeg_rewrite(iof_jpeg *jpeg, const uint8_t *data, size_t length, const iof_rewriting *how,
                            iof_encoded *encoded) {
  jpeg->reader.err = &jpeg->errors;
  jpeg->reader.client_data = jpeg;
  jpeg->warning = jpeg->failure = IOF_OK;
  jpeg->strict = 0;
  iof_status status = begin(jpeg);
  if (!status) status = setjmp(jpeg->escape) ? jpeg->failure : read_and_write(jpeg, data, length, how);
  jpeg_destroy_decompress(&jpeg->reader);
  jpeg_abort_compress(&jpeg->compress);
  *encoded = written(jpeg);
  return status;
}
