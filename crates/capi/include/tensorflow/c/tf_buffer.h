/* Bytes with their deallocator. */
#ifndef TENSORFLOW_C_TF_BUFFER_H_
#define TENSORFLOW_C_TF_BUFFER_H_

#include <stddef.h>
#include "tensorflow/c/c_api_macros.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Clients may make one themselves; TF_DeleteBuffer is for those of TF_NewBuffer. */
typedef struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
} TF_Buffer;

/* Creates a buffer with a copy of the bytes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_NewBufferFromString(const void* proto, size_t proto_len);

/* Creates an empty buffer. */
TF_CAPI_EXPORT extern TF_Buffer* TF_NewBuffer(void);

/* Deletes a buffer and its bytes. */
TF_CAPI_EXPORT extern void TF_DeleteBuffer(TF_Buffer*);

/* Returns the fields of a buffer. */
TF_CAPI_EXPORT extern TF_Buffer TF_GetBuffer(TF_Buffer* buffer);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_TF_BUFFER_H_ */
