/* Executors, cancellation, custom devices, attrs and metrics of eager execution. */
#ifndef TENSORFLOW_C_EAGER_C_API_EXPERIMENTAL_H_
#define TENSORFLOW_C_EAGER_C_API_EXPERIMENTAL_H_

#include <stdbool.h>
#include "tensorflow/c/eager/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values that fields have in C++ if they are not set. */
#ifdef __cplusplus
#define TFE_DEFAULT(value) = value
#else
#define TFE_DEFAULT(value)
#endif

typedef struct TFE_MonitoringCounterCell TFE_MonitoringCounterCell;
typedef struct TFE_MonitoringCounter0 TFE_MonitoringCounter0;
typedef struct TFE_MonitoringCounter1 TFE_MonitoringCounter1;
typedef struct TFE_MonitoringCounter2 TFE_MonitoringCounter2;
typedef struct TFE_MonitoringIntGaugeCell TFE_MonitoringIntGaugeCell;
typedef struct TFE_MonitoringIntGauge0 TFE_MonitoringIntGauge0;
typedef struct TFE_MonitoringIntGauge1 TFE_MonitoringIntGauge1;
typedef struct TFE_MonitoringIntGauge2 TFE_MonitoringIntGauge2;
typedef struct TFE_MonitoringBoolGaugeCell TFE_MonitoringBoolGaugeCell;
typedef struct TFE_MonitoringBoolGauge0 TFE_MonitoringBoolGauge0;
typedef struct TFE_MonitoringBoolGauge1 TFE_MonitoringBoolGauge1;
typedef struct TFE_MonitoringBoolGauge2 TFE_MonitoringBoolGauge2;
typedef struct TFE_MonitoringStringGaugeCell TFE_MonitoringStringGaugeCell;
typedef struct TFE_MonitoringStringGauge0 TFE_MonitoringStringGauge0;
typedef struct TFE_MonitoringStringGauge1 TFE_MonitoringStringGauge1;
typedef struct TFE_MonitoringStringGauge2 TFE_MonitoringStringGauge2;
typedef struct TFE_MonitoringStringGauge3 TFE_MonitoringStringGauge3;
typedef struct TFE_MonitoringStringGauge4 TFE_MonitoringStringGauge4;
typedef struct TFE_MonitoringSamplerCell TFE_MonitoringSamplerCell;
typedef struct TFE_MonitoringSampler0 TFE_MonitoringSampler0;
typedef struct TFE_MonitoringSampler1 TFE_MonitoringSampler1;
typedef struct TFE_MonitoringSampler2 TFE_MonitoringSampler2;
typedef struct TFE_MonitoringBuckets TFE_MonitoringBuckets;
typedef struct TFE_CancellationManager TFE_CancellationManager;
typedef struct TFE_Executor TFE_Executor;
typedef struct TFE_OpAttrs TFE_OpAttrs;

typedef int64_t TFE_CancellationToken;

typedef struct TFE_CancelCallback {
  void (*callback)(void* context);
  void* context;
} TFE_CancelCallback;

#define TFE_CUSTOM_DEVICE_VERSION 4

/* A device of the client; pack and shall_pin_to_this_device may be NULL. The last argument is that of
 * TFE_RegisterCustomDevice. */
typedef struct TFE_CustomDevice {
  int version TFE_DEFAULT(TFE_CUSTOM_DEVICE_VERSION);
  TFE_TensorHandle* (*copy_tensor_to_device)(TFE_Context*, TFE_TensorHandle*, TF_Status*, void*);
  TFE_TensorHandle* (*copy_tensor_from_device)(TFE_Context*, TFE_TensorHandle*, const char* device, TF_Status*,
                                               void*);
  void (*execute)(const TFE_Op*, int* num_outputs, TFE_TensorHandle** outputs, TF_Status*, void*);
  void (*delete_device)(void*);
  TFE_TensorHandle* (*pack)(TFE_Context*, TFE_TensorHandle** handles, int num_handles, TF_Status*,
                            void*) TFE_DEFAULT(0);
  bool (*shall_pin_to_this_device)(const TFE_Op*, TF_Status*) TFE_DEFAULT(0);
} TFE_CustomDevice;

