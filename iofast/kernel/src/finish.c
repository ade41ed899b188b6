/* Work on decoded images: in the same call as their decoding, or on a batch of decoded images. */
#include <string.h>

#include "context.h"

iof_status iof_start_row(iof_context *context, const iof_output *out, iof_target *target) {
  iof_canvas canvas;
  iof_status status = iof_canvas_make(&context->painters[0], out->width, out->height, &canvas);
  if (!status) *target = (iof_target){canvas.planes, 1, canvas.width, (int64_t)canvas.plane};
  return status;
}

iof_status iof_finish_row(iof_context *context, const iof_work *work, int64_t row, const iof_output *out, uint8_t *to) {
  iof_painter *painter = &context->painters[0];
  iof_canvas canvas;
  iof_status status = iof_canvas_make(painter, out->width, out->height, &canvas); /* made by iof_start_row */
  if (!status) status = iof_take_steps(painter, work, row, &canvas);
  iof_clock_lap(&context->counters, IOF_STEPPING);
  if (!status) status = iof_put_image(painter, work, &(iof_image){&canvas, row}, NULL, NULL, out, to);
  iof_clock_lap(&context->counters, IOF_STORING);
  return status;
}

/* Copy a decoded image onto a canvas and apply its steps. */
static iof_status take_image(iof_painter *painter, const iof_output *images, const iof_work *work, int64_t row,
                             iof_canvas *canvas) {
  iof_status status = iof_canvas_make(painter, images->width, images->height, canvas);
  size_t width = (size_t)images->width;
  for (int c = 0; c < 3 && !status; c++)
    for (int y = 0; y < images->height; y++) {
      const uint8_t *from = images->data + row * images->row_stride + y * images->y_stride + c * images->channel_stride;
      uint8_t *to = canvas->planes + (size_t)c * canvas->plane + (size_t)y * width;
      if (images->x_stride == 1) memcpy(to, from, width);
      else
        for (size_t x = 0; x < width; x++) to[x] = from[(int64_t)x * images->x_stride];
    }
  return status ? status : iof_take_steps(painter, work, row, canvas);
}

iof_status iof_finish_batch(iof_context *context, const iof_output *images, const iof_work *work, const iof_mix *mix,
                            const iof_output *out, int64_t start, int64_t stop) {
  iof_status status = IOF_OK;
  for (int64_t row = start, next; row < stop && !status; row = next) {
    iof_canvas canvases[2];
    iof_image pair[2] = {{&canvases[0], row}, {&canvases[1], row + 1}};
    int two = mix && row + 1 < stop && mix->partners[row] == row + 1;
    next = row + 1 + two;
    for (int i = 0; i <= two && !status; i++)
      status = take_image(&context->painters[i], images, work, row + i, &canvases[i]);
    for (int i = 0; i <= two && !status; i++)
      status = iof_put_image(&context->painters[i], work, &pair[i], two ? &pair[1 - i] : NULL, mix, out,
                             out->data + (row + i) * out->row_stride);
  }
  return status;
}
