/* Kernels of ops that programs define. */
#ifndef TENSORFLOW_C_KERNELS_H_
#define TENSORFLOW_C_KERNELS_H_

#include "tensorflow/c/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;

typedef struct TF_InputRange_Args {
  size_t struct_size;
  void* priv;
  int start;
  int stop;
  TF_Status* status;
} TF_InputRange_Args;
#define TF_InputRange_Args_STRUCT_SIZE TF_OFFSET_OF_END(TF_InputRange_Args, status)

/* Ends an execution of an asynchronous kernel. */
TF_CAPI_EXPORT extern void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*);

/* Begins a kernel. */
TF_CAPI_EXPORT extern TF_KernelBuilder* TF_NewKernelBuilder(
    const char* op_name, const char* device_name, void* (*create_func)(TF_OpKernelConstruction*), void
    (*compute_func)(void*, TF_OpKernelContext*), void (*delete_func)(void*));

/* Begins an asynchronous kernel; the engine waits for its end. */
TF_CAPI_EXPORT extern TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char* op_name, const char* device_name, void* (*create_func)(TF_OpKernelConstruction*), void
    (*compute_async_func)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback* done), void
    (*delete_func)(void*));

/* Demands a dtype of an attr. */
TF_CAPI_EXPORT extern void TF_KernelBuilder_TypeConstraint(
    TF_KernelBuilder* kernel_builder, const char* attr_name, TF_DataType type, TF_Status* status);

/* Accepts that an argument is in the host's memory, as all are. */
TF_CAPI_EXPORT extern void TF_KernelBuilder_HostMemory(
    TF_KernelBuilder* kernel_builder, const char* arg_name);

/* Sets the priority among kernels for the same nodes. */
TF_CAPI_EXPORT extern void TF_KernelBuilder_Priority(
    TF_KernelBuilder* kernel_builder, int32_t priority_number);

/* Sets the label. */
TF_CAPI_EXPORT extern void TF_KernelBuilder_Label(TF_KernelBuilder* kernel_builder, const char* label);

/* Adds a kernel and deletes the builder. Kernels run for ops that clients define. */
TF_CAPI_EXPORT extern void TF_RegisterKernelBuilder(
    const char* kernel_name, TF_KernelBuilder* builder, TF_Status* status);

/* As TF_RegisterKernelBuilder, for the nodes that a serialized KernelDef names. */
TF_CAPI_EXPORT extern void TF_RegisterKernelBuilderWithKernelDef(
    const char* serialized_kernel_def, const char* name, TF_KernelBuilder* builder, TF_Status* status);

/* Deletes a kernel that was not registered. */
TF_CAPI_EXPORT extern void TF_DeleteKernelBuilder(TF_KernelBuilder* builder);

/* Returns the number of inputs. */
TF_CAPI_EXPORT extern int TF_NumInputs(TF_OpKernelContext* ctx);

/* Returns the number of outputs. */
TF_CAPI_EXPORT extern int TF_NumOutputs(TF_OpKernelContext* ctx);

/* Returns an input, which the client deletes. */
TF_CAPI_EXPORT extern void TF_GetInput(
    TF_OpKernelContext* ctx, int i, TF_Tensor** tensor, TF_Status* status);

/* Finds the inputs of an argument. */
TF_CAPI_EXPORT extern void TF_InputRange(
    TF_OpKernelContext* ctx, const char* name, TF_InputRange_Args* args);

/* Returns the dtype of an input. */
TF_CAPI_EXPORT extern TF_DataType TF_InputDatatype(TF_OpKernelContext* ctx, int index);

/* Sets an output. */
TF_CAPI_EXPORT extern void TF_SetOutput(
    TF_OpKernelContext* ctx, int i, const TF_Tensor* tensor, TF_Status* status);

/* Returns an output that was set, which the client deletes. */
TF_CAPI_EXPORT extern TF_Tensor* TF_GetMutableOutput(TF_OpKernelContext* ctx, int i, TF_Status* status);

/* Makes the creation fail. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* ctx, TF_Status* status);

/* Makes the execution fail. */
TF_CAPI_EXPORT extern void TF_OpKernelContext_Failure(TF_OpKernelContext* ctx, TF_Status* status);

/* Returns the dtype of an output. */
TF_CAPI_EXPORT extern TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext* ctx, int i);

/* Returns whether an input is in the host's memory. */
TF_CAPI_EXPORT extern bool TF_IsHostMemoryInput(TF_OpKernelContext* ctx, int i, TF_Status* status);

/* Returns whether an output is in the host's memory. */
TF_CAPI_EXPORT extern bool TF_IsHostMemoryOutput(TF_OpKernelContext* ctx, int i, TF_Status* status);

/* Returns the number of the step. */
TF_CAPI_EXPORT extern int64_t TF_StepId(TF_OpKernelContext* ctx);

/* Returns the node, a NodeDef. */
TF_CAPI_EXPORT extern TF_Buffer* TF_OpKernelConstruction_GetNodeDef(
    TF_OpKernelConstruction* ctx, TF_Status* status);

/* Returns the number of the frame: steps are frames of their own. */
TF_CAPI_EXPORT extern uint64_t TF_GetFrameId(TF_OpKernelContext* ctx);

