/* Rewrite JPEG files without restart markers and with the standard Huffman tables, with the same coefficients: files as
they are before packing, for measuring other loaders.

plain_jpeg FROM TO: both have u32 count, then count times u32 length and the bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

static void standard_tables(struct jpeg_compress_struct *to) {
  struct jpeg_compress_struct fresh; /* has the standard's tables, which jpeg_copy_critical_parameters does not copy */
  struct jpeg_error_mgr errors;
  fresh.err = jpeg_std_error(&errors);
  jpeg_create_compress(&fresh);
  fresh.in_color_space = JCS_RGB;
  fresh.input_components = 3;
  jpeg_set_defaults(&fresh);
  for (int i = 0; i < 2; i++) {
    if (!to->dc_huff_tbl_ptrs[i]) to->dc_huff_tbl_ptrs[i] = jpeg_alloc_huff_table((j_common_ptr)to);
    if (!to->ac_huff_tbl_ptrs[i]) to->ac_huff_tbl_ptrs[i] = jpeg_alloc_huff_table((j_common_ptr)to);
    *to->dc_huff_tbl_ptrs[i] = *fresh.dc_huff_tbl_ptrs[i];
    *to->ac_huff_tbl_ptrs[i] = *fresh.ac_huff_tbl_ptrs[i];
  }
  jpeg_destroy_compress(&fresh);
}

static void rewrite(const uint8_t *data, uint32_t length, FILE *out) {
  struct jpeg_decompress_struct from;
  struct jpeg_compress_struct to;
  struct jpeg_error_mgr errors;
  unsigned char *plain = NULL;
  unsigned long size = 0;
  from.err = to.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&from);
  jpeg_create_compress(&to);
  jpeg_mem_src(&from, data, length);
  jpeg_read_header(&from, TRUE);
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(&from);
  jpeg_copy_critical_parameters(&from, &to);
  standard_tables(&to);
  to.restart_interval = 0;
  to.restart_in_rows = 0;
  to.optimize_coding = FALSE;
  jpeg_mem_dest(&to, &plain, &size);
  jpeg_write_coefficients(&to, coefficients);
  jpeg_finish_compress(&to);
  jpeg_finish_decompress(&from);
  uint32_t written = (uint32_t)size;
  if (fwrite(&written, 4, 1, out) != 1 || fwrite(plain, 1, size, out) != size) exit(2);
  jpeg_destroy_compress(&to);
  jpeg_destroy_decompress(&from);
  free(plain);
}

int main(int argc, char **argv) {
  FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = argc == 3 ? fopen(argv[2], "wb") : NULL;
  uint32_t count, length;
  if (!in || !out || fread(&count, 4, 1, in) != 1 || fwrite(&count, 4, 1, out) != 1) return 2;
  for (uint32_t i = 0; i < count; i++) {
    uint8_t *data = fread(&length, 4, 1, in) == 1 ? malloc(length) : NULL;
    if (!data || fread(data, 1, length, in) != length) return 2;
    rewrite(data, length, out);
    free(data);
  }
  return fclose(out) ? 2 : 0;
}
