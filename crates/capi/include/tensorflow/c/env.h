/* Files, threads and time. */
#ifndef TENSORFLOW_C_ENV_H_
#define TENSORFLOW_C_ENV_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tensorflow/c/c_api_macros.h"
#include "tensorflow/c/tf_file_statistics.h"
#include "tensorflow/c/tf_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TF_WritableFileHandle TF_WritableFileHandle;
typedef struct TF_StringStream TF_StringStream;
typedef struct TF_Thread TF_Thread;

/* How a thread is started; 0 stands for the system's default, and numa_node -1 for any node. */
typedef struct TF_ThreadOptions {
  size_t stack_size;
  size_t guard_size;
  int numa_node;
} TF_ThreadOptions;

/* Creates a folder. */
TF_CAPI_EXPORT extern void TF_CreateDir(const char* dirname, TF_Status* status);

/* Deletes an empty folder. */
TF_CAPI_EXPORT extern void TF_DeleteDir(const char* dirname, TF_Status* status);

/* Deletes a folder with its content; counts what could not be deleted. */
TF_CAPI_EXPORT extern void TF_DeleteRecursively(
    const char* dirname, int64_t* undeleted_file_count, int64_t* undeleted_dir_count, TF_Status*
    status);

/* Describes a file. */
TF_CAPI_EXPORT extern void TF_FileStat(const char* filename, TF_FileStatistics* stats, TF_Status* status);

/* Creates a file, or makes it empty. */
TF_CAPI_EXPORT extern void TF_NewWritableFile(
    const char* filename, TF_WritableFileHandle** handle, TF_Status* status);

/* Writes what is left, closes the file and deletes the handle. */
TF_CAPI_EXPORT extern void TF_CloseWritableFile(TF_WritableFileHandle* handle, TF_Status* status);

/* Waits until the file is on the disk. */
TF_CAPI_EXPORT extern void TF_SyncWritableFile(TF_WritableFileHandle* handle, TF_Status* status);

/* Writes what is left. */
TF_CAPI_EXPORT extern void TF_FlushWritableFile(TF_WritableFileHandle* handle, TF_Status* status);

/* Appends bytes. */
TF_CAPI_EXPORT extern void TF_AppendWritableFile(
    TF_WritableFileHandle* handle, const char* data, size_t length, TF_Status* status);

/* Deletes a file. */
TF_CAPI_EXPORT extern void TF_DeleteFile(const char* filename, TF_Status* status);

/* Reads the next text, which lives as long as the stream; returns false at the end. */
TF_CAPI_EXPORT extern bool TF_StringStreamNext(TF_StringStream* list, const char** result);

/* Deletes a stream. */
TF_CAPI_EXPORT extern void TF_StringStreamDone(TF_StringStream* list);

/* Lists the names in a folder. */
TF_CAPI_EXPORT extern TF_StringStream* TF_GetChildren(const char* filename, TF_Status* status);

/* Lists the folders for temporary files. */
TF_CAPI_EXPORT extern TF_StringStream* TF_GetLocalTempDirectories(void);

/* Creates an empty temporary file and returns its name, to be freed by free. */
TF_CAPI_EXPORT extern char* TF_GetTempFileName(const char* extension);

/* Returns the time in nanoseconds since 1970. */
TF_CAPI_EXPORT extern uint64_t TF_NowNanos(void);

/* Returns the time in microseconds since 1970. */
TF_CAPI_EXPORT extern uint64_t TF_NowMicros(void);

/* Returns the time in seconds since 1970. */
TF_CAPI_EXPORT extern uint64_t TF_NowSeconds(void);

/* Sets default options. */
TF_CAPI_EXPORT extern void TF_DefaultThreadOptions(TF_ThreadOptions* options);

/* Starts a thread, which is to be joined. */
TF_CAPI_EXPORT extern TF_Thread* TF_StartThread(
    const TF_ThreadOptions* options, const char* thread_name, void (*work_func)(void*), void* param);

/* Waits for a thread and deletes its handle. */
TF_CAPI_EXPORT extern void TF_JoinThread(TF_Thread* thread);

/* Loads a shared library, which stays loaded. */
TF_CAPI_EXPORT extern void* TF_LoadSharedLibrary(const char* library_filename, TF_Status* status);

/* Finds a name in a library that was loaded. */
TF_CAPI_EXPORT extern void* TF_GetSymbolFromLibrary(
    void* handle, const char* symbol_name, TF_Status* status);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_ENV_H_ */
