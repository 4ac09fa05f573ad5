/* Eager execution: ops one by one. */
#ifndef TENSORFLOW_C_EAGER_C_API_H_
#define TENSORFLOW_C_EAGER_C_API_H_

#include "tensorflow/c/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TFE_ContextOptions TFE_ContextOptions;
typedef struct TFE_Context TFE_Context;
typedef struct TFE_TensorHandle TFE_TensorHandle;
typedef struct TFE_TensorDebugInfo TFE_TensorDebugInfo;
typedef struct TFE_Op TFE_Op;

/* What happens to inputs on another device than the op. */
typedef enum TFE_ContextDevicePlacementPolicy {
  TFE_DEVICE_PLACEMENT_EXPLICIT = 0,
  TFE_DEVICE_PLACEMENT_WARN = 1,
  TFE_DEVICE_PLACEMENT_SILENT = 2,
  TFE_DEVICE_PLACEMENT_SILENT_FOR_INT32 = 3
} TFE_ContextDevicePlacementPolicy;

/* Creates default options. */
TF_CAPI_EXPORT extern TFE_ContextOptions* TFE_NewContextOptions(void);

/* Sets the serialized ConfigProto. */
TF_CAPI_EXPORT extern void TFE_ContextOptionsSetConfig(
    TFE_ContextOptions* options, const void* proto, size_t proto_len, TF_Status* status);

/* Sets whether calls run asynchronously. */
TF_CAPI_EXPORT extern void TFE_ContextOptionsSetAsync(TFE_ContextOptions*, unsigned char enable);

/* Sets what happens to inputs on another device. */
TF_CAPI_EXPORT extern void TFE_ContextOptionsSetDevicePlacementPolicy(
    TFE_ContextOptions*, TFE_ContextDevicePlacementPolicy);

/* Deletes options. */
TF_CAPI_EXPORT extern void TFE_DeleteContextOptions(TFE_ContextOptions*);

/* Creates a context. */
TF_CAPI_EXPORT extern TFE_Context* TFE_NewContext(const TFE_ContextOptions* opts, TF_Status* status);

/* Deletes a context, after its calls in progress. */
TF_CAPI_EXPORT extern void TFE_DeleteContext(TFE_Context* ctx);

/* Returns the devices, custom ones excepted. */
TF_CAPI_EXPORT extern TF_DeviceList* TFE_ContextListDevices(TFE_Context* ctx, TF_Status* status);

/* Forgets prepared calls and the executors of threads. */
TF_CAPI_EXPORT extern void TFE_ContextClearCaches(TFE_Context* ctx);

/* Sets what happens to inputs on another device, for calls of this thread. */
TF_CAPI_EXPORT extern void TFE_ContextSetThreadLocalDevicePlacementPolicy(
    TFE_Context* ctx, TFE_ContextDevicePlacementPolicy policy);

/* Returns what happens to inputs on another device. */
TF_CAPI_EXPORT extern TFE_ContextDevicePlacementPolicy TFE_ContextGetDevicePlacementPolicy(
    TFE_Context* ctx);

/* Joins a cluster: this process becomes the task that the ServerDef names, serves at its port, and runs ops on the
 * devices of the other tasks. */
TF_CAPI_EXPORT extern void TFE_ContextSetServerDef(
    TFE_Context* ctx, int keep_alive_secs, const void* proto, size_t proto_len, TF_Status* status);

/* Creates a handle of a tensor, whose memory it shares. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_NewTensorHandle(const TF_Tensor* t, TF_Status* status);

/* Deletes a reference. */
TF_CAPI_EXPORT extern void TFE_DeleteTensorHandle(TFE_TensorHandle* h);

/* Returns the dtype. */
TF_CAPI_EXPORT extern TF_DataType TFE_TensorHandleDataType(TFE_TensorHandle* h);

/* Returns the rank; waits for the tensor. */
TF_CAPI_EXPORT extern int TFE_TensorHandleNumDims(TFE_TensorHandle* h, TF_Status* status);

/* Returns the number of elements; waits for the tensor. */
TF_CAPI_EXPORT extern int64_t TFE_TensorHandleNumElements(TFE_TensorHandle* h, TF_Status* status);

