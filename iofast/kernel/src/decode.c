/* Decoding and transcoding of one image at a time: payload, check, region, resample; and batches of images. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"

iof_context *iof_context_new(const iof_options *options) {
  iof_context *context = calloc(1, sizeof *context);
  if (context) {
    context->options = *options;
    context->resampler.loops = iof_loops_best();
    context->unpacker.loops = iof_block_loops_best();
    context->painters[0].loops = context->painters[1].loops = iof_tile_loops_best();
    context->unpacker.counters = &context->counters;
    context->region = iof_region_new(&context->counters, options->way);
    if (!context->region) {
      free(context);
      context = NULL;
    }
  }
  return context;
}

void iof_context_free(iof_context *context) {
  if (!context) return;
  iof_region_free(context->region);
  iof_resampler_free(&context->resampler);
  free(context->payload.data);
  free(context->rgb.data);
  iof_unpacker_free(&context->unpacker);
  iof_inflater_free(&context->inflater);
  iof_painter_free(&context->painters[0]);
  iof_painter_free(&context->painters[1]);
  free(context);
}

iof_counters *iof_context_counters(iof_context *context) { return &context->counters; }

#define LARGE (1 << 24) /* pixels; larger images of other formats are Pillow's, with its estimate of memory */
#define GAP 8192 /* bytes between two runs that are read too: copying them costs as much as another pread, 1 us */

/* Read `count` runs of a payload to their places in the whole of it. What lies between them stays undefined. */
static iof_status read_runs(iof_context *context, int fd, uint64_t offset, const iof_run *runs, int count,
                            const uint8_t **data) {
  size_t end = runs[count - 1].offset + runs[count - 1].length;
  uint8_t *to = iof_reserve(&context->payload, end + 64);
  iof_status status = !to ? IOF_MEMORY : offset > UINT64_MAX - end ? IOF_SHORT : IOF_OK;
  for (int i = 0, next; i < count && !status; i = next) {
    uint64_t from = runs[i].offset, upto = from + runs[i].length;
    for (next = i + 1; next < count && runs[next].offset <= upto + GAP; next++) upto = runs[next].offset + runs[next].length;
    status = iof_read_bytes(fd, offset + from, (size_t)(upto - from), to + from);
  }
  *data = to;
  return status;
}

static uint64_t most_bytes(const iof_context *context, const iof_source *source, int64_t i) {
  return source->indexed && source->indexed[i].kind == IOF_DECODED ? UINT64_MAX : context->options.max_bytes;
}

/* Get some runs of a payload, or point to them in memory. */
static iof_status fetch(iof_context *context, const iof_source *source, int64_t i, const iof_run *runs, int count,
                        const uint8_t **data) {
  iof_status status = IOF_OK;
  if (source->lengths[i] > most_bytes(context, source, i)) {
    status = IOF_LIMIT;
  } else if (source->fds[i] == -1) { /* only -1: pread fails for any other negative number */
    *data = (const uint8_t *)(uintptr_t)source->offsets[i];
  } else {
    status = read_runs(context, source->fds[i], source->offsets[i], runs, count, data);
  }
  iof_clock_lap(&context->counters, IOF_READING);
  return status;
}

iof_status iof_fetch_whole(iof_context *context, const iof_source *source, int64_t i, const uint8_t **data) {
  size_t length = (size_t)source->lengths[i];
  iof_status status = fetch(context, source, i, &(iof_run){0, length}, 1, data);
  if (!status && source->crcs && iof_crc32c(0, *data, length) != source->crcs[i]) status = IOF_CHECKSUM;
  iof_clock_lap(&context->counters, IOF_CHECKING);
  return status;
}

