/* The steps on single levels, of each channel by itself. A row of this list is all of such a step: the loops for every
instruction set (tile_loops.h), the passes over an image (steps.c) and the device's code (device_steps.h) come from it.

X(name, code, first, second, value)
  name, code     IOF_<name> and its number, which are those of work.py's Step
  first, second  numbers a and b of 16 bits, from the step's parameters f
  value          what the level v, 0 to 255, becomes: also 0 to 255 */
#ifndef IOFAST_LEVEL_STEPS_H
#define IOFAST_LEVEL_STEPS_H

#define IOF_LEVEL_STEPS(X)                                                   \
  X(SOLARIZE, 5, threshold_of(f), 0, v >= a ? 255 - v : v)                   \
  X(POSTERIZE, 6, mask_of(f), 0, v & a)                                      \
  X(ADD_BELOW, 7, threshold_of(f), whole_of(f[1], 0, 255), add_below(v, a, b))

#endif
