/* Parts of JPEGs for a decoder elsewhere: for each payload the smallest JPEG that contains what its box needs. Nothing
is decoded. */
#include <string.h>

#include "context.h"

#define MARGIN 2 /* pixels around the needed ones that upsampling may read */

/* The pixels [*low, *high) of an interval of `length` that `outputs` outputs need, from output `first` on, when it is
resampled bilinearly to `size`. Integers in units of half an output's step, as in `window_pixels` of work.py. */
static void seen(int64_t length, int64_t size, int64_t first, int64_t outputs, int *low, int *high) {
  int64_t reach = 2 * (length > size ? length : size), from = (2 * first + 1) * length - reach - size;
  int64_t upto = (2 * (first + outputs) - 1) * length + reach - size;
  int64_t least = from < 0 ? 0 : from / (2 * size) + 1, most = (upto + 2 * size - 1) / (2 * size);
  *low = (int)least;
  *high = (int)(most < length ? most : length);
}

static int within(int value, int high) { return value < 0 ? 0 : value > high ? high : value; }

/* Convert the upright interval [low, high) to one axis of the stored image, `size` long, with a margin. */
static void turn(int *low, int *high, int size, int mirror, int margin) {
  int from = *low;
  *low = within((mirror ? size - *high : from) - margin, size);
  *high = within((mirror ? size - from : *high) + margin, size);
}

iof_rect iof_needed(const iof_box *box, int exif, int width, int height, int out_width, int out_height, int margin) {
  iof_orientation o = iof_orientation_of(exif);
  int x0, x1, y0, y1;
  seen(box->x1 - box->x0, box->virtual_w, box->x, out_width, &x0, &x1);
  seen(box->y1 - box->y0, box->virtual_h, box->y, out_height, &y0, &y1);
  x0 += box->x0, x1 += box->x0, y0 += box->y0, y1 += box->y0;
  turn(&x0, &x1, width, o.mirror_x, margin);
  turn(&y0, &y1, height, o.mirror_y, margin);
  return o.turned ? (iof_rect){y0, x0, y1, x1} : (iof_rect){x0, y0, x1, y1};
}

/* The start in the upright axis of [from, to) of a stored axis. */
static int upright(int from, int to, int size, int mirror) { return mirror ? size - to : from; }

static iof_status write_part(iof_context *context, const iof_source *source, int64_t i, const iof_box *box,
                             const iof_parts *to, iof_part *part) {
  const uint8_t *data = NULL;
  iof_spliced s = {.to = to->bytes + to->places[i], .room = (size_t)(to->places[i + 1] - to->places[i])};
  int exif = source->orientations[i], width = 0, height = 0;
  iof_orientation o = iof_orientation_of(exif);
  iof_status status = iof_is_raw(source, i) ? IOF_UNSUPPORTED : iof_fetch_whole(context, source, i, &data);
  if (!status) status = iof_region_frame(context->region, data, (size_t)source->lengths[i], &s.width, &s.height);
  if (!status) {
    width = o.turned ? s.height : s.width, height = o.turned ? s.width : s.height;
    if ((uint64_t)width * (uint64_t)height > context->options.max_pixels ||
        !iof_box_fits(box, width, height, to->width, to->height) || iof_is_changed(source, i, data, width, height))
      status = IOF_UNSUPPORTED; /* the decoder will report the error */
  }
  if (!status) {
    iof_rect rect = iof_needed(box, exif, width, height, to->width, to->height, MARGIN);
    status = iof_region_splice(context->region, &rect, &s);
    iof_rect wanted = s.whole ? rect : (iof_rect){s.x, s.y, s.x + s.width, s.y + s.height};
    int a0 = o.turned ? wanted.y0 : wanted.x0, a1 = o.turned ? wanted.y1 : wanted.x1; /* along the upright width */
    int b0 = o.turned ? wanted.x0 : wanted.y0, b1 = o.turned ? wanted.x1 : wanted.y1;
    *part = (iof_part){.length = (int32_t)s.length,
                       .width = s.width,
                       .height = s.height,
                       .x0 = wanted.x0 - s.x,
                       .y0 = wanted.y0 - s.y,
                       .x1 = wanted.x1 - s.x,
                       .y1 = wanted.y1 - s.y,
                       .left = upright(a0, a1, width, o.mirror_x),
                       .top = upright(b0, b1, height, o.mirror_y)};
  }
  iof_clock_lap(&context->counters, IOF_SPLICING);
  return status;
}

void iof_part_batch(iof_context *context, const iof_source *source, const iof_box *boxes, const iof_parts *to, iof_part *parts,
                    int32_t *status, int64_t start, int64_t stop) {
  for (int64_t i = start; i < stop; i++) {
    iof_clock_start(&context->counters);
    iof_box box = context->options.clip ? iof_moved_within(&boxes[i], to->width, to->height) : boxes[i];
    status[i] = (int32_t)write_part(context, source, i, &box, to, &parts[i]);
    if (status[i]) memset(&parts[i], 0, sizeof parts[i]);
  }
}
