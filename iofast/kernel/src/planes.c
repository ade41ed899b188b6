/* Packing without colour conversion: the planes of a JPEG are resampled as they are stored, and encoded.

Upsampling the chroma, converting to RGB, and reversing both costs more than the resampling itself and only blurs: the
chroma of the usual 4:2:0 picture has as many samples as a picture of half the size needs. Luma and chroma get the same
filter, each at its own scale. */
#include <string.h>

#include "region.h"

/* One upright axis of a resample from a plane of the source to a plane of the result. */
typedef struct {
  double extent; /* of the stored plane, in its own samples */
  int size;      /* samples stored */
  int mirror;
  double virtual_size, first; /* of the whole resampled image and of the window, in the result's samples */
  int outputs;
} axis_plan;

static iof_status make_axis(iof_axis *axis, const axis_plan *p, int filter, iof_buffer *scratch) {
  double scale = p->extent / p->virtual_size;
  iof_span span = {.low = 0, .high = p->size, .virtual_size = p->outputs, .outputs = p->outputs};
  /* seen from the far end, the last sample may reach beyond the picture's edge: the picture begins inside it */
  span.from = p->first * scale + (p->mirror ? p->size - p->extent : 0);
  span.to = span.from + p->outputs * scale;
  iof_status status = iof_axis_make(axis, &span, filter, scratch);
  if (!status && p->mirror) iof_axis_mirror(axis, p->size);
  return status;
}

/* Fill the last blocks by repeating the last column and row, as libjpeg does with rows of pixels. */
static void pad(const iof_plane *plane, size_t width, size_t height) {
  size_t own_width = (size_t)plane->width, own_height = (size_t)plane->height;
  for (size_t y = 0; y < own_height; y++) {
    uint8_t *row = plane->samples + y * plane->stride;
    memset(row + own_width, row[own_width - 1], width - own_width);
  }
  for (size_t y = own_height; y < height; y++)
    memcpy(plane->samples + y * plane->stride, plane->samples + (own_height - 1) * plane->stride, width);
}

static iof_status resample_plane(iof_resampler *r, const iof_recipe *recipe, int filter, const iof_plane *from,
                                 const iof_plane *to, int h, int v) {
  iof_orientation o = iof_orientation_of(recipe->orientation);
  const iof_box *b = &recipe->box;
  axis_plan across = {o.turned ? from->down : from->across, o.turned ? from->height : from->width, o.mirror_x,
                      (double)b->virtual_w / h, (double)b->x / h, to->width};
  axis_plan down = {o.turned ? from->across : from->down, o.turned ? from->width : from->height, o.mirror_y,
                    (double)b->virtual_h / v, (double)b->y / v, to->height};
  iof_target target = {to->samples, 1, (int64_t)to->stride, 0};
  if (o.turned) target = (iof_target){to->samples, (int64_t)to->stride, 1, 0};
  iof_status status = make_axis(o.turned ? &r->y : &r->x, &across, filter, &r->weights);
  if (!status) status = make_axis(o.turned ? &r->x : &r->y, &down, filter, &r->weights);
  if (!status) status = iof_resample_plane(r, from, &target);
  return status;
}

iof_status iof_transcode_planes(iof_region *region, iof_resampler *r, const iof_recipe *recipe, const iof_options *options,
                                iof_buffer *memory, iof_encoded *encoded) {
  int count = iof_region_planar(region);
  int luma_h = count == 3 ? recipe->h_samp : 1, luma_v = count == 3 ? recipe->v_samp : 1;
  size_t width = (size_t)iof_divided_up(recipe->width, 8 * luma_h) * 8;
  size_t height = (size_t)iof_divided_up(recipe->height, 8 * luma_v) * 8;
  size_t luma = width * (size_t)luma_h * height * (size_t)luma_v, chroma = count == 3 ? width * height : 0;
  iof_plane from[3], to[3];
  iof_status status = iof_region_planes(region, recipe->denominator, options->strict, from);
  uint8_t *samples = iof_reserve(memory, luma + 2 * chroma + 64);
  if (!status && !samples) status = IOF_MEMORY;
  for (int p = 0; p < count && !status; p++) {
    int h = p ? luma_h : 1, v = p ? luma_v : 1; /* pixels of the result per sample of this plane */
    to[p] = (iof_plane){samples, 0, iof_divided_up(recipe->width, h), iof_divided_up(recipe->height, v), 0, 0};
    size_t own_width = width * (size_t)(p ? 1 : luma_h), own_height = height * (size_t)(p ? 1 : luma_v);
    to[p].stride = own_width;
    samples += own_width * own_height;
    status = resample_plane(r, recipe, options->filter, &from[p], &to[p], h, v);
    if (!status) pad(&to[p], own_width, own_height);
  }
  if (!status) status = iof_jpeg_encode_planes(iof_region_idle_jpeg(region), to, count, recipe, encoded);
  return status;
}