/* A tensor of such a device; summarize may be NULL. */
typedef struct TFE_CustomDeviceTensorHandleMethods {
  int version TFE_DEFAULT(TFE_CUSTOM_DEVICE_VERSION);
  int (*num_dims)(void* data, TF_Status*);
  int64_t (*dim)(void* data, int dim_index, TF_Status*);
  void (*deallocator)(void* data);
  TF_Buffer* (*summarize)(void* data, TF_Status*) TFE_DEFAULT(0);
} TFE_CustomDeviceTensorHandle;

/* Begins another call in place of one that has ended. */
TF_CAPI_EXPORT extern void TFE_OpReset(
    TFE_Op* op_to_reset, const char* op_or_function_name, const char* raw_device_name, TF_Status*
    status);

/* As TFE_ContextEnableRunMetadata. */
TF_CAPI_EXPORT extern void TFE_ContextEnableGraphCollection(TFE_Context* ctx);

/* As TFE_ContextDisableRunMetadata. */
TF_CAPI_EXPORT extern void TFE_ContextDisableGraphCollection(TFE_Context* ctx);

/* Adds to a counter. */
TF_CAPI_EXPORT extern void TFE_MonitoringCounterCellIncrementBy(
    TFE_MonitoringCounterCell* cell, int64_t value);

/* Returns a counter's value. */
TF_CAPI_EXPORT extern int64_t TFE_MonitoringCounterCellValue(TFE_MonitoringCounterCell* cell);

/* Creates a counter without labels. */
TF_CAPI_EXPORT extern TFE_MonitoringCounter0* TFE_MonitoringNewCounter0(
    const char* name, TF_Status* status, const char* description);

/* Deletes a counter and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteCounter0(TFE_MonitoringCounter0* counter);

/* Returns a cell of a counter, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringCounterCell* TFE_MonitoringGetCellCounter0(
    TFE_MonitoringCounter0* counter);

/* Creates a counter with one label. */
TF_CAPI_EXPORT extern TFE_MonitoringCounter1* TFE_MonitoringNewCounter1(
    const char* name, TF_Status* status, const char* description, const char* label1);

/* Deletes a counter and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteCounter1(TFE_MonitoringCounter1* counter);

/* Returns a cell of a counter, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringCounterCell* TFE_MonitoringGetCellCounter1(
    TFE_MonitoringCounter1* counter, const char* label1);

/* Creates a counter with 2 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringCounter2* TFE_MonitoringNewCounter2(
    const char* name, TF_Status* status, const char* description, const char* label1, const char*
    label2);

/* Deletes a counter and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteCounter2(TFE_MonitoringCounter2* counter);

/* Returns a cell of a counter, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringCounterCell* TFE_MonitoringGetCellCounter2(
    TFE_MonitoringCounter2* counter, const char* label1, const char* label2);

/* Sets a gauge. */
TF_CAPI_EXPORT extern void TFE_MonitoringIntGaugeCellSet(TFE_MonitoringIntGaugeCell* cell, int64_t value);

/* Returns a gauge's value. */
TF_CAPI_EXPORT extern int64_t TFE_MonitoringIntGaugeCellValue(TFE_MonitoringIntGaugeCell* cell);