int iof_is_changed(const iof_source *source, int64_t i, const uint8_t *data, int width, int height) {
  const iof_raw *indexed = source->indexed ? &source->indexed[i] : NULL;
  int exif = source->orientations[i], changed = 0;
  iof_header header;
  if (indexed && indexed->width > 0) {
    changed = indexed->width != width || indexed->height != height;
    if (!changed && exif >= 1 && exif <= 8 && !iof_read_header(data, (size_t)source->lengths[i], &header))
      changed = header.orientation != exif;
  }
  return changed;
}

int iof_box_fits(const iof_box *b, int width, int height, int out_width, int out_height) {
  return b->x0 >= 0 && b->y0 >= 0 && b->x0 < b->x1 && b->y0 < b->y1 && b->x1 <= width && b->y1 <= height &&
         b->virtual_w >= 1 && b->virtual_h >= 1 && b->x >= 0 && b->y >= 0 && out_width >= 1 && out_height >= 1 &&
         out_width <= b->virtual_w - b->x && out_height <= b->virtual_h - b->y;
}

static int32_t start_within(int32_t start, int resampled, int output) {
  int32_t last = resampled > output ? resampled - output : 0;
  return start < 0 ? 0 : start > last ? last : start;
}

iof_box iof_moved_within(const iof_box *box, int out_width, int out_height) {
  iof_box moved = *box;
  moved.x = start_within(box->x, box->virtual_w, out_width);
  moved.y = start_within(box->y, box->virtual_h, out_height);
  return moved;
}

/* The largest DCT reduction after which the region still has at least as many pixels as are wanted. */
static int fast_denominator(const iof_box *b) {
  int denominator = 8;
  while (denominator > 1 && ((b->x1 - b->x0) / denominator < b->virtual_w || (b->y1 - b->y0) / denominator < b->virtual_h))
    denominator /= 2;
  return denominator;
}

/* After DCT scaling the last sample may reach beyond the picture's edge. Seen from the far end, the picture then begins
inside this sample. */
static iof_span span_of(int from, int to, int size, int denominator, int mirror) {
  double scale = 1.0 / denominator, inside = mirror ? iof_divided_up(size, denominator) - size * scale : 0;
  iof_span span = {.from = from * scale + inside, .to = to * scale + inside};
  span.low = (int)floor(span.from);
  span.high = (int)ceil(span.to);
  return span;
}

typedef struct {
  const iof_box *box;
  int exif, flip, denominator, filter;
  int width, height; /* of the window */
  const float *span; /* NULL: the whole region */
  int exact;
} view;

/* One axis of a region for Pillow's arithmetic. `span` is the start of the interval, and then its end two further on. */
static iof_span exact_span(int from, int to, const float *span) {
  return (iof_span){.from = span ? span[0] : 0, .to = span ? span[2] : to - from, .low = from, .high = to, .exact = 1};
}

/* Whether a view is resampled in Pillow's arithmetic. Pillow has no filter without antialiasing. */
static int is_exact(const view *v) { return v->exact && v->filter != IOF_ALIASED; }

/* Whether a span is a part of its region. */
static int span_fits(const float *span, const iof_box *b) {
  float width = (float)(b->x1 - b->x0), height = (float)(b->y1 - b->y0);
  return !span || (span[0] >= 0 && span[1] >= 0 && span[0] < span[2] && span[1] < span[3] && span[2] <= width && span[3] <= height);
}

