/* What code needs that is compiled for the CPU, as C, and by NVRTC for a GPU, as CUDA C++. */
#ifndef IOFAST_EVERYWHERE_H
#define IOFAST_EVERYWHERE_H

#ifdef __CUDACC_RTC__ /* without the system's headers */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t, uintptr_t;
#endif

#ifdef __CUDACC__
#define IOF_BOTH static __device__ __forceinline__
#define IOF_RARE static __device__ __noinline__
#define IOF_TABLE static __device__ const
#define IOF_UNROLL _Pragma("unroll")
#else
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define IOF_BOTH static inline __attribute__((always_inline))
#define IOF_RARE static __attribute__((noinline))
#define IOF_TABLE static const
#define IOF_UNROLL
#endif

#endif