/* Creates a gauge of integers without labels. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGauge0* TFE_MonitoringNewIntGauge0(
    const char* name, TF_Status* out_status, const char* description);

/* Deletes a gauge of integers and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteIntGauge0(TFE_MonitoringIntGauge0* gauge);

/* Returns a cell of a gauge of integers, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGaugeCell* TFE_MonitoringGetCellIntGauge0(
    TFE_MonitoringIntGauge0* gauge);

/* Creates a gauge of integers with one label. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGauge1* TFE_MonitoringNewIntGauge1(
    const char* name, TF_Status* out_status, const char* description, const char* label1);

/* Deletes a gauge of integers and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteIntGauge1(TFE_MonitoringIntGauge1* gauge);

/* Returns a cell of a gauge of integers, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGaugeCell* TFE_MonitoringGetCellIntGauge1(
    TFE_MonitoringIntGauge1* gauge, const char* label1);

/* Creates a gauge of integers with 2 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGauge2* TFE_MonitoringNewIntGauge2(
    const char* name, TF_Status* out_status, const char* description, const char* label1, const char*
    label2);

/* Deletes a gauge of integers and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteIntGauge2(TFE_MonitoringIntGauge2* gauge);

/* Returns a cell of a gauge of integers, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringIntGaugeCell* TFE_MonitoringGetCellIntGauge2(
    TFE_MonitoringIntGauge2* gauge, const char* label1, const char* label2);

/* Sets a gauge. */
TF_CAPI_EXPORT extern void TFE_MonitoringStringGaugeCellSet(
    TFE_MonitoringStringGaugeCell* cell, const char* value);

/* Returns a gauge's text; the buffer's fields are set, not read. */
TF_CAPI_EXPORT extern void TFE_MonitoringStringGaugeCellValue(
    TFE_MonitoringStringGaugeCell* cell, TF_Buffer* buf);

/* Creates a gauge of strings without labels. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGauge0* TFE_MonitoringNewStringGauge0(
    const char* name, TF_Status* out_status, const char* description);

/* Deletes a gauge of strings and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteStringGauge0(TFE_MonitoringStringGauge0* gauge);

/* Returns a cell of a gauge of strings, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGaugeCell* TFE_MonitoringGetCellStringGauge0(
    TFE_MonitoringStringGauge0* gauge);

/* Creates a gauge of strings with one label. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGauge1* TFE_MonitoringNewStringGauge1(
    const char* name, TF_Status* out_status, const char* description, const char* label1);

/* Deletes a gauge of strings and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteStringGauge1(TFE_MonitoringStringGauge1* gauge);

/* Returns a cell of a gauge of strings, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGaugeCell* TFE_MonitoringGetCellStringGauge1(
    TFE_MonitoringStringGauge1* gauge, const char* label1);

/* Creates a gauge of strings with 2 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGauge2* TFE_MonitoringNewStringGauge2(
    const char* name, TF_Status* out_status, const char* description, const char* label1, const char*
    label2);

/* Deletes a gauge of strings and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteStringGauge2(TFE_MonitoringStringGauge2* gauge);

/* Returns a cell of a gauge of strings, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGaugeCell* TFE_MonitoringGetCellStringGauge2(
    TFE_MonitoringStringGauge2* gauge, const char* label1, const char* label2);

/* Creates a gauge of strings with 3 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGauge3* TFE_MonitoringNewStringGauge3(
    const char* name, TF_Status* out_status, const char* description, const char* label1, const char*
    label2, const char* label3);

/* Deletes a gauge of strings and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteStringGauge3(TFE_MonitoringStringGauge3* gauge);

/* Returns a cell of a gauge of strings, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGaugeCell* TFE_MonitoringGetCellStringGauge3(
    TFE_MonitoringStringGauge3* gauge, const char* label1, const char* label2, const char* label3);

/* Creates a gauge of strings with 4 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGauge4* TFE_MonitoringNewStringGauge4(
    const char* name, TF_Status* out_status, const char* description, const char* label1, const char*
    label2, const char* label3, const char* label4);

/* Deletes a gauge of strings and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteStringGauge4(TFE_MonitoringStringGauge4* gauge);

/* Returns a cell of a gauge of strings, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringStringGaugeCell* TFE_MonitoringGetCellStringGauge4(
    TFE_MonitoringStringGauge4* gauge, const char* label1, const char* label2, const char* label3, const
    char* label4);

/* Sets a gauge. */
TF_CAPI_EXPORT extern void TFE_MonitoringBoolGaugeCellSet(TFE_MonitoringBoolGaugeCell* cell, bool value);

/* Returns a gauge's value. */
TF_CAPI_EXPORT extern bool TFE_MonitoringBoolGaugeCellValue(TFE_MonitoringBoolGaugeCell* cell);

