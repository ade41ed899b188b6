/* iofast kernel: from compressed photographs to a batch of cropped, resized pixels.

Synopsis
    iof_context *c = iof_context_new(&options);            one per thread
    iof_decode_batch(c, &source, boxes, flips, &out, status, start, stop);
    iof_context_free(c);

The kernel is plain C on libjpeg-turbo and knows nothing of Python. It has no thread-locals and no global state; all
scratch memory belongs to the context and is reused, so a steady stream of images allocates nothing here.

Coordinates are upright: what a viewer shows after the EXIF orientation is applied. Everything the kernel is given may
be hostile: sizes are checked before memory is taken, offsets before they are used.

Memory: `iof_context_new` and `iof_context_free` make a pair; every other pointer is the caller's. Threads: two threads
never share a context; everything else may be shared for reading.
*/
#ifndef IOFAST_H
#define IOFAST_H

#include <stddef.h>
#include <stdint.h>

/* What became of one image. The numbers are part of the Python contract (kernel/contract.py: Status). */
typedef enum {
  IOF_OK = 0,
  IOF_READ = 1,        /* pread failed */
  IOF_SHORT = 2,       /* the file ends inside the payload */
  IOF_CHECKSUM = 3,    /* CRC32C differs */
  IOF_CORRUPT = 4,     /* the image data contradicts itself */
  IOF_TRUNCATED = 5,   /* the image data ends early */
  IOF_LIMIT = 6,       /* more pixels or bytes than the options allow */
  IOF_BOX = 7,         /* a box outside its image */
  IOF_MEMORY = 8,      /* malloc returned NULL */
  IOF_UNSUPPORTED = 9, /* not a JPEG that is decoded here */
  IOF_CHANGED = 10,    /* an encoded image whose header contradicts the index */
  IOF_EMPTY = 11,      /* a payload without a byte */
} iof_status;

/* ALIASED is bilinear between the four nearest pixels, however much smaller an image becomes. */
typedef enum { IOF_NEAREST, IOF_BOX_FILTER, IOF_BILINEAR, IOF_BICUBIC, IOF_LANCZOS, IOF_ALIASED, IOF_FILTERS } iof_filter;

/* Which way an image was decoded. */
typedef enum {
  IOF_BY_SEGMENTS, /* our decoder, only the restart segments in the way */
  IOF_BY_ROWS,     /* our decoder, without markers: Huffman codes from the start, the rest in the region only */
  IOF_BY_SPLICE,   /* libjpeg, on a smaller file made of the segments in the way */
  IOF_BY_LIBJPEG,  /* libjpeg, crop and skip */
  IOF_BY_COPY,     /* raw pixels: there is nothing to decode */
  IOF_WAYS
} iof_way;

/* What the time of an image goes into. */
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
  IOF_RESAMPLING, /* both passes, and the store into the batch where nothing else is done */
  IOF_STEPPING,   /* the steps of iof_work */
  IOF_STORING,    /* normalisation, cast and store */
  IOF_STAGES
} iof_stage;

/* Of all images that a context has decoded. `timed` = 0: no clock is read and `nanoseconds` stays zero; 1: only
   reading is timed, by two looks at the clock per image; 2: every stage. */
typedef struct {
  int timed;
  uint64_t lap; /* when the last stage ended */
  uint64_t images[IOF_WAYS];
  uint64_t nanoseconds[IOF_STAGES];
} iof_counters;

typedef struct {
  int filter;         /* iof_filter */
  int fast;           /* allow DCT scaling where the scaled crop still covers the output, and libjpeg decodes */
  int strict;         /* damaged data is an error even where libjpeg would guess the rest */
  int clip;           /* windows are moved into the resampled image; of a smaller one all goes to the upper left of the output */
  int way;            /* iof_way that is taken where it can be, or -1: the fastest; IOFAST_REGION is then asked */
  uint64_t max_pixels;
  uint64_t max_bytes; /* of one payload */
} iof_options;

typedef struct iof_context iof_context;

/* What a payload is: an encoded image, or pixels as docs/format.md says (fields rgb and yuv). */
typedef enum { IOF_ENCODED, IOF_RGB, IOF_YUV420 } iof_kind;

/* One row of `indexed`: what the index says of a payload. Of an encoded image the header has to agree, in size and orientation,
unless the width is 0. */
typedef struct {
  int32_t kind; /* iof_kind */
  int32_t width, height; /* upright */
} iof_raw;

/* Payload i: `lengths[i]` bytes at `offsets[i]` of `fds[i]`; where the descriptor is -1, at that address. */
typedef struct {
  const int32_t *fds;
  const uint64_t *offsets;
  const uint64_t *lengths;
  const uint32_t *crcs; /* CRC32C of each payload, or NULL: not checked, and of raw pixels only the rows in the way are read */
  const uint8_t *orientations; /* EXIF 1-8; anything else: as it is stored, whatever its header says */
  const iof_raw *indexed; /* or NULL: all are encoded images, of which the index says nothing */
} iof_source;

