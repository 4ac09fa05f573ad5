/* Elements of string tensors: 24 bytes, whose lowest two bits tell how they are read. 0: the first
 * byte is the size, times four; up to 22 characters and a NUL follow. 1: size times four plus 1,
 * capacity, pointer of malloc. 2: 32 bits of size times four plus 2, 32 bits of offset from the
 * address of the string. 3: size times four plus 3, pointer to characters of another owner. */
#ifndef TENSORFLOW_C_TF_TSTRING_H_
#define TENSORFLOW_C_TF_TSTRING_H_

#include <stddef.h>
#include <stdint.h>
#include "tensorflow/c/c_api_macros.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum TF_TString_Type {
  TF_TSTR_SMALL = 0,
  TF_TSTR_LARGE = 1,
  TF_TSTR_OFFSET = 2,
  TF_TSTR_VIEW = 3
} TF_TString_Type;

/* A string; use the functions. */
typedef struct TF_TString {
  uint64_t words[3];
} TF_TString;

/* Makes memory an empty string. */
TF_CAPI_EXPORT extern void TF_StringInit(TF_TString *t);

/* Copies bytes into a string. */
TF_CAPI_EXPORT extern void TF_StringCopy(TF_TString *dst, const char *src, size_t size);

/* Lets a string refer to bytes of another owner. */
TF_CAPI_EXPORT extern void TF_StringAssignView(TF_TString *dst, const char *src, size_t size);

/* Returns the address of the characters. */
TF_CAPI_EXPORT extern const char * TF_StringGetDataPointer(const TF_TString *tstr);

/* Returns how the string is kept: 0 small, 1 large, 2 offset, 3 view. */
TF_CAPI_EXPORT extern TF_TString_Type TF_StringGetType(const TF_TString *str);

/* Returns the number of characters. */
TF_CAPI_EXPORT extern size_t TF_StringGetSize(const TF_TString *tstr);

/* Returns the number of characters that fit without another allocation. */
TF_CAPI_EXPORT extern size_t TF_StringGetCapacity(const TF_TString *str);

/* Frees the characters and makes the string empty. */
TF_CAPI_EXPORT extern void TF_StringDealloc(TF_TString *tstr);

/* The names that TensorFlow's headers have for the same functions. */
static inline void TF_TString_Init(TF_TString* str) { TF_StringInit(str); }
static inline void TF_TString_Dealloc(TF_TString* str) { TF_StringDealloc(str); }
static inline size_t TF_TString_GetSize(const TF_TString* str) { return TF_StringGetSize(str); }
static inline size_t TF_TString_GetCapacity(const TF_TString* str) { return TF_StringGetCapacity(str); }
static inline TF_TString_Type TF_TString_GetType(const TF_TString* str) { return TF_StringGetType(str); }
static inline const char* TF_TString_GetDataPointer(const TF_TString* str) {
  return TF_StringGetDataPointer(str);
}
static inline void TF_TString_Copy(TF_TString* dst, const char* src, size_t size) {
  TF_StringCopy(dst, src, size);
}
static inline void TF_TString_Assign(TF_TString* dst, const TF_TString* src) {
  TF_StringCopy(dst, TF_StringGetDataPointer(src), TF_StringGetSize(src));
}
static inline void TF_TString_AssignView(TF_TString* dst, const char* src, size_t size) {
  TF_StringAssignView(dst, src, size);
}

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_TF_TSTRING_H_ */
