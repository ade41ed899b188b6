/* Our own decoder for the JPEGs of most datasets: baseline, 8 bits, one scan, grayscale or YCbCr in 4:4:4, 4:2:2 or
4:2:0. It decodes a region; of a file with restart markers only the segments that the region touches.

    iof_frame_read      the markers before the scan
    iof_segments_find   the scan: places of its restart segments, without stuffing
    iof_decode_mcus     Huffman codes to coefficients
    idct                coefficients to samples
    iof_colour_row      samples to pixels, a row at a time: fancy upsampling, colour conversion

libjpeg-turbo is its oracle and its fallback: it decodes everything unusual or damaged (IOF_UNSUPPORTED). The results of
our decoder equal libjpeg-turbo's bit for bit. */
#ifndef IOFAST_REGION_H
#define IOFAST_REGION_H

#include "codes.h"
#include "internal.h"

typedef struct {
  int h, v;          /* samples per MCU, in blocks */
  int width, height; /* samples that represent pixels */
  int quant, dc, ac; /* numbers of the tables */
} iof_component;

/* Body of a DHT table: 16 counts, then the symbols. */
typedef struct {
  const uint8_t *body;
  int symbols;
} iof_code_table;

typedef struct {
  int width, height, components;
  int across, down; /* MCUs */
  int restart;      /* MCUs per restart segment, 0 = no markers */
  iof_component component[3];
  uint16_t quant[4][64]; /* row by row, not in zigzag order */
  iof_code_table code[2][4]; /* DC, AC */
  size_t scan;       /* offset of the first entropy-coded byte */
} iof_frame;

/* Returns IOF_UNSUPPORTED for everything that libjpeg must decode or refuse. */
iof_status iof_frame_read(const uint8_t *data, size_t length, iof_frame *frame);

/* The scan without stuffing and markers. Segment i is [bytes + begin[i], bytes + begin[i + 1]); in the file it begins
at `origin[i]`. `ended`: the end-of-image marker follows the last one. */
typedef struct {
  const uint8_t *bytes;
  const uint32_t *begin, *origin;
  uint32_t count;
  int ended;
  iof_buffer memory, places;
} iof_segments;

/* Returns IOF_CORRUPT if the markers are not those that the frame requires, IOF_UNSUPPORTED if libjpeg must decide. */
iof_status iof_segments_find(iof_segments *segments, const iof_frame *frame, const uint8_t *data, size_t length);
void iof_segments_free(iof_segments *segments);

/* Returns 0 if a baseline JPEG cannot have this table. */
int iof_codes_make(iof_codes *codes, const iof_code_table *table, int ac);

/* Reading position in a restart segment. */
typedef struct {
  uint64_t bits;     /* the next bits, from the top */
  const uint8_t *at; /* the byte after them */
  const uint8_t *end;
  int count; /* of valid bits */
  int32_t dc[3];
} iof_bits;

/* Tables and destination of an MCU row. `rows[c][v]` is block row v of component c, from the first wanted MCU on. */
typedef struct {
  const iof_frame *frame;
  const iof_codes *dc[3], *ac[3];
  int16_t *rows[3][2];
} iof_mcu_row;

typedef struct {
  int (*decode)(const iof_mcu_row *row, iof_bits *bits, int first, int count);
  int (*decode_two)(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count);
  /* Transform `fours` groups of four blocks to eight rows of samples. Returns 0 if a value of a block's first row needs
  more than 14 bits, eight times what a picture has: libjpeg-turbo's vector code then wraps or saturates, depending on
  the other rows */
  int (*idct)(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride);
  /* to[i] = 3 * near[i] + far[i] */
  void (*blend)(const uint8_t *near, const uint8_t *far, int n, int16_t *to);
  /* results of `blend`, n samples to 2n; `even` and `odd` are added before the shift; `sums` has one more at each end */
  void (*spread)(const int16_t *sums, int n, int even, int odd, uint8_t *to);
  void (*colour)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx);
  /* the same to three planes, each byte ^ flip */
  void (*planes)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int flip, uint8_t *to, size_t plane);
} iof_block_loops;

/* Decode `count` MCUs into the blocks of the wanted MCUs from number `first` on, or skip them if first < 0. Returns 0
if the data is damaged. */
int iof_decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count);