/* Creates a gauge of bools without labels. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGauge0* TFE_MonitoringNewBoolGauge0(
    const char* name, TF_Status* out_status, const char* description);

/* Deletes a gauge of bools and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteBoolGauge0(TFE_MonitoringBoolGauge0* gauge);

/* Returns a cell of a gauge of bools, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGaugeCell* TFE_MonitoringGetCellBoolGauge0(
    TFE_MonitoringBoolGauge0* gauge);

/* Creates a gauge of bools with one label. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGauge1* TFE_MonitoringNewBoolGauge1(
    const char* name, TF_Status* out_status, const char* description, const char* label1);

/* Deletes a gauge of bools and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteBoolGauge1(TFE_MonitoringBoolGauge1* gauge);

/* Returns a cell of a gauge of bools, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGaugeCell* TFE_MonitoringGetCellBoolGauge1(
    TFE_MonitoringBoolGauge1* gauge, const char* label1);

/* Creates a gauge of bools with 2 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGauge2* TFE_MonitoringNewBoolGauge2(
    const char* name, TF_Status* out_status, const char* description, const char* label1, const char*
    label2);

/* Deletes a gauge of bools and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteBoolGauge2(TFE_MonitoringBoolGauge2* gauge);

/* Returns a cell of a gauge of bools, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringBoolGaugeCell* TFE_MonitoringGetCellBoolGauge2(
    TFE_MonitoringBoolGauge2* gauge, const char* label1, const char* label2);

/* Adds a sample. */
TF_CAPI_EXPORT extern void TFE_MonitoringSamplerCellAdd(TFE_MonitoringSamplerCell* cell, double value);

/* Returns a sampler's histogram, a HistogramProto; the buffer's fields are set, not read. */
TF_CAPI_EXPORT extern void TFE_MonitoringSamplerCellValue(TFE_MonitoringSamplerCell* cell, TF_Buffer* buf);

/* Creates limits that grow by a factor, with one above all values behind them. */
TF_CAPI_EXPORT extern TFE_MonitoringBuckets* TFE_MonitoringNewExponentialBuckets(
    double scale, double growth_factor, int bucket_count);

/* Deletes limits. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteBuckets(TFE_MonitoringBuckets* buckets);

/* Creates a sampler without labels. */
TF_CAPI_EXPORT extern TFE_MonitoringSampler0* TFE_MonitoringNewSampler0(
    const char* name, TFE_MonitoringBuckets* buckets, TF_Status* out_status, const char* description);

/* Deletes a sampler and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteSampler0(TFE_MonitoringSampler0* sampler);

/* Returns a cell of a sampler, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringSamplerCell* TFE_MonitoringGetCellSampler0(
    TFE_MonitoringSampler0* sampler);

/* Creates a sampler with one label. */
TF_CAPI_EXPORT extern TFE_MonitoringSampler1* TFE_MonitoringNewSampler1(
    const char* name, TFE_MonitoringBuckets* buckets, TF_Status* out_status, const char* description,
    const char* label1);

/* Deletes a sampler and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteSampler1(TFE_MonitoringSampler1* sampler);

/* Returns a cell of a sampler, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringSamplerCell* TFE_MonitoringGetCellSampler1(
    TFE_MonitoringSampler1* sampler, const char* label1);

/* Creates a sampler with 2 labels. */
TF_CAPI_EXPORT extern TFE_MonitoringSampler2* TFE_MonitoringNewSampler2(
    const char* name, TFE_MonitoringBuckets* buckets, TF_Status* out_status, const char* description,
    const char* label1, const char* label2);

/* Deletes a sampler and its cells. */
TF_CAPI_EXPORT extern void TFE_MonitoringDeleteSampler2(TFE_MonitoringSampler2* sampler);

/* Returns a cell of a sampler, which lives as long as the metric. */
TF_CAPI_EXPORT extern TFE_MonitoringSamplerCell* TFE_MonitoringGetCellSampler2(
    TFE_MonitoringSampler2* sampler, const char* label1, const char* label2);

