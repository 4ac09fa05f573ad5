/* Macros of the other headers. */
#ifndef TENSORFLOW_C_C_API_MACROS_H_
#define TENSORFLOW_C_C_API_MACROS_H_

#if defined(_WIN32)
#define TF_CAPI_EXPORT __declspec(dllimport)
#else
#define TF_CAPI_EXPORT __attribute__((visibility("default")))
#endif

/* TF_Bool is the type of flags that C and C++ agree on. */
#define TF_Bool unsigned char

/* Bytes of a struct up to the end of a field. */
#ifndef TF_OFFSET_OF_END
#define TF_OFFSET_OF_END(type, field) (offsetof(type, field) + sizeof(((type*)0)->field))
#endif

#endif /* TENSORFLOW_C_C_API_MACROS_H_ */