/* Make both axes in upright coordinates, so that every rounding is that of the upright image, then turn them into the
stored image's. `rect` becomes the needed rectangle of stored pixels. */
static iof_status make_axes(iof_context *context, const view *v, int width, int height, int32_t rect[4]) {
  iof_resampler *r = &context->resampler;
  iof_orientation o = iof_orientation_of(v->exif);
  iof_axis *x = o.turned ? &r->y : &r->x, *y = o.turned ? &r->x : &r->y;
  iof_span across = span_of(v->box->x0, v->box->x1, width, v->denominator, o.mirror_x);
  iof_span down = span_of(v->box->y0, v->box->y1, height, v->denominator, o.mirror_y);
  if (is_exact(v)) {
    across = exact_span(v->box->x0, v->box->x1, v->span);
    down = exact_span(v->box->y0, v->box->y1, v->span ? v->span + 1 : NULL);
  }
  across.virtual_size = v->box->virtual_w, across.first = v->box->x, across.outputs = v->width;
  across.reverse = (int16_t)v->flip;
  down.virtual_size = v->box->virtual_h, down.first = v->box->y, down.outputs = v->height;
  iof_status status = iof_axis_make(x, &across, v->filter, &r->weights);
  if (!status) status = iof_axis_make(y, &down, v->filter, &r->weights);
  if (!status) {
    if (o.mirror_x) iof_axis_mirror(x, iof_divided_up(width, v->denominator));
    if (o.mirror_y) iof_axis_mirror(y, iof_divided_up(height, v->denominator));
    rect[0] = r->x.low, rect[1] = r->y.low, rect[2] = r->x.high, rect[3] = r->y.high;
  }
  return status;
}

/* Filters with negative lobes overshoot and Pillow clips between its passes, so the order is part of their result. The
upright horizontal pass comes first; since Pillow 13, the vertical one if the height shrinks by more than twice the
pixels of the width. Without negative lobes both orders agree to one level, and iof_resample chooses, unless the axes are
exact. */
static int horizontal_first(const iof_context *context, const view *v) {
  const iof_box *b = v->box;
  int narrower = b->x1 - b->x0 - b->virtual_w, lower = b->y1 - b->y0 - b->virtual_h;
  int upright_first = context->options.pillow < 13 || !(lower > 0 && lower > (int64_t)narrower * 2);
  int matters = v->filter == IOF_BICUBIC || v->filter == IOF_LANCZOS || is_exact(v);
  return matters && upright_first != iof_orientation_of(v->exif).turned;
}

static int view_fits(const view *v, int width, int height) {
  return iof_box_fits(v->box, width, height, v->width, v->height) && span_fits(v->span, v->box);
}

/* Check header, limits and box before any pixel is decoded. Returns the upright size of the image. */
static iof_status open_view(iof_context *context, const uint8_t *data, size_t length, const view *v, int *width,
                            int *height) {
  int stored_width = 0, stored_height = 0, turned = iof_orientation_of(v->exif).turned;
  iof_status status = length < 2 || data[0] != 0xFF || data[1] != 0xD8 ? IOF_UNSUPPORTED : IOF_OK;
  if (!status) status = iof_region_open(context->region, data, length, &stored_width, &stored_height);
  if (!status && (uint64_t)stored_width * (uint64_t)stored_height > context->options.max_pixels) status = IOF_LIMIT;
  *width = turned ? stored_height : stored_width;
  *height = turned ? stored_width : stored_height;
  if (!status && !view_fits(v, *width, *height)) status = IOF_BOX;
  return status;
}

/* Resample stored pixels into the target, along the axes of make_axes. */
static iof_status resample_view(iof_context *context, const view *v, const iof_pixels *pixels, iof_target target) {
  if (iof_orientation_of(v->exif).turned) { /* stored columns become upright rows */
    int64_t swap = target.x_stride;
    target.x_stride = target.y_stride;
    target.y_stride = swap;
  }
  return iof_resample(&context->resampler, pixels, &target, horizontal_first(context, v));
}

static iof_status decode_view(iof_context *context, const view *v, int width, int height, iof_target target) {
  const iof_options *options = &context->options;
  int32_t rect[4];
  iof_pixels pixels;
  view scaled_view = *v;
  int scale = options->fast && !is_exact(v) && iof_region_scales(context->region);
  if (!v->denominator) scaled_view.denominator = scale ? fast_denominator(v->box) : 1;
  iof_clock_lap(&context->counters, IOF_SCANNING); /* until here the header */
  iof_status status = make_axes(context, &scaled_view, width, height, rect);
  iof_clock_lap(&context->counters, IOF_AXES);
  if (!status) status = iof_region_decode(context->region, rect, scaled_view.denominator, options->strict,
                                           iof_takes_rows(&context->resampler), &pixels);
  if (!status) status = resample_view(context, v, &pixels, target);
  iof_clock_lap(&context->counters, IOF_RESAMPLING);
  return status;
}

