/* Our own decoder for the JPEGs that most datasets are made of: baseline, 8 bits, one scan, grayscale or YCbCr in 4:4:4,
4:2:2 or 4:2:0. It decodes a region, and of a file with restart markers only the segments that the region touches.

    iof_frame_read      the markers before the scan
    iof_segments_find   the scan: where its restart segments begin, stuffing removed
    iof_decode_mcus     Huffman codes to coefficients
    idct                coefficients to samples
    iof_colour_row      samples to pixels, a row at a time: fancy upsampling, colour conversion

libjpeg-turbo is its oracle and its fallback: whatever is unusual or damaged is left to it (IOF_UNSUPPORTED), and what is
decoded here is equal to libjpeg-turbo's result bit for bit. */
#ifndef IOFAST_REGION_H
#define IOFAST_REGION_H

#include "internal.h"

typedef struct {
  int h, v;          /* samples per MCU, in blocks */
  int width, height; /* samples that stand for pixels */
  int quant, dc, ac; /* numbers of its tables */
} iof_component;

/* Where the body of a DHT table lies: 16 counts, then the symbols. */
typedef struct {
  const uint8_t *body;
  int symbols;
} iof_code_table;

typedef struct {
  int width, height, components;
  int across, down; /* MCUs */
  int restart;      /* MCUs per restart segment, 0 = no markers */
  iof_component component[3];
  uint16_t quant[4][64]; /* in the order of coefficients: row by row */
  iof_code_table code[2][4]; /* DC, AC */
  size_t scan;       /* offset of the first entropy-coded byte */
} iof_frame;

/* IOF_UNSUPPORTED for everything that is libjpeg's to decode or to refuse. */
iof_status iof_frame_read(const uint8_t *data, size_t length, iof_frame *frame);

#define IOF_OVERREAD 2048 /* zero bytes behind the last segment: a damaged MCU takes at most 1,250 before it is noticed */

/* The scan without stuffing and markers. Segment i lies at bytes + begin[i] and ends at bytes + begin[i + 1]; in the file
it begins at `origin[i]`. `ended` says that the end-of-image marker was met behind the last one. */
typedef struct {
  const uint8_t *bytes;
  const uint32_t *begin, *origin;
  uint32_t count;
  int ended;
  iof_buffer memory, places;
} iof_segments;

/* IOF_CORRUPT where the markers are not those that the frame demands, IOF_UNSUPPORTED for what libjpeg must judge. */
iof_status iof_segments_find(iof_segments *segments, const iof_frame *frame, const uint8_t *data, size_t length);
void iof_segments_free(iof_segments *segments);

#define IOF_LOOK 11 /* bits that one table lookup sees */

/* `one[next bits]` is a symbol, from the lowest byte: length of code and value, or IOF_LONG where the code does not fit;
run; length of the code; size of the value. End of block is run 128.

`two[next bits]`, of AC codes, is two symbols with their values where they fit, else one. From the lowest byte: length of
all; run of the first, or 255 where its value does not fit; where the second value goes behind the first; how far both
advance; then the two values. Of one symbol the second value is a zero that does no harm. */
#define IOF_LONG 0x80u
typedef struct {
  uint64_t two[1 << IOF_LOOK];
  uint32_t one[1 << IOF_LOOK];
  uint32_t limit[18]; /* codes of `length` bits are below limit[length], as 16 bits left-aligned */
  int32_t first[18];  /* symbol number of a code: first[length] + code */
  uint8_t symbols[256];
  uint8_t body[16 + 256]; /* what it was made from */
  int made;               /* bytes of `body`, 0 = nothing */
  int direct;
} iof_codes;

/* 0 where the table is not one of a baseline JPEG. */
int iof_codes_make(iof_codes *codes, const iof_code_table *table, int ac);

/* One restart segment while it is read. */
typedef struct {
  uint64_t bits;     /* the next bits, from the top */
  const uint8_t *at; /* the byte behind them */
  const uint8_t *end;
  int count; /* of valid bits */
  int32_t dc[3];
} iof_bits;

/* Coefficients lie in groups of four blocks side by side: coefficient (row, column) of block b at 32 * row + 8 * b +
column, so that one vector holds a row of all four. */
#define IOF_FOUR 256 /* coefficients of a group */

/* What one MCU row is decoded with. `rows[c][v]` is block row v of component c, from the first wanted MCU on. */
typedef struct {
  const iof_frame *frame;
  const iof_codes *dc[3], *ac[3];
  int16_t *rows[3][2];
} iof_mcu_row;