/* One row of `boxes`: the region is resampled to virtual_w x virtual_h, of which the window at (x, y) is wanted. */
typedef struct {
  int32_t x0, y0, x1, y1;
  int32_t virtual_w, virtual_h;
  int32_t x, y;
} iof_box;

/* What a value of the batch is stored as. */
typedef enum { IOF_BYTES, IOF_FLOAT32, IOF_BFLOAT16, IOF_FLOAT16, IOF_TYPES } iof_type;

/* Pixels [rows][height][width][3] with any byte strides. Other types than bytes need an iof_work. */
typedef struct {
  uint8_t *data;
  int64_t row_stride, y_stride, x_stride, channel_stride;
  int32_t width, height;
  int32_t type; /* iof_type */
} iof_output;

/* Bytes of a value of this type. */
size_t iof_size_of(int type);

/* A step on the pixels of an image, with parameters f[0], f[1]...; bytes in, bytes out. work.Step lists the same codes
with their meaning; pixels/steps.py defines each in Python. */
typedef enum {
  IOF_NOTHING,
  IOF_BRIGHTNESS,
  IOF_CONTRAST,
  IOF_SATURATION,
  IOF_HUE,
  IOF_SOLARIZE,
  IOF_POSTERIZE,
  IOF_ADD_BELOW,
  IOF_AUTOCONTRAST,
  IOF_EQUALIZE,
  IOF_SHARPNESS,
  IOF_BLUR,
  IOF_WARP_NEAREST,
  IOF_WARP_BILINEAR,
  IOF_FLIP,
  IOF_PAD,
  IOF_PERMUTE,
  IOF_LUMA,
  IOF_KEEP,
  IOF_ADD,
  IOF_SUM,
  IOF_STEPS
} iof_step;

#define IOF_NUMBERS 12 /* of each step */

/* What is done to images after they are decoded: steps in their order, then value * scale + bias, then rectangles that are
filled. */
typedef struct {
  const int8_t *codes;   /* [rows][steps] */
  const float *numbers;  /* [rows][steps][IOF_NUMBERS] */
  int32_t steps, erasings;
  const int32_t *erased; /* [rows][erasings]: y0, x0, y1, x1; nothing where it is empty */
  const float *fills;    /* [rows][erasings][3]: the value of each channel, */
  const float *amounts;  /* [erasings][3]: and how much noise is added to it */
  const int32_t *noise;  /* [rows][erasings]: which noise, 0 = none */
  float scale[3], bias[3]; /* not looked at where bytes are stored */
} iof_work;

typedef struct {
  int32_t width, height; /* upright */
  int32_t orientation;   /* EXIF 1-8 still to be applied */
  int32_t components;
  int32_t progressive;
  int32_t restart;       /* MCUs per restart interval, 0 = none */
  int32_t mcus;          /* MCUs per row of the stored image, 0 where the sampling factors make no sense */
} iof_header;

/* How one image is written again: `box` as above, then a width x height JPEG, or so many pixels. */
typedef struct {
  iof_box box;
  int32_t kind; /* iof_kind: what becomes of it */
  int32_t width, height;
  int32_t orientation;
  int32_t quality;
  int32_t h_samp, v_samp; /* luma sampling factors: 2,2 = 4:2:0, which IOF_YUV420 has to have */
  int32_t restart;        /* MCUs per restart interval, 0 = none */
  int32_t denominator;    /* decode at 1/1, 1/2, 1/4 or 1/8 */
} iof_recipe;

/* Huffman tables: 1-100 = for photographs of that quality, as transcoding takes them, or one of these. */
enum { IOF_STANDARD = -1, IOF_OPTIMAL = 0 }; /* those of the JPEG standard's annex K; the best for this one image */

/* How the coefficients of a JPEG are written again. */
typedef struct {
  int32_t restart; /* MCUs per restart interval, 0 = none */
  int32_t tables;
  uint64_t max_pixels;
} iof_rewriting;

/* A part of a JPEG, as a smaller JPEG. `width` and `height` are its own; of it [x0, x1) x [y0, y1) is wanted, stored pixels.
That piece, made upright, lies at (left, top) of the upright image. */
typedef struct {
  int32_t length; /* bytes */
  int32_t width, height;
  int32_t x0, y0, x1, y1;
  int32_t left, top;
} iof_part;

/* Where parts go: part i to bytes + places[i], before places[i + 1]; 64 bytes more than the payload always do. The window that
boxes speak of is `width` x `height`. */
typedef struct {
  uint8_t *bytes;
  const int64_t *places;
  int32_t width, height;
} iof_parts;