static void zero_row(const iof_output *out, uint8_t *to) {
  size_t size = iof_size_of(out->type);
  for (int y = 0; y < out->height; y++)
    for (int x = 0; x < out->width; x++)
      for (int c = 0; c < 3; c++) memset(to + y * out->y_stride + x * out->x_stride + c * out->channel_stride, 0, size);
}

/* Decode a PNG or a WebP, in Pillow's arithmetic, so that it does not matter whether Pillow does it. */
static iof_status decode_foreign(iof_context *context, const iof_source *source, int64_t i, const uint8_t *data,
                                 const view *v, iof_target target) {
  size_t length = (size_t)source->lengths[i];
  view full_size = *v;
  iof_foreign image = {0};
  iof_pixels pixels;
  int32_t rect[4];
  int png = length && data[0] == 0x89, turned = iof_orientation_of(v->exif).turned;
  int checked = source->indexed && source->indexed[i].width > 0;
  iof_status status = (png ? iof_png_open : iof_webp_open)(data, length, &image);
  int width = turned ? image.height : image.width, height = turned ? image.width : image.height;
  if (status || (checked && (image.described || v->exif > 1)) || (int64_t)width * height > LARGE ||
      (uint64_t)width * (uint64_t)height > context->options.max_pixels || !view_fits(v, width, height) ||
      (checked && iof_is_changed(source, i, data, width, height)))
    return IOF_UNSUPPORTED;
  full_size.denominator = 1, full_size.exact = 1;
  uint8_t *rgb = iof_reserve(&context->rgb, 3 * (size_t)width * (size_t)height + 64);
  status = rgb ? make_axes(context, &full_size, width, height, rect) : IOF_MEMORY;
  iof_clock_lap(&context->counters, IOF_AXES);
  if (!status) status = png ? iof_png_decode(&context->inflater, &image, data, rect[3], rgb) : iof_webp_decode(&image, data, length, rgb);
  iof_clock_lap(&context->counters, IOF_ENTROPY);
  iof_raw raw = {IOF_RGB, image.width, image.height};
  if (!status) status = iof_raw_region(&context->unpacker, &raw, rgb, rect, iof_takes_rows(&context->resampler), &pixels);
  iof_clock_lap(&context->counters, IOF_COLOUR);
  if (!status) status = resample_view(context, &full_size, &pixels, target);
  iof_clock_lap(&context->counters, IOF_RESAMPLING);
  if (!status) iof_count(&context->counters, png ? IOF_BY_PNG : IOF_BY_WEBP);
  return status;
}

static int is_foreign(const uint8_t *data, size_t length) {
  return length > 12 && (!memcmp(data, "\x89PNG", 4) || !memcmp(data + 8, "WEBP", 4));
}

/* Decode an encoded image, from payload to target. */
static iof_status decode_row(iof_context *context, const iof_source *source, int64_t i, const view *v, iof_target target) {
  const uint8_t *data = NULL;
  int width = 0, height = 0;
  iof_status status = source->lengths[i] ? iof_fetch_whole(context, source, i, &data) : IOF_EMPTY;
  if (!status && is_foreign(data, (size_t)source->lengths[i])) return decode_foreign(context, source, i, data, v, target);
  if (!status) status = open_view(context, data, (size_t)source->lengths[i], v, &width, &height);
  if ((!status || status == IOF_BOX) && iof_is_changed(source, i, data, width, height)) status = IOF_CHANGED;
  if (!status) status = decode_view(context, v, width, height, target);
  return status;
}