/* The same for two segments in step, of the same columns in two MCU rows: each hides the other's latency. */
int iof_decode_two(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count);
#if defined(__x86_64__) && defined(__GNUC__)
int iof_decode_mcus_bmi2(const iof_mcu_row *row, iof_bits *bits, int first, int count);
int iof_decode_two_bmi2(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count);
#endif

const iof_block_loops *iof_block_loops_best(void);
extern const iof_block_loops iof_block_loops_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
extern const iof_block_loops iof_block_loops_avx2, iof_block_loops_avx512;
#endif

/* A decoded component. `samples` is its sample (x, y); its last column and row are `width` - 1 and `height` - 1. */
typedef struct {
  uint8_t *samples;
  size_t stride;
  int x, y, width, height;
} iof_samples;

/* A rectangle of pixels or MCUs of the image. */
typedef struct {
  int x0, y0, x1, y1;
} iof_rect;

/* One plane (gray) or three; h and v are luma samples per chroma sample. */
typedef struct {
  iof_samples planes[3];
  int count, h, v;
} iof_picture;

/* State of the conversion of rows of a picture. Each chroma plane has one sample more than `rect` on each side, unless
the image ends there. */
typedef struct {
  const iof_block_loops *loops;
  iof_picture picture;
  iof_rect rect;
  uint8_t *chroma[2]; /* scratch: upsampled rows, or neutral ones */
  int16_t *sums;
} iof_colouring;

/* Prepare the conversion of columns [rect.x0, rect.x1); scratch is in `rows`. Then convert row by row, upsampled. */
iof_status iof_colour_start(iof_colouring *colouring, const iof_block_loops *loops, const iof_picture *picture,
                            const iof_rect *rect, iof_buffer *rows);
void iof_colour_row(const iof_colouring *colouring, int y, uint8_t *rgbx);
void iof_colour_planes(const iof_colouring *colouring, int y, uint8_t *to, size_t plane); /* see iof_pixels' `row` */

/* A JPEG of whole segments: its pixel (0, 0) is (x, y) of the original image. */
typedef struct {
  const uint8_t *bytes;
  size_t length;
  int x, y, width, height;
  iof_buffer memory;
} iof_spliced;
int iof_spliceable(const iof_frame *frame); /* whether its rows are whole segments */
/* Make a JPEG of the segments that contain `mcus` of a spliceable frame. `segments` must be complete. */
iof_status iof_splice(const iof_frame *frame, const iof_segments *segments, const uint8_t *data, const iof_rect *mcus,
                      iof_spliced *out);

/* A JPEG, decoded by us or by libjpeg. */
typedef struct iof_region iof_region;
iof_region *iof_region_new(iof_counters *counters, int way); /* `way` of iof_options */
void iof_region_free(iof_region *region);
iof_jpeg *iof_region_idle_jpeg(iof_region *region); /* libjpeg for another image; the opened one is closed */
iof_status iof_region_open(iof_region *region, const uint8_t *data, size_t length, int *width, int *height);
int iof_region_gray(const iof_region *region); /* whether the opened image has one component */
/* Read header and tables, without libjpeg. Returns IOF_UNSUPPORTED if our decoder does not support them. */
iof_status iof_region_frame(iof_region *region, const uint8_t *data, size_t length, int *width, int *height);
/* Of the frame that was read last: its segments. Returns IOF_UNSUPPORTED unless the end-of-image marker follows. */
iof_status iof_region_segments(iof_region *region, const iof_frame **frame, const iof_segments **segments);
/* The MCUs of one axis that pixels [*from, *to) need: with a margin where chroma is interpolated. */
void iof_cover(int *from, int *to, int samples, int mcus);
int iof_region_scales(const iof_region *region); /* whether DCT scaling saves time: our own decoder is faster without */
/* With `by_rows` the pixels may be rows that are made on request, from memory of the region. */
iof_status iof_region_decode(iof_region *region, const int32_t rect[4], int denominator, int strict, int by_rows,
                             iof_pixels *pixels);
/* The planes of the whole opened image, scaled by 1/denominator. `planar` returns their number, or 0 if the image must be
decoded by `decode`. */
int iof_region_planar(const iof_region *region);
iof_status iof_region_planes(iof_region *region, int denominator, int strict, iof_plane planes[3]);

/* Decode, resample and encode the opened image plane by plane, or store the planes. `memory` is for the resulting
planes. */
iof_status iof_transcode_planes(iof_region *region, iof_resampler *r, const iof_recipe *recipe, const iof_options *options,
                                iof_buffer *memory, iof_encoded *encoded);
#endif
