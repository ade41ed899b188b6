/* iofast kernel: from compressed photographs to a batch of cropped, resized pixels.

Synopsis
    iof_context *c = iof_context_new(&options);            one per thread
    iof_decode_batch(c, &source, boxes, spans, flips, work, &out, status, start, stop);
    iof_context_free(c);

The kernel is plain C on libjpeg-turbo, independent of Python. It has no thread-locals and no global state. All scratch
memory belongs to the context and is reused, so a steady stream of images allocates nothing here.

Coordinates are upright: as a viewer shows the image, after the EXIF orientation is applied. All input may be hostile:
sizes are checked before memory is allocated, offsets before they are used.

Memory: `iof_context_new` and `iof_context_free` make a pair; every other pointer is the caller's. Threads: two threads
never share a context; everything else may be shared for reading. */
#ifndef IOFAST_H
#define IOFAST_H

#ifndef __CUDACC_RTC__ /* which has none of the system's headers */
#include <stddef.h>
#include <stdint.h>
#endif

#include "level_steps.h"

/* Outcome of one image. The numbers are part of the Python contract (kernel/contract.py: Status). */
typedef enum {
  IOF_OK = 0,
  IOF_READ = 1,        /* pread failed */
  IOF_SHORT = 2,       /* the file ends inside the payload */
  IOF_CHECKSUM = 3,    /* CRC32C differs */
  IOF_CORRUPT = 4,     /* the image data contradicts itself */
  IOF_TRUNCATED = 5,   /* the image data ends early */
  IOF_LIMIT = 6,       /* more pixels or bytes than the options allow */
  IOF_BOX = 7,         /* a box lies outside its image */
  IOF_MEMORY = 8,      /* malloc returned NULL */
  IOF_UNSUPPORTED = 9, /* not a JPEG that is decoded here */
  IOF_CHANGED = 10,    /* an encoded image whose header contradicts the index */
  IOF_EMPTY = 11,      /* a payload without bytes */
} iof_status;

/* ALIASED interpolates between the four nearest pixels, whatever the reduction. */
typedef enum {
  IOF_NEAREST,
  IOF_BOX_FILTER,
  IOF_BILINEAR,
  IOF_BICUBIC,
  IOF_LANCZOS,
  IOF_ALIASED,
  IOF_HAMMING,
  IOF_FILTERS
} iof_filter;

/* Decoding paths. */
typedef enum {
  IOF_BY_SEGMENTS, /* our decoder, only the restart segments of the region */
  IOF_BY_ROWS,     /* our decoder, without markers: all Huffman codes up to the region's end, the rest only in it */
  IOF_BY_SPLICE,   /* libjpeg, on a smaller file made of the region's segments */
  IOF_BY_LIBJPEG,  /* libjpeg, crop and skip */
  IOF_BY_COPY,     /* raw pixels: nothing to decode */
  IOF_BY_PNG,      /* libdeflate or zlib */
  IOF_BY_WEBP,     /* libwebp */
  IOF_WAYS
} iof_way;

/* Stages of the work on an image, for timing. */
typedef enum {
  IOF_READING,    /* pread */
  IOF_CHECKING,   /* CRC32C */
  IOF_SCANNING,   /* header, restart markers, stuffing */
  IOF_SPLICING,
  IOF_ENTROPY,    /* Huffman codes to coefficients */
  IOF_TRANSFORM,  /* inverse DCT */
  IOF_COLOUR,     /* upsampling and colour conversion, or the widening of raw RGB */
  IOF_LIBJPEG,    /* the three above, in libjpeg */
  IOF_AXES,       /* the resampler's coefficients */
  IOF_RESAMPLING, /* both passes, and the store into the batch if there is no iof_work */
  IOF_STEPPING,   /* the steps of iof_work */
  IOF_STORING,    /* normalisation, cast and store */
  IOF_STAGES
} iof_stage;

/* Totals of a context. `timed`: 0 = the clock is never read and `nanoseconds` stays zero; 1 = only reading is timed, by
two reads of the clock per image; 2 = every stage. */
typedef struct {
  int timed;
  uint64_t lap; /* end of the last stage */
  uint64_t images[IOF_WAYS];
  uint64_t nanoseconds[IOF_STAGES];
} iof_counters;

typedef struct {
  int filter;         /* iof_filter */
  int fast;           /* allow DCT scaling if libjpeg decodes and the scaled crop still covers the output */
  int strict;         /* damaged data is an error even if libjpeg can guess the rest */
  int clip;           /* move windows into the resampled image; a smaller image goes to the upper left of the output */
  int exact;          /* resample in Pillow's arithmetic, which rounds to bytes between the passes; without `fast` */
  int pillow;         /* Pillow's major version: before 13 the horizontal pass was always first */
  int way;            /* iof_way to use if possible; -1: that of IOFAST_REGION, else the fastest */
  uint64_t max_pixels;
  uint64_t max_bytes; /* of one payload */
} iof_options;

typedef struct iof_context iof_context;