/* Get the needed part of raw pixels, after their axes are made: everything if there is a checksum, else some rows. */
static iof_status fetch_raw(iof_context *context, const iof_source *source, int64_t i, const iof_raw *raw, const uint8_t **data) {
  iof_run run = iof_raw_run(raw, context->resampler.y.low, context->resampler.y.high);
  return source->crcs ? iof_fetch_whole(context, source, i, data) : fetch(context, source, i, &run, 1, data);
}

/* Unpack raw pixels, from payload to target. Their size is known before they are read, so only the needed part is. */
static iof_status unpack_row(iof_context *context, const iof_source *source, int64_t i, const view *v, iof_target target) {
  const iof_options *options = &context->options;
  const uint8_t *data = NULL;
  int32_t rect[4];
  iof_pixels pixels;
  iof_raw raw = source->indexed[i];
  view full_size = *v;
  iof_counters *counters = &context->counters;
  full_size.denominator = 1;
  full_size.exact = v->exact || raw.kind == IOF_DECODED;
  iof_status status = source->lengths[i] > most_bytes(context, source, i) ? IOF_LIMIT : IOF_OK;
  if (!status) status = iof_raw_check(&raw, source->lengths[i], options->max_pixels);
  if (!status && !view_fits(v, raw.width, raw.height)) status = IOF_BOX;
  if (!status) status = make_axes(context, &full_size, raw.width, raw.height, rect);
  iof_clock_lap(counters, IOF_AXES);
  if (iof_orientation_of(v->exif).turned) raw.width = source->indexed[i].height, raw.height = source->indexed[i].width;
  if (!status) status = fetch_raw(context, source, i, &raw, &data);
  if (!status) status = iof_raw_region(&context->unpacker, &raw, data, rect, iof_takes_rows(&context->resampler), &pixels);
  iof_clock_lap(counters, IOF_COLOUR);
  if (!status) status = resample_view(context, &full_size, &pixels, target);
  iof_clock_lap(counters, IOF_RESAMPLING);
  if (!status && raw.kind != IOF_DECODED) iof_count(counters, IOF_BY_COPY);
  return status;
}

/* The size of the view: the output, or the resampled image if that is smaller. Never larger than the output, whatever
the box. */
static int clipped(int output, int resampled) { return resampled >= output ? output : resampled > 1 ? resampled : 1; }

static view view_of(const iof_context *context, const iof_source *source, iof_box *box, int flip, const iof_output *out,
                    int64_t i) {
  const iof_options *options = &context->options;
  int own = flip >> 1; /* 1 + the number of a filter */
  view v = {box, source->orientations[i], flip & 1, 0, options->filter, out->width, out->height, NULL, options->exact};
  if (own && own <= IOF_FILTERS) v.filter = own - 1;
  if (options->clip) {
    *box = iof_moved_within(box, out->width, out->height);
    v.width = clipped(out->width, box->virtual_w), v.height = clipped(out->height, box->virtual_h);
  }
  return v;
}

void iof_decode_batch(iof_context *context, const iof_source *source, const iof_box *boxes, const float *spans,
                      const uint8_t *flips, const iof_work *work, const iof_output *out, int32_t *status, int64_t start,
                      int64_t stop) {
  for (int64_t i = start; i < stop; i++) {
    uint8_t *to = out->data + i * out->row_stride;
    iof_target target = {to, out->x_stride, out->y_stride, out->channel_stride};
    iof_box box = boxes[i];
    view v = view_of(context, source, &box, flips[i], out, i);
    if (spans) v.span = spans + 4 * i; /* there are none unless the options are exact */
    iof_clock_start(&context->counters);
    iof_status result = work ? iof_start_row(context, out, &target) : IOF_OK;
    if (!result) result = (iof_is_raw(source, i) ? unpack_row : decode_row)(context, source, i, &v, target);
    if (!result && work) result = iof_finish_row(context, work, i, out, to);
    /* The caller tries again what is not decoded here, or larger; until then it takes no memory. */
    if (result && result != IOF_UNSUPPORTED && result != IOF_LIMIT) zero_row(out, to);
    status[i] = (int32_t)result;
  }
}

