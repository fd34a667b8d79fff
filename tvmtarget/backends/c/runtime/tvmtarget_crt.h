/* Types and status codes of programs that tvmtarget generates in C99. */
#ifndef TVMTARGET_CRT_H
#define TVMTARGET_CRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define TVMTARGET_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define TVMTARGET_MAYBE_UNUSED __attribute__((unused))
#else
#error "state how this compiler aligns variables"
#endif
#if defined(__ELF__)
#define TVMTARGET_SECTION(name) __attribute__((section(name)))
#else
#define TVMTARGET_SECTION(name)
#endif

/* Programs of one file each contain the functions of this runtime: there they are weak, and linkers keep one of each. */
#ifndef TVMTARGET_RUNTIME
#define TVMTARGET_RUNTIME
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum tvmtarget_status {
  TVMTARGET_OK = 0,
  TVMTARGET_ERROR_NULL_POINTER = -1,        /* an input, output or memory is NULL */
  TVMTARGET_ERROR_WORKSPACE_TOO_SMALL = -2, /* a workspace has fewer bytes than its ..._SIZE macro */
  TVMTARGET_ERROR_UNALIGNED = -3,           /* a workspace or constants begin at no multiple of ..._ALIGNMENT */
  TVMTARGET_ERROR_ARGUMENTS = -4,           /* a packed function was called with other arguments than it takes */
  TVMTARGET_ERROR_DEVICE = -5,              /* a device could not be opened */
  TVMTARGET_ERROR_INDEX = -6                /* an index that the program read or computed is out of bounds */
};

/* Returns a static text. */
TVMTARGET_RUNTIME const char *tvmtarget_status_text(int32_t status);

/* The number of another type with the same bits. */
#define TVMTARGET_SAME_BITS(to, to_type, from, from_type)                   \
  TVMTARGET_MAYBE_UNUSED static inline to_type tvmtarget_##to##_of_##from(from_type given) { \
    to_type made;                                                           \
    memcpy(&made, &given, sizeof made);                                     \
    return made;                                                            \
  }
TVMTARGET_SAME_BITS(float32, float, int32, int32_t)
TVMTARGET_SAME_BITS(float32, float, uint32, uint32_t)
TVMTARGET_SAME_BITS(int32, int32_t, float32, float)
TVMTARGET_SAME_BITS(uint32, uint32_t, float32, float)
TVMTARGET_SAME_BITS(float64, double, int64, int64_t)
TVMTARGET_SAME_BITS(float64, double, uint64, uint64_t)
TVMTARGET_SAME_BITS(int64, int64_t, float64, double)
TVMTARGET_SAME_BITS(uint64, uint64_t, float64, double)

/* A variable that is 0, which GCC does not know: it compares numbers with a constant 0 by branches. */
#if defined(__GNUC__) && !defined(__clang__)
#define TVMTARGET_ZERO(type, name) \
  type name = 0;                   \
  __asm__("" : "+r"(name))
#else
#define TVMTARGET_ZERO(type, name) const type name = 0
#endif

/* A tensor; binary compatible with DLTensor of DLPack 0.2 and later. */
struct tvmtarget_tensor {
  void *data;
  struct {
    int32_t type; /* 1: the memory of the CPU */
    int32_t number;
  } device;
  int32_t ndim;
  struct {
    uint8_t code; /* 0 int, 1 uint, 2 float, 6 bool */
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  const int64_t *shape;
  const int64_t *strides; /* NULL: compact, the last dimension first */
  uint64_t byte_offset;
};

/* Arguments of packed functions; binary compatible with TVMValue of TVM up to v0.18. */
union tvmtarget_value {
  int64_t v_int64;
  double v_float64;
  void *v_handle;
};
enum { TVMTARGET_TENSOR = 7 }; /* type code of a tensor: kTVMDLTensorHandle */

/* Binary compatible with TVMBackendPackedCFunc of TVM up to v0.18; returns a status. */
typedef int32_t (*tvmtarget_packed)(union tvmtarget_value *values, int32_t *type_codes, int32_t count,
                                    union tvmtarget_value *result, int32_t *result_code, void *resource);

/* The element type and shape that a packed function takes. */
struct tvmtarget_type {
  uint8_t code;
  uint8_t bits;
  int32_t ndim;
  const int64_t *shape;
};

/* Checks the arguments of a packed function, and stores the addresses of their first elements. */
TVMTARGET_RUNTIME int32_t tvmtarget_read(const union tvmtarget_value *values, const int32_t *type_codes, int32_t count,
                                         const struct tvmtarget_type *types, int32_t expected, void **data);

/* Calls a packed function; the three arrays of `count` elements are scratch memory. */
TVMTARGET_RUNTIME int32_t tvmtarget_call(tvmtarget_packed function, void *const *data,
                                         const struct tvmtarget_type *types, int32_t count,
                                         struct tvmtarget_tensor *tensors, union tvmtarget_value *values,
                                         int32_t *type_codes);

/* A function that can be looked up by its name. */
struct tvmtarget_entry {
  const char *name;
  tvmtarget_packed function;
};

#ifdef __cplusplus
}
#endif
#endif