/* Asks for TFRT, which contexts do not have, as in TensorFlow. */
TF_CAPI_EXPORT extern void TFE_ContextOptionsSetTfrt(TFE_ContextOptions*, bool use_tfrt);

/* Returns the context's number, unique in this process. */
TF_CAPI_EXPORT extern uint64_t TFE_GetContextId(TFE_Context* ctx);

/* Creates a manager. */
TF_CAPI_EXPORT extern TFE_CancellationManager* TFE_NewCancellationManager(void);

/* Returns whether cancellation has ended. */
TF_CAPI_EXPORT extern bool TFE_CancellationManagerIsCancelled(TFE_CancellationManager*);

/* Returns whether cancellation is in progress. */
TF_CAPI_EXPORT extern bool TFE_CancellationManagerIsCancelling(TFE_CancellationManager*);

/* Cancels. */
TF_CAPI_EXPORT extern void TFE_CancellationManagerStartCancel(TFE_CancellationManager*);

/* Returns a number for a callback. */
TF_CAPI_EXPORT extern TFE_CancellationToken TFE_CancellationManagerGetToken(TFE_CancellationManager*);

/* Registers a callback; returns false if cancellation has begun. */
TF_CAPI_EXPORT extern bool TFE_CancellationManagerRegisterCallback(
    TFE_CancellationManager*, TFE_CancellationToken token, const TFE_CancelCallback* c_callback, const
    char* callback_name);

/* Removes a callback; returns false, after the end of a cancellation in progress, if that calls it. */
TF_CAPI_EXPORT extern bool TFE_CancellationManagerDeregisterCallback(
    TFE_CancellationManager*, TFE_CancellationToken token);

/* As TFE_CancellationManagerDeregisterCallback, without waiting. */
TF_CAPI_EXPORT extern bool TFE_CancellationManagerTryDeregisterCallback(
    TFE_CancellationManager*, TFE_CancellationToken token);

/* Deletes a manager, after having cancelled. */
TF_CAPI_EXPORT extern void TFE_DeleteCancellationManager(TFE_CancellationManager*);

/* Lets a manager cancel a call. */
TF_CAPI_EXPORT extern void TFE_OpSetCancellationManager(
    TFE_Op* op, TFE_CancellationManager* cancellation_manager, TF_Status* status);

/* Creates an executor. */
TF_CAPI_EXPORT extern TFE_Executor* TFE_NewExecutor(
    bool is_async, bool enable_streaming_enqueue, int in_flight_nodes_limit);

/* Deletes a reference; the executor runs what it has. */
TF_CAPI_EXPORT extern void TFE_DeleteExecutor(TFE_Executor*);

/* Returns whether calls run asynchronously. */
TF_CAPI_EXPORT extern bool TFE_ExecutorIsAsync(TFE_Executor*);

/* Waits for all calls; returns the first error. */
TF_CAPI_EXPORT extern void TFE_ExecutorWaitForAllPendingNodes(TFE_Executor*, TF_Status* status);

/* Lets calls run again after an error. */
TF_CAPI_EXPORT extern void TFE_ExecutorClearError(TFE_Executor*);

/* Sets the executor of this thread; NULL stands for the context's. */
TF_CAPI_EXPORT extern void TFE_ContextSetExecutorForThread(TFE_Context*, TFE_Executor*);

/* Returns a reference to the executor of this thread. */
TF_CAPI_EXPORT extern TFE_Executor* TFE_ContextGetExecutorForThread(TFE_Context*);

/* Changes the tasks of the cluster. */
TF_CAPI_EXPORT extern void TFE_ContextUpdateServerDef(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, TF_Status* status);

/* As TFE_ContextUpdateServerDef; each task has this time to answer. */
TF_CAPI_EXPORT extern void TFE_ContextUpdateServerDefWithTimeout(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, int64_t
    init_timeout_in_ms, TF_Status* status);