/* Contents of a payload: an encoded image; pixels as in docs/format.md (the field rgb); pixels of that form which Pillow has
decoded: they are resampled in its arithmetic, and no limit counts. */
typedef enum { IOF_ENCODED, IOF_RGB, IOF_DECODED } iof_kind;

/* One row of `indexed`: the index's data about a payload. The header of an encoded image must agree in size and
orientation, unless the width is 0. */
typedef struct {
  int32_t kind; /* iof_kind */
  int32_t width, height; /* upright */
} iof_raw;

/* Payload i: `lengths[i]` bytes at `offsets[i]` of `fds[i]`, or at that address if the descriptor is -1. */
typedef struct {
  const int32_t *fds;
  const uint64_t *offsets;
  const uint64_t *lengths;
  const uint32_t *crcs; /* CRC32C of each payload; NULL: not checked, and of raw pixels only the needed rows are read */
  const uint8_t *orientations; /* EXIF 1-8; anything else: keep as stored, whatever the header says */
  const iof_raw *indexed; /* NULL: all are encoded images of unknown size */
} iof_source;

/* One row of `boxes`: the region is resampled to virtual_w x virtual_h; the window at (x, y) of the result is the
output. */
typedef struct {
  int32_t x0, y0, x1, y1;
  int32_t virtual_w, virtual_h;
  int32_t x, y;
} iof_box;

/* Types of the values in a batch. */
typedef enum { IOF_BYTES, IOF_FLOAT32, IOF_BFLOAT16, IOF_FLOAT16, IOF_TYPES } iof_type;

/* Pixels [rows][height][width][3] with any byte strides. Types other than bytes need an iof_work. */
typedef struct {
  uint8_t *data;
  int64_t row_stride, y_stride, x_stride, channel_stride;
  int32_t width, height;
  int32_t type; /* iof_type */
} iof_output;

/* Steps on the pixels of an image, with parameters f[0], f[1]...; bytes in, bytes out. work.Step has the same codes, with
their meaning. The order of codes has no meaning. */
#define IOF_CODE(name, code, ...) IOF_##name = code,
typedef enum {
  IOF_NOTHING = 0,
  IOF_BRIGHTNESS = 1,
  IOF_CONTRAST = 2,
  IOF_SATURATION = 3,
  IOF_HUE = 4,
  IOF_LEVEL_STEPS(IOF_CODE)
  IOF_AUTOCONTRAST = 8,
  IOF_EQUALIZE = 9,
  IOF_SHARPNESS = 10,
  IOF_BLUR = 11,
  IOF_WARP_NEAREST = 12,
  IOF_WARP_BILINEAR = 13,
  IOF_FLIP = 14,
  IOF_PAD = 15,
  IOF_PERMUTE = 16,
  IOF_LUMA = 17,
  /* Pillow's operations, bit for bit, where those above follow torch's tensors: work.PillowStep. */
  IOF_PILLOW_BRIGHTNESS = 18,
  IOF_PILLOW_CONTRAST = 19,
  IOF_PILLOW_COLOR = 20,
  IOF_PILLOW_SHARPNESS = 21,
  IOF_PILLOW_AUTOCONTRAST = 22,
  IOF_PILLOW_HUE = 23,
  IOF_PILLOW_BLUR = 24,
  IOF_PILLOW_AFFINE_NEAREST = 25,
  IOF_PILLOW_AFFINE_BILINEAR = 26,
  IOF_PILLOW_AFFINE_BICUBIC = 27
} iof_step;

#define IOF_NUMBERS 13 /* of each step */

/* Work on decoded images: steps in their order, then value * scale + bias, then filled rectangles. */
typedef struct {
  const int8_t *codes;   /* [rows][steps] */
  const float *numbers;  /* [rows][steps][IOF_NUMBERS] */
  int32_t steps, erasings;
  const int32_t *erased; /* [rows][erasings]: y0, x0, y1, x1; may be empty */
  const float *fills;    /* [rows][erasings][3]: the value of each channel */
  const float *amounts;  /* [erasings][3]: the amount of noise added to it */
  const int32_t *noise;  /* [rows][erasings]: number of the noise, 0 = none */
  float scale[3], bias[3]; /* ignored if bytes are stored */
} iof_work;

/* Row i is blended with row partners[i]: shares[i] of its own, except in the rectangle patches[i] (y0, x0, y1, x1), which
is the partner's. Partners are each other's, neighbours, and in the same call; a row without one has itself. */
typedef struct {
  const int64_t *partners;
  const float *shares;
  const int32_t *patches; /* [rows][4] */
} iof_mix;

typedef struct {
  int32_t width, height; /* upright */
  int32_t orientation;   /* EXIF 1-8 still to be applied */
  int32_t components;
  int32_t progressive;
  int32_t restart;       /* MCUs per restart interval, 0 = none */
  int32_t mcus;          /* MCUs per row of the stored image, 0 if the sampling factors are invalid */
} iof_header;

