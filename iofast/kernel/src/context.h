/* Shared by decode.c, device_plan.c and finish.c only: the context, and access to payloads. */
#ifndef IOFAST_CONTEXT_H
#define IOFAST_CONTEXT_H

#include "foreign.h"
#include "pixels.h"
#include "raw.h"
#include "region.h"

struct iof_context {
  iof_options options;
  iof_counters counters;
  iof_region *region;
  iof_resampler resampler;
  iof_buffer payload;
  iof_unpacker unpacker;
  iof_inflater inflater;
  iof_painter painters[2]; /* for an image and its partner */
  iof_buffer rgb; /* of a transcode */
};

static inline int iof_is_raw(const iof_source *source, int64_t i) {
  return source->indexed && source->indexed[i].kind != IOF_ENCODED;
}

/* Get a whole payload and compare its checksum. `*data` points into the context, or to the payload in memory. */
iof_status iof_fetch_whole(iof_context *context, const iof_source *source, int64_t i, const uint8_t **data);

/* Whether the header of an encoded image, upright `width` x `height`, contradicts the index. */
int iof_is_changed(const iof_source *source, int64_t i, const uint8_t *data, int width, int height);

/* Decode a row of a batch with work into planes of the context, from which iof_finish_row takes it. */
iof_status iof_start_row(iof_context *context, const iof_output *out, iof_target *target);
iof_status iof_finish_row(iof_context *context, const iof_work *work, int64_t row, const iof_output *out, uint8_t *to);

/* The box with its window moved into the resampled image, as far as it fits. */
iof_box iof_moved_within(const iof_box *box, int out_width, int out_height);

/* Whether a box lies within an upright image of this size, and its window within the resampled image. */
int iof_box_fits(const iof_box *box, int width, int height, int out_width, int out_height);

#endif