/* NULL where memory is short. IOFAST_REGION=own, splice or libjpeg in the environment says how regions are decoded where
options do not; without either it is our own decoder, where it has vector loops. */
iof_context *iof_context_new(const iof_options *options);
void iof_context_free(iof_context *context);

/* The context's own, for reading, and for setting `timed`. */
iof_counters *iof_context_counters(iof_context *context);

/* Decode rows [start, stop), and do the `work` of each where it is not NULL. flips[i]: 1 mirrors left and right; the bits above,
where they are not 0, are the number of a filter, and one: then it takes the place of the context's. Row i of `out` belongs to payload i. A failed row is zero-filled and does not stop the
others; its reason is in status[i]. Rows outside [start, stop) are not touched. */
void iof_decode_batch(iof_context *context, const iof_source *source, const iof_box *boxes, const uint8_t *flips,
                      const iof_work *work, const iof_output *out, int32_t *status, int64_t start, int64_t stop);

/* Rows [start, stop) of decoded images, bytes of the size of `out`, through `work` into `out`. Row i of an image is mixed with
row partners[i]: times shares[i], and the partner's alone in the rectangle patches[i] (y0, x0, y1, x1). Partners are each
other's, neighbours and in the same call; `partners` NULL: nothing is mixed. */
typedef struct {
  const int64_t *partners;
  const float *shares;
  const int32_t *patches; /* [rows][4] */
} iof_mix;
iof_status iof_finish_batch(iof_context *context, const iof_output *images, const iof_work *work, const iof_mix *mix,
                            const iof_output *out, int64_t start, int64_t stop);

/* Of payloads [start, stop), each, the smallest JPEG that holds all that its box needs (resampled bilinearly, in whole numbers),
for a decoder elsewhere: whole restart segments where there are such, else the whole scan; without APPn and comments, so
that no decoder turns it. A payload that is damaged as far as its markers tell, or that is not baseline, gray or YCbCr in 4:4:4,
4:2:2 or 4:2:0, or whose box does not fit, is IOF_UNSUPPORTED: iof_decode_batch decodes it, or says what is wrong. */
void iof_part_batch(iof_context *context, const iof_source *source, const iof_box *boxes, const iof_parts *to, iof_part *parts,
                    int32_t *status, int64_t start, int64_t stop);

/* Decode, orient, resample, crop and encode one JPEG, or store its pixels. On IOF_OK `*encoded` points into the context,
valid until its next use. */
iof_status iof_transcode(iof_context *context, const uint8_t *data, size_t length, const iof_recipe *recipe,
                         const uint8_t **encoded, size_t *encoded_length);

/* Encode pixels as a JPEG, or store them as YUV420: `recipe` without box, orientation and denominator. `channels` are
interleaved: 3 = RGB, or for a JPEG 1 = gray. `*encoded` as above. */
iof_status iof_encode(iof_context *context, const uint8_t *pixels, int channels, const iof_recipe *recipe,
                      const uint8_t **encoded, size_t *encoded_length);

/* Write a JPEG's coefficients again, as baseline in one scan, with all its APPn and COM markers. IOF_UNSUPPORTED where one
baseline scan cannot hold them, or where a progressive file lacks scans. `*encoded` as above. */
iof_status iof_rewrite(iof_context *context, const uint8_t *data, size_t length, const iof_rewriting *how,
                       const uint8_t **encoded, size_t *encoded_length);

/* The pixels of a PNG: `height` rows of a filter's number and `width` pixels of `channels` bytes (1, 3 or 4), as zlib gives
them. IOF_CORRUPT for a filter that there is not. */
iof_status iof_png_rows(const uint8_t *filtered, int width, int height, int channels, uint8_t *pixels);

/* Read size and orientation from the first bytes of a JPEG, without libjpeg. IOF_TRUNCATED: more bytes may help. */
iof_status iof_read_header(const uint8_t *data, size_t length, iof_header *header);

/* Read n rows of `size` bytes, row i from offsets[i] of the file, into `out`, one behind the other. IOF_SHORT where the file
ends inside a row, IOF_READ where it cannot be read (see errno): `*failed` is then that row, or the first of its run. */
iof_status iof_read_rows(int fd, const int64_t *offsets, int64_t n, size_t size, uint8_t *out, int64_t *failed);

/* Whether this byte is in the page cache, as far as can be known without waiting. */
int iof_is_cached(int fd, uint64_t offset);

/* CRC32C (Castagnoli), continued from `value`. */
uint32_t iof_crc32c(uint32_t value, const void *data, size_t length);

/* The instruction set in use: "avx512", "avx2", "neon" or "scalar"; IOFAST_SIMD=avx512bw (no VBMI), avx2 or scalar in the
environment forbids more. */
const char *iof_simd(void);

/* libjpeg-turbo's version at build time, as 2001005. */
int iof_jpeg_version(void);

#endif
