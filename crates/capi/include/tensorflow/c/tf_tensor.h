/* Tensors: a type, a shape and memory. */
#ifndef TENSORFLOW_C_TF_TENSOR_H_
#define TENSORFLOW_C_TF_TENSOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tensorflow/c/c_api_macros.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TF_Tensor TF_Tensor;

/* Where a kernel's memory is. */
typedef struct TF_AllocatorAttributes {
  size_t struct_size;
  unsigned char on_host;
} TF_AllocatorAttributes;
#define TF_ALLOCATOR_ATTRIBUTES_STRUCT_SIZE TF_OFFSET_OF_END(TF_AllocatorAttributes, on_host)

/* Takes the client's data over; returns NULL, after having freed them, if they are too few. */
TF_CAPI_EXPORT extern TF_Tensor* TF_NewTensor(
    TF_DataType, const int64_t* dims, int num_dims, void* data, size_t len, void (*deallocator)(void*
    data, size_t len, void* arg), void* deallocator_arg);

/* Returns the alignment that avoids copies, in bytes. */
TF_CAPI_EXPORT extern size_t TF_TensorDefaultAlignment(void);

/* Allocates a tensor with arbitrary content; strings are to be initialised by the client. */
TF_CAPI_EXPORT extern TF_Tensor* TF_AllocateTensor(
    TF_DataType, const int64_t* dims, int num_dims, size_t len);

/* Moves a tensor out if nothing else uses its memory; returns NULL otherwise. */
TF_CAPI_EXPORT extern TF_Tensor* TF_TensorMaybeMove(TF_Tensor* tensor);

/* Deletes a tensor, and its memory if no step uses it. */
TF_CAPI_EXPORT extern void TF_DeleteTensor(TF_Tensor*);

/* Returns the dtype's number. */
TF_CAPI_EXPORT extern TF_DataType TF_TensorType(const TF_Tensor*);

/* Changes the shape; the number of elements is the client's concern. */
TF_CAPI_EXPORT extern void TF_SetShape(TF_Tensor* tensor, const int64_t* dims, int num_dims);

/* Returns the rank. */
TF_CAPI_EXPORT extern int TF_NumDims(const TF_Tensor*);

/* Returns a dimension's size. */
TF_CAPI_EXPORT extern int64_t TF_Dim(const TF_Tensor* tensor, int dim_index);

/* Returns the number of bytes of the memory. */
TF_CAPI_EXPORT extern size_t TF_TensorByteSize(const TF_Tensor*);

/* Returns the address of the memory. */
TF_CAPI_EXPORT extern void* TF_TensorData(const TF_Tensor*);

/* Returns the number of elements. */
TF_CAPI_EXPORT extern int64_t TF_TensorElementCount(const TF_Tensor* tensor);

/* Lets to be the memory of from under another dtype and shape of the same number of bytes. */
TF_CAPI_EXPORT extern void TF_TensorBitcastFrom(
    const TF_Tensor* from, TF_DataType type, TF_Tensor* to, const int64_t* new_dims, int num_new_dims,
    TF_Status* status);

/* Returns whether the memory is aligned as the engine wants it. */
TF_CAPI_EXPORT extern bool TF_TensorIsAligned(const TF_Tensor*);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_TF_TENSOR_H_ */
