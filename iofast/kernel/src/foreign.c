/* The shared libraries of foreign.h. Found once, under the GIL; afterwards they are only read. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"

static struct {
  void *(*new_decompressor)(void);
  int (*decompress)(void *, const void *, size_t, void *, size_t, size_t *);
  void (*free_decompressor)(void *);
  uint32_t (*deflate_crc)(uint32_t, const void *, size_t);
  int (*uncompress)(uint8_t *, unsigned long *, const uint8_t *, unsigned long);
  unsigned long (*crc)(unsigned long, const uint8_t *, unsigned);
  int (*webp_size)(const uint8_t *, size_t, int *, int *);
  uint8_t *(*webp_decode)(const uint8_t *, size_t, uint8_t *, size_t, int);
} libraries;

/* Function pointers come from `void *`, as POSIX says. Returns whether the function exists. */
static int find(void *library, const char *name, void *to) {
  *(void **)to = dlsym(library, name);
  return *(void **)to != NULL;
}

static void *open_library(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

int iof_find_libraries(const char *webp) {
  void *deflate = open_library("libdeflate.so.0"), *zlib = open_library("libz.so.1");
  void *pictures = webp ? open_library(webp) : NULL;
  int png = 0, both;
  if (deflate && find(deflate, "libdeflate_alloc_decompressor", &libraries.new_decompressor) &&
      find(deflate, "libdeflate_zlib_decompress", &libraries.decompress) &&
      find(deflate, "libdeflate_free_decompressor", &libraries.free_decompressor)) {
    png = find(deflate, "libdeflate_crc32", &libraries.deflate_crc);
  }
  if (!png) libraries.new_decompressor = NULL;
  if (!png && zlib && find(zlib, "uncompress", &libraries.uncompress)) png = find(zlib, "crc32", &libraries.crc);
  both = pictures && find(pictures, "WebPGetInfo", &libraries.webp_size) &&
         find(pictures, "WebPDecodeRGBInto", &libraries.webp_decode);
  if (!png) libraries.uncompress = NULL;
  if (!both) libraries.webp_decode = NULL;
  return png | both << 1;
}

int iof_can_inflate(void) { return libraries.new_decompressor || libraries.uncompress; }

uint32_t iof_crc32(const uint8_t *data, size_t length) {
  if (libraries.new_decompressor) return libraries.deflate_crc(0, data, length);
  return (uint32_t)libraries.crc(0, data, (unsigned)length);
}

int iof_inflate(iof_inflater *inflater, const uint8_t *data, size_t length, uint8_t *to, size_t size) {
  if (libraries.new_decompressor) {
    if (!inflater->decompressor) inflater->decompressor = libraries.new_decompressor();
    return inflater->decompressor && !libraries.decompress(inflater->decompressor, data, length, to, size, NULL);
  }
  unsigned long made = size;
  return !libraries.uncompress(to, &made, data, length) && made == size;
}

void iof_inflater_free(iof_inflater *inflater) {
  if (inflater->decompressor) libraries.free_decompressor(inflater->decompressor);
  free(inflater->packed.data);
  free(inflater->rows.data);
}

static uint32_t little(const uint8_t *from, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint32_t)from[i] << 8 * i;
  return value;
}

enum { ANIMATED = 2, HAS_XMP = 4, HAS_EXIF = 8, HAS_ALPHA = 16 }; /* flags of the chunk VP8X */

/* Images with alpha or several frames are Pillow's. */
iof_status iof_webp_open(const uint8_t *data, size_t length, iof_foreign *image) {
  if (!libraries.webp_decode || length < 32 || memcmp(data, "RIFF", 4) || memcmp(data + 8, "WEBP", 4)) return IOF_UNSUPPORTED;
  int extended = !memcmp(data + 12, "VP8X", 4), lossless = !memcmp(data + 12, "VP8L", 4), flags = extended ? data[20] : 0;
  if (lossless && little(data + 21, 4) >> 28 & 1) flags |= HAS_ALPHA;
  if (flags & (ANIMATED | HAS_ALPHA) || little(data + 4, 4) > length - 8) return IOF_UNSUPPORTED;
  image->described = flags & (HAS_XMP | HAS_EXIF);
  return libraries.webp_size(data, length, &image->width, &image->height) ? IOF_OK : IOF_UNSUPPORTED;
}

iof_status iof_webp_decode(const iof_foreign *image, const uint8_t *data, size_t length, uint8_t *rgb) {
  size_t stride = 3 * (size_t)image->width;
  return libraries.webp_decode(data, length, rgb, stride * (size_t)image->height, (int)stride) ? IOF_OK : IOF_UNSUPPORTED;
}
