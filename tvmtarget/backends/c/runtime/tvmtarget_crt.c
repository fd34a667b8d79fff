/* The runtime of programs that tvmtarget generates in C99. */
#include "tvmtarget_crt.h"

const char *tvmtarget_status_text(int32_t status) {
  switch (status) {
    case TVMTARGET_OK: return "done";
    case TVMTARGET_ERROR_NULL_POINTER: return "an input, output or memory is NULL";
    case TVMTARGET_ERROR_WORKSPACE_TOO_SMALL: return "a workspace is too small";
    case TVMTARGET_ERROR_UNALIGNED: return "a workspace is not aligned";
    case TVMTARGET_ERROR_ARGUMENTS: return "a packed function was called with other arguments than it takes";
    case TVMTARGET_ERROR_DEVICE: return "a device could not be opened";
    case TVMTARGET_ERROR_INDEX: return "an index is out of bounds";
    default: return "a kernel failed";
  }
}

static bool has_type(const struct tvmtarget_tensor *tensor, const struct tvmtarget_type *type) {
  int64_t step = 1;
  int32_t i;
  bool is_bool = type->code == 6 && tensor->dtype.code == 1 && tensor->dtype.bits <= 8; /* of older DLPack */
  if ((tensor->dtype.code != type->code || tensor->dtype.bits != type->bits) && !is_bool) return false;
  if (tensor->dtype.lanes != 1 || tensor->ndim != type->ndim || tensor->device.type != 1) return false;
  if (tensor->shape == NULL && type->ndim > 0) return false;
  for (i = type->ndim - 1; i >= 0; --i) {
    if (tensor->shape[i] != type->shape[i]) return false;
    /* `step` is 0 where a dimension is empty: there no element has a place. */
    if (tensor->strides != NULL && type->shape[i] > 1 && step != 0 && tensor->strides[i] != step) return false;
    step *= type->shape[i];
  }
  return tensor->data != NULL || step == 0;
}

int32_t tvmtarget_read(const union tvmtarget_value *values, const int32_t *type_codes, int32_t count,
                       const struct tvmtarget_type *types, int32_t expected, void **data) {
  int32_t i;
  if (count != expected || (count > 0 && (values == NULL || type_codes == NULL))) return TVMTARGET_ERROR_ARGUMENTS;
  for (i = 0; i < count; ++i) {
    const struct tvmtarget_tensor *tensor = (const struct tvmtarget_tensor *)values[i].v_handle;
    if (type_codes[i] != TVMTARGET_TENSOR || tensor == NULL) return TVMTARGET_ERROR_ARGUMENTS;
    if (!has_type(tensor, &types[i])) return TVMTARGET_ERROR_ARGUMENTS;
    data[i] = tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
  }
  return TVMTARGET_OK;
}

int32_t tvmtarget_call(tvmtarget_packed function, void *const *data, const struct tvmtarget_type *types, int32_t count,
                       struct tvmtarget_tensor *tensors, union tvmtarget_value *values, int32_t *type_codes) {
  int32_t i;
  for (i = 0; i < count; ++i) {
    tensors[i].data = data[i];
    tensors[i].device.type = 1;
    tensors[i].device.number = 0;
    tensors[i].ndim = types[i].ndim;
    tensors[i].dtype.code = types[i].code;
    tensors[i].dtype.bits = types[i].bits;
    tensors[i].dtype.lanes = 1;
    tensors[i].shape = types[i].shape;
    tensors[i].strides = NULL;
    tensors[i].byte_offset = 0;
    values[i].v_handle = &tensors[i];
    type_codes[i] = TVMTARGET_TENSOR;
  }
  return function(values, type_codes, count, NULL, NULL, NULL);
}
