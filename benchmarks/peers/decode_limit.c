/* The definition of "decode-only speed": libjpeg-turbo decoding JPEG files in full, and nothing else.

decode_limit FILE THREADS: FILE has u32 count, then count times u32 length and the bytes. Each thread keeps one
decompressor and one output buffer and takes the next image. Prints images per second. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <jpeglib.h>

static uint8_t **images;
static uint32_t *lengths, count;
static atomic_uint next_image;

static void *decode_all(void *unused) {
  struct jpeg_decompress_struct d;
  struct jpeg_error_mgr errors;
  uint8_t *pixels = NULL;
  size_t size = 0;
  unsigned i;
  (void)unused;
  d.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&d);
  while ((i = atomic_fetch_add(&next_image, 1)) < count) {
    jpeg_mem_src(&d, images[i], lengths[i]);
    jpeg_read_header(&d, TRUE);
    d.out_color_space = JCS_RGB;
    jpeg_start_decompress(&d);
    size_t stride = 3 * (size_t)d.output_width;
    if (stride * d.output_height > size) pixels = realloc(pixels, size = stride * d.output_height);
    while (d.output_scanline < d.output_height) {
      JSAMPROW row = pixels + d.output_scanline * stride;
      jpeg_read_scanlines(&d, &row, 1);
    }
    jpeg_finish_decompress(&d);
  }
  jpeg_destroy_decompress(&d);
  free(pixels);
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
  FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  int threads = argc == 3 ? atoi(argv[2]) : 0;
  pthread_t ids[64];
  if (!file || threads < 1 || threads > 64 || fread(&count, 4, 1, file) != 1) return 2;
  images = malloc(count * sizeof *images);
  lengths = malloc(count * sizeof *lengths);
  for (uint32_t i = 0; i < count; i++) {
    if (fread(&lengths[i], 4, 1, file) != 1 || !(images[i] = malloc(lengths[i]))) return 2;
    if (fread(images[i], 1, lengths[i], file) != lengths[i]) return 2;
  }
  double start = now();
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, decode_all, NULL);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  printf("%.1f\n", count / (now() - start));
  return 0;
}
