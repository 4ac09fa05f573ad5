/* Statuses: a code, a message, and payloads of errors. */
#ifndef TENSORFLOW_C_TF_STATUS_H_
#define TENSORFLOW_C_TF_STATUS_H_

#include "tensorflow/c/c_api_macros.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TF_Status TF_Status;
/* The same object under the name of the library TSL. */
typedef struct TF_Status TSL_Status;

typedef enum TF_Code {
  TF_OK = 0,
  TF_CANCELLED = 1,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_NOT_FOUND = 5,
  TF_ALREADY_EXISTS = 6,
  TF_PERMISSION_DENIED = 7,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
  TF_OUT_OF_RANGE = 11,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13,
  TF_UNAVAILABLE = 14,
  TF_DATA_LOSS = 15,
  TF_UNAUTHENTICATED = 16
} TF_Code;
typedef TF_Code TSL_Code;

/* Gets key and value of a payload, and the last argument of TF_ForEachPayload. */
typedef void (*TF_PayloadVisitor)(const char* key, const char* value, void* capture);
typedef TF_PayloadVisitor TSL_PayloadVisitor;

/* Creates an OK status. */
TF_CAPI_EXPORT extern TF_Status* TF_NewStatus(void);

/* Deletes a status. */
TF_CAPI_EXPORT extern void TF_DeleteStatus(TF_Status*);

/* Sets code and message. */
TF_CAPI_EXPORT extern void TF_SetStatus(TF_Status* s, TF_Code code, const char* msg);

/* Sets a payload of an error; an OK status has none. */
TF_CAPI_EXPORT extern void TF_SetPayload(TF_Status* s, const char* key, const char* value);

/* Visits all payloads. */
TF_CAPI_EXPORT extern void TF_ForEachPayload(const TF_Status* s, TF_PayloadVisitor visitor, void* capture);

/* Sets the status that an errno stands for; the message is context and the system's words. */
TF_CAPI_EXPORT extern void TF_SetStatusFromIOError(TF_Status* s, int error_code, const char* context);

/* Returns the code. */
TF_CAPI_EXPORT extern TF_Code TF_GetCode(const TF_Status* s);

/* Returns the message, which is valid until the status changes; empty if the code is OK. */
TF_CAPI_EXPORT extern const char* TF_Message(const TF_Status* s);

/* As TF_NewStatus. */
TF_CAPI_EXPORT extern TSL_Status* TSL_NewStatus(void);

/* As TF_DeleteStatus. */
TF_CAPI_EXPORT extern void TSL_DeleteStatus(TSL_Status*);

/* As TF_SetStatus. */
TF_CAPI_EXPORT extern void TSL_SetStatus(TSL_Status* s, TSL_Code code, const char* msg);

/* As TF_SetPayload. */
TF_CAPI_EXPORT extern void TSL_SetPayload(TSL_Status* s, const char* key, const char* value);

/* As TF_ForEachPayload. */
TF_CAPI_EXPORT extern void TSL_ForEachPayload(
    const TSL_Status* s, TSL_PayloadVisitor visitor, void* capture);

/* As TF_SetStatusFromIOError. */
TF_CAPI_EXPORT extern void TSL_SetStatusFromIOError(TSL_Status* s, int error_code, const char* context);

/* As TF_GetCode. */
TF_CAPI_EXPORT extern TSL_Code TSL_GetCode(const TSL_Status* s);

/* As TF_Message. */
TF_CAPI_EXPORT extern const char* TSL_Message(const TSL_Status* s);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_TF_STATUS_H_ */