static iof_status transcode_rgb(iof_context *context, const view *v, int width, int height,
                                const iof_recipe *recipe, iof_encoded *encoded) {
  size_t stride = 3 * (size_t)recipe->width, pixels = (size_t)recipe->width * (size_t)recipe->height;
  int raw = recipe->kind != IOF_ENCODED, gray = !raw && iof_region_gray(context->region);
  uint8_t *rgb = iof_reserve(&context->rgb, 3 * pixels + 64);
  iof_status status = rgb ? IOF_OK : IOF_MEMORY;
  if (!status) status = decode_view(context, v, width, height, (iof_target){rgb, 3, (int64_t)stride, 1});
  for (size_t i = 0; i < pixels && gray && !status; i++) rgb[i] = rgb[3 * i]; /* keep one channel of a grayscale image */
  if (!status && raw) *encoded = (iof_encoded){rgb, 3 * pixels};
  if (!status && !raw) status = iof_jpeg_encode(iof_region_idle_jpeg(context->region), rgb, gray ? 1 : 3, recipe, encoded);
  return status;
}

/* Whether planes may be resampled as stored. Not if the result keeps all its chroma: with 4:4:4 the pixels equal
Pillow's to the last level. */
static int by_planes(const iof_context *context, const iof_recipe *recipe, int width, int height) {
  const iof_box *b = &recipe->box;
  int whole = b->x0 == 0 && b->y0 == 0 && b->x1 == width && b->y1 == height;
  int linear = context->options.filter == IOF_BOX_FILTER || context->options.filter == IOF_BILINEAR;
  int planes = recipe->kind == IOF_RGB ? 0 : iof_region_planar(context->region);
  if (planes == 1) return whole && linear;
  return whole && planes && context->options.filter != IOF_NEAREST && recipe->h_samp * recipe->v_samp > 1;
}

iof_status iof_transcode(iof_context *context, const uint8_t *data, size_t length, const iof_recipe *recipe,
                         const uint8_t **encoded, size_t *encoded_length) {
  view v = {&recipe->box, recipe->orientation, 0, recipe->denominator, context->options.filter, recipe->width, recipe->height,
            NULL, 0};
  iof_encoded result = {0};
  int width, height;
  iof_status status = open_view(context, data, length, &v, &width, &height);
  if (!status && (uint64_t)recipe->width * (uint64_t)recipe->height > context->options.max_pixels) status = IOF_LIMIT;
  if (!status) {
    status = by_planes(context, recipe, width, height)
                 ? iof_transcode_planes(context->region, &context->resampler, recipe, &context->options, &context->rgb, &result)
                 : transcode_rgb(context, &v, width, height, recipe, &result);
  }
  *encoded = result.data;
  *encoded_length = result.length;
  return status;
}

iof_status iof_encode(iof_context *context, const uint8_t *pixels, int channels, const iof_recipe *recipe,
                      const uint8_t **encoded, size_t *encoded_length) {
  iof_jpeg *jpeg = iof_region_idle_jpeg(context->region);
  iof_encoded result = {0};
  iof_status status = iof_jpeg_encode(jpeg, pixels, channels, recipe, &result);
  *encoded = result.data;
  *encoded_length = result.length;
  return status;
}

iof_status iof_rewrite(iof_context *context, const uint8_t *data, size_t length, const iof_rewriting *how,
                       const uint8_t **encoded, size_t *encoded_length) {
  iof_encoded result = {0};
  iof_status status = iof_jpeg_rewrite(iof_region_idle_jpeg(context->region), data, length, how, &result);
  *encoded = result.data;
  *encoded_length = result.length;
  return status;
}