/* Returns the size of a dimension; waits for the tensor. */
TF_CAPI_EXPORT extern int64_t TFE_TensorHandleDim(TFE_TensorHandle* h, int dim_index, TF_Status* status);

/* Returns the name of the device of the op that computes the tensor. */
TF_CAPI_EXPORT extern const char* TFE_TensorHandleDeviceName(TFE_TensorHandle* h, TF_Status* status);

/* Returns the name of the device in whose memory the tensor is. */
TF_CAPI_EXPORT extern const char* TFE_TensorHandleBackingDeviceName(TFE_TensorHandle* h, TF_Status* status);

/* Returns another reference to the same tensor. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_TensorHandleCopySharingTensor(
    TFE_TensorHandle* h, TF_Status* status);

/* Returns the tensor on the CPU; waits for it. */
TF_CAPI_EXPORT extern TF_Tensor* TFE_TensorHandleResolve(TFE_TensorHandle* h, TF_Status* status);

/* Copies a tensor to a device. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_TensorHandleCopyToDevice(
    TFE_TensorHandle* h, TFE_Context* ctx, const char* device_name, TF_Status* status);

/* Returns the shape of a tensor; waits for it. */
TF_CAPI_EXPORT extern TFE_TensorDebugInfo* TFE_TensorHandleTensorDebugInfo(
    TFE_TensorHandle* h, TF_Status* status);

/* Deletes a shape. */
TF_CAPI_EXPORT extern void TFE_DeleteTensorDebugInfo(TFE_TensorDebugInfo* debug_info);

/* Returns the rank. */
TF_CAPI_EXPORT extern int TFE_TensorDebugInfoOnDeviceNumDims(TFE_TensorDebugInfo* debug_info);

/* Returns the size of a dimension. */
TF_CAPI_EXPORT extern int64_t TFE_TensorDebugInfoOnDeviceDim(
    TFE_TensorDebugInfo* debug_info, int dim_index);

/* Begins a call of an op or of a function. */
TF_CAPI_EXPORT extern TFE_Op* TFE_NewOp(
    TFE_Context* ctx, const char* op_or_function_name, TF_Status* status);

/* Deletes a call. */
TF_CAPI_EXPORT extern void TFE_DeleteOp(TFE_Op* op);

/* Returns the name of the op or function. */
TF_CAPI_EXPORT extern const char* TFE_OpGetName(const TFE_Op* op, TF_Status* status);

/* Returns the context. */
TF_CAPI_EXPORT extern TFE_Context* TFE_OpGetContext(const TFE_Op* op, TF_Status* status);

/* Sets the device. */
TF_CAPI_EXPORT extern void TFE_OpSetDevice(TFE_Op* op, const char* device_name, TF_Status* status);

/* Returns the device; empty if none was set. */
TF_CAPI_EXPORT extern const char* TFE_OpGetDevice(const TFE_Op* op, TF_Status* status);

/* Adds an input, one tensor. */
TF_CAPI_EXPORT extern void TFE_OpAddInput(TFE_Op* op, TFE_TensorHandle* input, TF_Status* status);

/* Adds an input, a list of tensors. */
TF_CAPI_EXPORT extern void TFE_OpAddInputList(
    TFE_Op* op, TFE_TensorHandle** inputs, int num_inputs, TF_Status* status);

/* Returns the number of inputs, the elements of lists counted. */
TF_CAPI_EXPORT extern int TFE_OpGetFlatInputCount(const TFE_Op* op, TF_Status* status);

/* Returns an input, to which the op has the reference. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_OpGetFlatInput(const TFE_Op* op, int index, TF_Status* status);

/* Returns the kind of an attr, or of the elements of a list. */
TF_CAPI_EXPORT extern TF_AttrType TFE_OpGetAttrType(
    TFE_Op* op, const char* attr_name, unsigned char* is_list, TF_Status* status);

/* As TFE_OpGetAttrType, of an op or a function by its name. */
TF_CAPI_EXPORT extern TF_AttrType TFE_OpNameGetAttrType(
    TFE_Context* ctx, const char* op_or_function_name, const char* attr_name, unsigned char* is_list,
    TF_Status* status);

