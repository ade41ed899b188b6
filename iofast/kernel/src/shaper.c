/* Pixels of a colour profile with curves and a matrix to sRGB; kernel/shaper.py makes the tables. */
#include <string.h>

#include "internal.h"

#define ONE (1 << IOF_SHAPER_BITS)

/* One register on every machine. Sums are unsigned, so that any tables are defined. */
typedef uint32_t lanes __attribute__((vector_size(16)));
typedef int32_t signed_lanes __attribute__((vector_size(16)));

static inline lanes load(const int32_t *four) {
  lanes loaded;
  memcpy(&loaded, four, sizeof loaded);
  return loaded;
}

/* The linear red, green and blue of a pixel, clipped. */
static inline signed_lanes light_of(const iof_shaper *s, const uint8_t *rgb) {
  const signed_lanes one = {ONE, ONE, ONE, ONE};
  signed_lanes light = (signed_lanes)(load(s->products[0][rgb[0]]) + load(s->products[1][rgb[1]]) + load(s->products[2][rgb[2]]));
  light >>= IOF_SHAPER_BITS;
  light &= ~(light >> 31);
  signed_lanes above = light > one;
  return (light & ~above) | (one & above);
}

void iof_shape(const iof_shaper *shaper, uint8_t *rgb, size_t n) {
  for (size_t i = 0; i < n; i++, rgb += 3) {
    signed_lanes light = light_of(shaper, rgb);
    for (int c = 0; c < 3; c++) rgb[c] = shaper->levels[light[c]];
  }
}