/* As TFE_ContextSetServerDef; each task has this time to answer. */
TF_CAPI_EXPORT extern void TFE_ContextSetServerDefWithTimeout(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, int64_t
    init_timeout_in_ms, TF_Status* status, bool clear_existing_contexts);

/* As TFE_ContextSetServerDefWithTimeout; tasks that fail are asked again. */
TF_CAPI_EXPORT extern void TFE_ContextSetServerDefWithTimeoutAndRetries(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, int64_t
    init_timeout_in_ms, int retries, TF_Status* status, bool clear_existing_contexts);

/* Returns whether a task answers. */
TF_CAPI_EXPORT extern bool TFE_ContextCheckAlive(
    TFE_Context* ctx, const char* worker_name, TF_Status* status);

/* Waits for all calls of all threads. */
TF_CAPI_EXPORT extern void TFE_ContextAsyncWait(TFE_Context* ctx, TF_Status* status);

/* Returns the address of the tensor's memory; waits for it. */
TF_CAPI_EXPORT extern void* TFE_TensorHandleDevicePointer(TFE_TensorHandle*, TF_Status*);

/* Returns the number of bytes of the tensor's memory; waits for it. */
TF_CAPI_EXPORT extern size_t TFE_TensorHandleDeviceMemorySize(TFE_TensorHandle*, TF_Status*);

/* Creates a handle of memory on a device; the deallocator is called at its end. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_NewTensorHandleFromDeviceMemory(
    TFE_Context* ctx, const char* device_name, TF_DataType, const int64_t* dims, int num_dims, void*
    data, size_t len, void (*deallocator)(void* data, size_t len, void* arg), void* deallocator_arg,
    TF_Status* status);

/* Returns the name of the host's part of a device name. */
TF_CAPI_EXPORT extern void TFE_HostAddressSpace(TFE_Context* ctx, TF_Buffer* buf);

/* Returns the attrs of a call, which are valid as long as the call. */
TF_CAPI_EXPORT extern const TFE_OpAttrs* TFE_OpGetAttrs(const TFE_Op* op);

/* Adds the attrs of another call that are not set yet. */
TF_CAPI_EXPORT extern void TFE_OpAddAttrs(TFE_Op* op, const TFE_OpAttrs* attrs);

/* Returns name and attrs of a call, a NameAttrList. */
TF_CAPI_EXPORT extern void TFE_OpAttrsSerialize(
    const TFE_OpAttrs* attrs, TF_Buffer* buf, TF_Status* status);

/* Sets an attr from a serialized AttrValue. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrValueProto(
    const TFE_Op* op, const char* attr_name, const void* proto, size_t proto_len, TF_Status* status);

/* Adds a device, which the context deletes, also after an error. */
TF_CAPI_EXPORT extern void TFE_RegisterCustomDevice(
    TFE_Context* ctx, TFE_CustomDevice device, const char* device_name, void* device_info, TF_Status*
    status);

/* Returns whether a name is that of a custom device. */
TF_CAPI_EXPORT extern bool TFE_IsCustomDevice(TFE_Context* ctx, const char* device_name);

/* Creates a handle of a custom device's tensor, which is freed with the handle, also after an error. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_NewCustomDeviceTensorHandle(
    TFE_Context*, const char* device_name, TF_DataType, void* data, TFE_CustomDeviceTensorHandle
    methods, TF_Status* status);

/* Returns a function in its file form. */
TF_CAPI_EXPORT extern void TFE_ContextGetFunctionDef(
    TFE_Context* ctx, const char* function_name, TF_Buffer* buf, TF_Status* status);

/* Returns the stack traces of a function's nodes: none. */
TF_CAPI_EXPORT extern void TFE_ContextGetGraphDebugInfo(
    TFE_Context* ctx, const char* function_name, TF_Buffer* buf, TF_Status* status);

/* Returns a function, to be deleted by TF_DeleteFunction. */
TF_CAPI_EXPORT extern TF_Function* TFE_ContextGetFunction(
    TFE_Context* ctx, const char* name, TF_Status* status);