/* How to write an image: `box` as above, then a width x height JPEG, or as many raw pixels. */
typedef struct {
  iof_box box;
  int32_t kind; /* iof_kind of the result */
  int32_t width, height;
  int32_t orientation;
  int32_t quality;
  int32_t h_samp, v_samp; /* luma sampling factors: 2,2 = 4:2:0 */
  int32_t restart;        /* MCUs per restart interval, 0 = none */
  int32_t denominator;    /* decode at 1/1, 1/2, 1/4 or 1/8 */
} iof_recipe;

/* Huffman tables: 1-100 = those for photographs of that quality, as in transcoding, or one of these. */
enum { IOF_STANDARD = -1, IOF_OPTIMAL = 0 }; /* those of the JPEG standard's annex K; the best ones for this image */

/* How to write the coefficients of a JPEG. */
typedef struct {
  int32_t restart; /* MCUs per restart interval, 0 = none */
  int32_t tables;
  uint64_t max_pixels;
} iof_rewriting;

#ifndef __CUDACC_RTC__
/* Returns NULL if memory is short. IOFAST_REGION=own, splice or libjpeg in the environment selects how regions are
decoded if the options do not. The default is our own decoder if it has vector loops here, else splice. */
iof_context *iof_context_new(const iof_options *options);
void iof_context_free(iof_context *context);

/* The context's own counters, for reading, and for setting `timed`. */
iof_counters *iof_context_counters(iof_context *context);

/* Decode rows [start, stop), and apply `work` unless it is NULL. Bit 0 of flips[i] mirrors left and right. The other
bits, if not 0, are 1 + the number of a filter that replaces the context's. `spans` (NULL: none) is for exact
arithmetic: row i has x0, y0, x1, y1 within the region, from its corner, which are resampled instead of all of it; pixels
of the region beyond them are seen as far as the filter reaches. Row i of `out` belongs to payload i. A failed row is
zero-filled (unless another decoder may still make it: UNSUPPORTED, LIMIT) and does not stop the others; status[i] has
its reason. Rows outside [start, stop) are unchanged. */
void iof_decode_batch(iof_context *context, const iof_source *source, const iof_box *boxes, const float *spans,
                      const uint8_t *flips, const iof_work *work, const iof_output *out, int32_t *status, int64_t start, int64_t stop);

/* Apply `work` to rows [start, stop) of decoded `images` (bytes, of the size of `out`) and store them in `out`. `mix`
may be NULL. */
iof_status iof_finish_batch(iof_context *context, const iof_output *images, const iof_work *work, const iof_mix *mix,
                            const iof_output *out, int64_t start, int64_t stop);

/* Decode, orient, resample, crop and encode one JPEG, or store its pixels. On IOF_OK `*encoded` points into the
context, valid until the context's next use. */
iof_status iof_transcode(iof_context *context, const uint8_t *data, size_t length, const iof_recipe *recipe,
                         const uint8_t **encoded, size_t *encoded_length);

/* Encode pixels as a JPEG. Box, kind, orientation and denominator of `recipe` are ignored. `channels` are interleaved:
3 = RGB, 1 = gray. `*encoded` as above. */
iof_status iof_encode(iof_context *context, const uint8_t *pixels, int channels, const iof_recipe *recipe,
                      const uint8_t **encoded, size_t *encoded_length);

/* Write a JPEG's coefficients as baseline in one scan, with all its APPn and COM markers. IOF_UNSUPPORTED if one
baseline scan cannot represent them, or if a progressive file lacks scans. `*encoded` as above. */
iof_status iof_rewrite(iof_context *context, const uint8_t *data, size_t length, const iof_rewriting *how,
                       const uint8_t **encoded, size_t *encoded_length);

/* Read size and orientation from the first bytes of a JPEG, without libjpeg. IOF_TRUNCATED: more bytes may help. */
iof_status iof_read_header(const uint8_t *data, size_t length, iof_header *header);

/* Read n rows of `size` bytes, row i from offsets[i] of the file, one after another into `out`. IOF_SHORT if the file
ends inside a row, IOF_READ if it cannot be read (see errno): then `*failed` is that row, or the first of its run. */
iof_status iof_read_rows(int fd, const int64_t *offsets, int64_t n, size_t size, uint8_t *out, int64_t *failed);

/* CRC32C (Castagnoli), continued from `value`. */
uint32_t iof_crc32c(uint32_t value, const void *data, size_t length);

/* The instruction set in use: "avx512", "avx2", "neon" or "scalar". IOFAST_SIMD=avx512bw (no VBMI), avx2 or scalar in
the environment limits it. */
const char *iof_simd(void);

/* Find the libraries for PNG and WebP, once, before the first context: libdeflate or zlib, and libwebp from the file
`webp` (NULL: none). Without them these formats are IOF_UNSUPPORTED. Returns bits: 1 = PNG, 2 = WebP. */
int iof_find_libraries(const char *webp);

/* libjpeg-turbo's version at build time, such as 2001005. */
int iof_jpeg_version(void);

/* Writes `count` interleaved RGB pixels as three planes of floats: channel c of value v becomes table[256 c + v]. */
void iof_levels(const uint8_t *pixels, int64_t count, const float *table, float *out);

/* Bytes of a value of this iof_type. */
size_t iof_size_of(int type);
#endif

#endif