/* Sets a string. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrString(
    TFE_Op* op, const char* attr_name, const void* value, size_t length);

/* Sets an int. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrInt(TFE_Op* op, const char* attr_name, int64_t value);

/* Sets a float. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrFloat(TFE_Op* op, const char* attr_name, float value);

/* Sets a bool. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrBool(TFE_Op* op, const char* attr_name, unsigned char value);

/* Sets a dtype. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrType(TFE_Op* op, const char* attr_name, TF_DataType value);

/* Sets a shape; a negative rank stands for an unknown one. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrShape(
    TFE_Op* op, const char* attr_name, const int64_t* dims, const int num_dims, TF_Status* out_status);

/* Sets a function: that of another call, with its attrs. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrFunction(TFE_Op* op, const char* attr_name, const TFE_Op* value);

/* Sets a function by its name. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrFunctionName(
    TFE_Op* op, const char* attr_name, const char* data, size_t length);

/* Sets a tensor. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrTensor(
    TFE_Op* op, const char* attr_name, TF_Tensor* tensor, TF_Status* status);

/* Sets a list of strings. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrStringList(
    TFE_Op* op, const char* attr_name, const void* const* values, const size_t* lengths, int
    num_values);

/* Sets a list of ints. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrIntList(
    TFE_Op* op, const char* attr_name, const int64_t* values, int num_values);

/* Sets a list of floats. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrFloatList(
    TFE_Op* op, const char* attr_name, const float* values, int num_values);

/* Sets a list of bools. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrBoolList(
    TFE_Op* op, const char* attr_name, const unsigned char* values, int num_values);

/* Sets a list of dtypes. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrTypeList(
    TFE_Op* op, const char* attr_name, const TF_DataType* values, int num_values);

/* Sets a list of shapes. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrShapeList(
    TFE_Op* op, const char* attr_name, const int64_t** dims, const int* num_dims, int num_values,
    TF_Status* out_status);

/* Sets a list of functions. */
TF_CAPI_EXPORT extern void TFE_OpSetAttrFunctionList(
    TFE_Op* op, const char* attr_name, const TFE_Op** value, int num_values);

/* Returns the number of tensors of an input. */
TF_CAPI_EXPORT extern int TFE_OpGetInputLength(TFE_Op* op, const char* input_name, TF_Status* status);

/* Returns the number of tensors of an output. */
TF_CAPI_EXPORT extern int TFE_OpGetOutputLength(TFE_Op* op, const char* output_name, TF_Status* status);

/* Runs a call and returns references to its outputs; num_retvals is their greatest number, then the
 * number. */
TF_CAPI_EXPORT extern void TFE_Execute(
    TFE_Op* op, TFE_TensorHandle** retvals, int* num_retvals, TF_Status* status);

/* Adds a serialized FunctionDef. */
TF_CAPI_EXPORT extern void TFE_ContextAddFunctionDef(
    TFE_Context* ctx, const char* serialized_function_def, size_t size, TF_Status* status);

/* Adds a function. */
TF_CAPI_EXPORT extern void TFE_ContextAddFunction(
    TFE_Context* ctx, TF_Function* function, TF_Status* status);

/* Removes a function. */
TF_CAPI_EXPORT extern void TFE_ContextRemoveFunction(TFE_Context* ctx, const char* name, TF_Status* status);

/* Returns whether there is a function of this name. */
TF_CAPI_EXPORT extern unsigned char TFE_ContextHasFunction(TFE_Context* ctx, const char* name);

/* Collects when calls run, for TFE_ContextExportRunMetadata. */
TF_CAPI_EXPORT extern void TFE_ContextEnableRunMetadata(TFE_Context* ctx);

/* Ends the collection. */
TF_CAPI_EXPORT extern void TFE_ContextDisableRunMetadata(TFE_Context* ctx);

/* Waits for all calls and returns what was collected, a RunMetadata. */
TF_CAPI_EXPORT extern void TFE_ContextExportRunMetadata(
    TFE_Context* ctx, TF_Buffer* buf, TF_Status* status);

/* Begins a step; steps have no state. */
TF_CAPI_EXPORT extern void TFE_ContextStartStep(TFE_Context* ctx);

/* Ends a step. */
TF_CAPI_EXPORT extern void TFE_ContextEndStep(TFE_Context* ctx);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_EAGER_C_API_H_ */