/* Allocates a tensor to be filled by the client. */
TF_CAPI_EXPORT extern TF_Tensor* TFE_AllocateHostTensor(
    TFE_Context* ctx, TF_DataType dtype, const int64_t* dims, int num_dims, TF_Status* status);

/* As TFE_NewTensorHandle. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_NewTensorHandleFromTensor(
    TFE_Context* ctx, TF_Tensor* t, TF_Status* status);

/* Makes one handle of several, which the caller keeps; a custom device decides if one of them is on it. Functions read
   the tensor of their device, ops read all of them stacked. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_CreatePackedTensorHandle(
    TFE_Context* ctx, TFE_TensorHandle** handles, int* num_handles, TF_Status* status);

/* Sets whether a call may run on another device than it asks for. */
TF_CAPI_EXPORT extern void TFE_ContextSetSoftDevicePlacement(
    TFE_Context* ctx, unsigned char enable, TF_Status* status);

/* Accepts the wish to log devices; there is one. */
TF_CAPI_EXPORT extern void TFE_ContextSetLogDevicePlacement(
    TFE_Context* ctx, unsigned char enable, TF_Status* status);

/* Accepts the wish to wrap ops in functions; results are the same. */
TF_CAPI_EXPORT extern void TFE_ContextSetRunEagerOpAsFunction(
    TFE_Context* ctx, unsigned char enable, TF_Status* status);

/* Accepts the wish to rewrite functions for XLA, which there is none of. */
TF_CAPI_EXPORT extern void TFE_ContextSetJitCompileRewrite(
    TFE_Context* ctx, unsigned char enable, TF_Status* status);

/* Returns the type of the device. */
TF_CAPI_EXPORT extern const char* TFE_TensorHandleDeviceType(TFE_TensorHandle* h, TF_Status* status);

/* Returns the number of the device among those of its type. */
TF_CAPI_EXPORT extern int TFE_TensorHandleDeviceID(TFE_TensorHandle* h, TF_Status* status);

/* Returns the tensor's error, if any; waits for it. */
TF_CAPI_EXPORT extern void TFE_TensorHandleGetStatus(TFE_TensorHandle* h, TF_Status* status);

/* Returns the names of the ops that functions ran: none, as in TensorFlow's builds for users. */
TF_CAPI_EXPORT extern void TFE_GetExecutedOpNames(TFE_Context* ctx, TF_Buffer* buf, TF_Status* status);

/* Adds CPU devices to the first one, so that there are `num_cpus`; `prefix` is the name of this task, or empty. */
TF_CAPI_EXPORT extern void TFE_SetLogicalCpuDevices(
    TFE_Context* ctx, int num_cpus, const char* prefix, TF_Status* status);

/* As TFE_ContextSetServerDef, without contexts on the other tasks. */
TF_CAPI_EXPORT extern void TFE_InitializeLocalOnlyContext(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, TF_Status* status);

/* Sets a value of the coordination service. */
TF_CAPI_EXPORT extern void TFE_InsertConfigKeyValue(
    TFE_Context* ctx, const char* key, const char* value, TF_Status* status);

/* Returns a value of the coordination service; waits until it is set. A timeout of 0 stands for none. */
TF_CAPI_EXPORT extern void TFE_GetConfigKeyValue(
    TFE_Context* ctx, const char* key, int64_t timeout_in_ms, TF_Buffer* value_buf, TF_Status* status);

/* Deletes a value of the coordination service. */
TF_CAPI_EXPORT extern void TFE_DeleteConfigKeyValue(TFE_Context* ctx, const char* key, TF_Status* status);

/* Tells the coordination service that this task has failed. */
TF_CAPI_EXPORT extern void TFE_ReportErrorToCluster(
    TFE_Context* ctx, int error_code, const char* error_message, TF_Status* status);

/* Waits until all tasks have come to a barrier of the coordination service. */
TF_CAPI_EXPORT extern void TFE_WaitAtBarrier(
    TFE_Context* ctx, const char* barrier_id, int64_t barrier_timeout_in_ms, TF_Status* status);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_EAGER_C_API_EXPERIMENTAL_H_ */