/* Returns the number of the iteration, which kernels do not know. */
TF_CAPI_EXPORT extern int64_t TF_GetIterId(TF_OpKernelContext* ctx);

/* Returns the number of the step. */
TF_CAPI_EXPORT extern int64_t TF_GetStepId(TF_OpKernelContext* ctx);

/* Returns the number of the device. */
TF_CAPI_EXPORT extern int TF_GetDeviceId(TF_OpKernelContext* ctx);

/* Returns the name of the device. */
TF_CAPI_EXPORT extern TF_StringView TF_GetDeviceName(TF_OpKernelContext* ctx);

/* Returns the version of graphs that TensorFlow 2.21 writes. */
TF_CAPI_EXPORT extern int TF_GetGraphDefVersion(TF_OpKernelContext* ctx);

/* Returns the node's name. */
TF_CAPI_EXPORT extern TF_StringView TF_GetOpKernelName(TF_OpKernelContext* ctx);

/* Returns the name of the container of resources whose op does not name one. */
TF_CAPI_EXPORT extern TF_StringView TF_GetResourceMgrDefaultContainerName(TF_OpKernelContext* ctx);

/* Returns the name of an input's node, which kernels do not know. */
TF_CAPI_EXPORT extern TF_StringView TF_GetOpKernelRequestedInput(TF_OpKernelContext* ctx, size_t index);

/* Returns the length of a list (-1 if it is none) and the bytes of strings or dimensions of shapes. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrSize(
    TF_OpKernelConstruction* ctx, const char* attr_name, int32_t* list_size, int32_t* total_size,
    TF_Status* status);

/* Reads a dtype. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrType(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_DataType* val, TF_Status* status);

/* Reads an int of 32 bits. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrInt32(
    TF_OpKernelConstruction* ctx, const char* attr_name, int32_t* val, TF_Status* status);

/* Reads an int. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrInt64(
    TF_OpKernelConstruction* ctx, const char* attr_name, int64_t* val, TF_Status* status);

/* Reads a float. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrFloat(
    TF_OpKernelConstruction* ctx, const char* attr_name, float* val, TF_Status* status);

/* Reads a bool. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrBool(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Bool* val, TF_Status* status);

/* Reads a string, without a NUL. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrString(
    TF_OpKernelConstruction* ctx, const char* attr_name, char* val, size_t max_length, TF_Status*
    status);

/* Reads a tensor, which the client deletes. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrTensor(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Tensor** val, TF_Status* status);

/* Reads a dtype, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrTypeList(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_DataType* vals, int max_vals, TF_Status*
    status);

/* Reads an int of 32 bits, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrInt32List(
    TF_OpKernelConstruction* ctx, const char* attr_name, int32_t* vals, int max_vals, TF_Status*
    status);

/* Reads an int, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrInt64List(
    TF_OpKernelConstruction* ctx, const char* attr_name, int64_t* vals, int max_vals, TF_Status*
    status);

/* Reads a float, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrFloatList(
    TF_OpKernelConstruction* ctx, const char* attr_name, float* vals, int max_vals, TF_Status* status);

/* Reads a bool, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrBoolList(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Bool* vals, int max_vals, TF_Status*
    status);

/* Reads a list of strings into the client's storage. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrStringList(
    TF_OpKernelConstruction* ctx, const char* attr_name, char** values, size_t* lengths, int max_values,
    void* storage, size_t storage_size, TF_Status* status);

/* Reads a tensor, which the client deletes, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OpKernelConstruction_GetAttrTensorList(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Tensor** vals, int max_values, TF_Status*
    status);

/* Returns a function attr, a NameAttrList. */
TF_CAPI_EXPORT extern TF_Buffer* TF_OpKernelConstruction_GetAttrFunction(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Status* status);

/* Returns whether the node has an attr. */
TF_CAPI_EXPORT extern bool TF_OpKernelConstruction_HasAttr(
    TF_OpKernelConstruction* ctx, const char* attr_name, TF_Status* status);

/* Returns the node's name. */
TF_CAPI_EXPORT extern TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction* ctx);

/* Allocates an output, which the client fills and deletes. */
TF_CAPI_EXPORT extern TF_Tensor* TF_AllocateOutput(
    TF_OpKernelContext* context, int index, TF_DataType dtype, const int64_t* dims, int num_dims, size_t
    len, TF_Status* status);

/* As TF_AllocateOutput; no input is overwritten. */
TF_CAPI_EXPORT extern TF_Tensor* TF_ForwardInputOrAllocateOutput(
    TF_OpKernelContext* context, const int* candidate_input_indices, int num_candidate_input_indices,
    int output_index, const int64_t* output_dims, int output_num_dims, int* forwarded_input, TF_Status*
    status);

/* Allocates a temporary tensor, which the client deletes. */
TF_CAPI_EXPORT extern TF_Tensor* TF_AllocateTemp(
    TF_OpKernelContext* context, TF_DataType dtype, const int64_t* dims, int num_dims,
    TF_AllocatorAttributes* alloc_attrs, TF_Status* status);

/* Accepts that a kernel defers work. */
TF_CAPI_EXPORT extern void TF_IncNumDeferredOps(TF_OpKernelContext* context);

/* Accepts that deferred work has ended. */
TF_CAPI_EXPORT extern void TF_DecNumDeferredOps(TF_OpKernelContext* context);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_KERNELS_H_ */