typedef struct {
  int (*decode)(const iof_mcu_row *row, iof_bits *bits, int first, int count);
  int (*decode_two)(const iof_mcu_row rows[2], iof_bits bits[2], int first, int count);
  /* `fours` groups of four blocks to eight rows of samples. 0 where a value of a block's first row needs more than 14 bits,
  eight times what a picture has: there libjpeg-turbo's vector code wraps or saturates, as the other rows have it */
  int (*idct)(const int16_t *coefs, const uint16_t *quant, int fours, uint8_t *to, size_t stride);
  /* to[i] = 3 * near[i] + far[i] */
  void (*blend)(const uint8_t *near, const uint8_t *far, int n, int16_t *to);
  /* what blend made of n samples to 2n; `even` and `odd` are added before the shift, and sums has one more at either end */
  void (*spread)(const int16_t *sums, int n, int even, int odd, uint8_t *to);
  void (*colour)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, uint8_t *rgbx);
  /* the same to three planes, each byte ^ flip */
  void (*planes)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int flip, uint8_t *to, size_t plane);
} iof_block_loops;

/* `count` MCUs into the blocks of the `first`th wanted MCU and of those behind it, or past them where first < 0. 0 where
the data is damaged. */
int iof_decode_mcus(const iof_mcu_row *row, iof_bits *bits, int first, int count);

/* The same for two segments in step, which belong to the same columns of two MCU rows: each hides the other's latency. */
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

/* One component decoded: `samples` is its sample (x, y); its last column and row are `width` - 1 and `height` - 1. */
typedef struct {
  uint8_t *samples;
  size_t stride;
  int x, y, width, height;
} iof_samples;

/* Columns and rows of the image. */
typedef struct {
  int x0, y0, x1, y1;
} iof_rect;

/* One plane (gray) or three; h and v are luma samples for one of chroma. */
typedef struct {
  iof_samples planes[3];
  int count, h, v;
} iof_picture;

/* What rows of a picture are made with. Each chroma plane holds one sample more than `rect` on each side, where the image
goes on there. */
typedef struct {
  const iof_block_loops *loops;
  iof_picture picture;
  iof_rect rect;
  uint8_t *chroma[2]; /* scratch: upsampled rows, or grey */
  int16_t *sums;
} iof_colouring;

/* Columns [rect.x0, rect.x1) of row `y`, upsampled and converted; scratch is in `rows`. */
iof_status iof_colour_start(iof_colouring *colouring, const iof_block_loops *loops, const iof_picture *picture,
                            const iof_rect *rect, iof_buffer *rows);
void iof_colour_row(const iof_colouring *colouring, int y, uint8_t *rgbx);
void iof_colour_planes(const iof_colouring *colouring, int y, uint8_t *to, size_t plane); /* as iof_pixels' `row` gives them */

/* A JPEG of whole segments: its pixel (0, 0) is (x, y) of the image it comes from. It is made in the caller's `room` bytes at
`to`, or where that is NULL in `memory`. */
typedef struct {
  const uint8_t *bytes;
  size_t length;
  int x, y, width, height;
  int whole; /* all of the scan */
  uint8_t *to;
  size_t room;
  iof_buffer memory;
} iof_spliced;
int iof_spliceable(const iof_frame *frame); /* its rows are whole segments */
/* The segments that hold `mcus`, or all of the scan where that is not spliceable; the segments found must be all that the
frame demands. IOF_MEMORY where there is not room enough: the payload's length and 64 bytes always are. */
iof_status iof_splice(const iof_frame *frame, const iof_segments *segments, const uint8_t *data, const iof_rect *mcus,
                      iof_spliced *out);

/* A JPEG, decoded by us or by libjpeg. */
typedef struct iof_region iof_region;
iof_region *iof_region_new(iof_counters *counters, int way); /* iof_options' */
void iof_region_free(iof_region *region);
iof_status iof_region_jpeg(iof_region *region, iof_jpeg **jpeg); /* the opened image in libjpeg's hands */
iof_jpeg *iof_region_idle_jpeg(iof_region *region); /* libjpeg alone, for an image that `region` does not open */
iof_status iof_region_open(iof_region *region, const uint8_t *data, size_t length, int *width, int *height);
/* For iof_region_splice alone: header and tables, without libjpeg; IOF_UNSUPPORTED where they are not ours to decode. */
iof_status iof_region_frame(iof_region *region, const uint8_t *data, size_t length, int *width, int *height);
/* What holds `rect` (in pixels) of the frame as a JPEG of its own. IOF_UNSUPPORTED where the scan's markers are not all there. */
iof_status iof_region_splice(iof_region *region, const iof_rect *rect, iof_spliced *out);
int iof_region_scales(const iof_region *region); /* whether DCT scaling saves anything: our own decoder is faster without */
/* With `by_rows` the pixels may come as rows that are still to be made, from memory of the region. */
iof_status iof_region_decode(iof_region *region, const int32_t rect[4], int denominator, int strict, int by_rows,
                             iof_pixels *pixels);
#endif
