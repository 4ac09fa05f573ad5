/* Elements of string tensors: 24 bytes, whose lowest two bits tell how they are read. 0: the first
 * byte is the size, times four; up to 22 characters and a NUL follow. 1: size times four plus 1,
 * capacity, pointer of malloc. 2: 32 bits of size times four plus 2, 32 bits of offset from the
 * address of the string. 3: size times four plus 3, pointer to characters of another owner. */
#ifndef TENSORFLOW_C_TF_TSTRING_H_
#define TENSORFLOW_C_TF_TSTRING_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
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

/* The forms of a string, by its type. */
typedef struct TF_TString_Small {
  uint8_t size;
  char str[23];
} TF_TString_Small;

typedef struct TF_TString_Large {
  size_t size;
  size_t cap;
  char *ptr;
} TF_TString_Large;

typedef struct TF_TString_Offset {
  uint32_t size;
  uint32_t offset;
  uint32_t count;
} TF_TString_Offset;

typedef struct TF_TString_View {
  size_t size;
  const char *ptr;
} TF_TString_View;

typedef struct TF_TString_Raw {
  uint8_t raw[24];
} TF_TString_Raw;

/* A string; use the functions. */
typedef struct TF_TString {
  union {
    TF_TString_Small small;
    TF_TString_Large large;
    TF_TString_Offset offset;
    TF_TString_View view;
    TF_TString_Raw raw;
  } u;
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


/* Makes room for at least this many characters, in memory of the string's own. */
static inline void TF_TString_Reserve(TF_TString* str, size_t capacity) {
  const size_t size = TF_StringGetSize(str);
  const TF_TString_Type type = TF_StringGetType(str);
  size_t rounded;
  char* memory;
  if (capacity < size) capacity = size;
  if (type == TF_TSTR_SMALL ? capacity <= 22 : type == TF_TSTR_LARGE && capacity <= str->u.large.cap) return;
  if (capacity <= 22) {
    /* A view or an offset that fits into the string itself. */
    TF_TString own;
    TF_StringInit(&own);
    TF_StringCopy(&own, TF_StringGetDataPointer(str), size);
    *str = own;
    return;
  }
  rounded = ((capacity + 16) & ~(size_t)15) - 1;
  memory = type == TF_TSTR_LARGE ? (char*)realloc(str->u.large.ptr, rounded + 1)
                                 : (char*)malloc(rounded + 1);
  if (memory == NULL) abort();
  if (type != TF_TSTR_LARGE) {
    memcpy(memory, TF_StringGetDataPointer(str), size);
    memory[size] = 0;
  }
  str->u.large.size = size << 2 | TF_TSTR_LARGE;
  str->u.large.cap = rounded;
  str->u.large.ptr = memory;
}

/* As TF_TString_Reserve, and at least twice the room of before, so that appending takes linear time. */
static inline void TF_TString_ReserveAmortized(TF_TString* str, size_t capacity) {
  const size_t before = TF_StringGetCapacity(str);
  if (capacity > before) TF_TString_Reserve(str, capacity > 2 * before ? capacity : 2 * before);
}

/* Returns characters that may be changed; those of another owner are copied first. */
static inline char* TF_TString_GetMutableDataPointer(TF_TString* str) {
  TF_TString_Reserve(str, TF_StringGetSize(str));
  return (char*)(uintptr_t)TF_StringGetDataPointer(str);
}

/* Changes the number of characters; new ones have any value. Returns them all. */
static inline char* TF_TString_ResizeUninitialized(TF_TString* str, size_t size) {
  char* data;
  if (size <= 22 && TF_StringGetType(str) != TF_TSTR_SMALL) {
    TF_TString own;
    const size_t kept = TF_StringGetSize(str) < size ? TF_StringGetSize(str) : size;
    TF_StringInit(&own);
    TF_StringCopy(&own, TF_StringGetDataPointer(str), kept);
    TF_StringDealloc(str);
    *str = own;
  }
  TF_TString_Reserve(str, size);
  if (TF_StringGetType(str) == TF_TSTR_SMALL) {
    *(unsigned char*)str = (unsigned char)(size << 2);
  } else {
    str->u.large.size = size << 2 | TF_TSTR_LARGE;
  }
  data = (char*)(uintptr_t)TF_StringGetDataPointer(str);
  data[size] = 0;
  return data;
}

/* Changes the number of characters; new ones are c. Returns them all. */
static inline char* TF_TString_Resize(TF_TString* str, size_t size, char c) {
  const size_t before = TF_StringGetSize(str);
  char* data = TF_TString_ResizeUninitialized(str, size);
  if (size > before) memset(data + before, c, size - before);
  return data;
}

/* Appends characters, which may be the string's own. */
static inline void TF_TString_AppendN(TF_TString* dst, const char* src, size_t size) {
  const size_t before = TF_StringGetSize(dst);
  const char* own = TF_StringGetDataPointer(dst);
  const int is_own = src >= own && src <= own + before;
  const size_t offset = is_own ? (size_t)(src - own) : 0;
  char* data;
  if (size == 0) return;
  TF_TString_ReserveAmortized(dst, before + size);
  data = TF_TString_ResizeUninitialized(dst, before + size);
  memcpy(data + before, is_own ? data + offset : src, size);
}

/* Appends a string. */
static inline void TF_TString_Append(TF_TString* dst, const TF_TString* src) {
  TF_TString_AppendN(dst, TF_StringGetDataPointer(src), TF_StringGetSize(src));
}

/* Moves a string; the source is empty then. */
static inline void TF_TString_Move(TF_TString* dst, TF_TString* src) {
  if (dst == src) return;
  TF_StringDealloc(dst);
  *dst = *src;
  TF_StringInit(src);
}

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_TF_TSTRING_H_ */
