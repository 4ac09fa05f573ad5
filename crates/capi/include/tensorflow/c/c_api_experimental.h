/* Checkpoint readers, shape inference of single ops, and settings. */
#ifndef TENSORFLOW_C_C_API_EXPERIMENTAL_H_
#define TENSORFLOW_C_C_API_EXPERIMENTAL_H_

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/eager/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TF_CheckpointReader TF_CheckpointReader;
typedef struct TF_AttrBuilder TF_AttrBuilder;

/* A shape; num_dims is -1 if the rank is unknown, a size is -1 if it is unknown. */
typedef struct TF_ShapeAndType {
  int num_dims;
  int64_t* dims;
  TF_DataType dtype;
} TF_ShapeAndType;

typedef struct TF_ShapeAndTypeList {
  int num_items;
  TF_ShapeAndType* items;
} TF_ShapeAndTypeList;

/* Accepts the wish to compile by XLA, which there is none of; results are the same. */
TF_CAPI_EXPORT extern void TF_EnableXLACompilation(TF_SessionOptions* options, unsigned char enable);

/* Sets a flag without effect and returns the former value. */
TF_CAPI_EXPORT extern unsigned char TF_SetXlaEnableLazyCompilation(unsigned char enable);

/* Sets a flag without effect and returns the former value. */
TF_CAPI_EXPORT extern unsigned char TF_SetTfXlaCpuGlobalJit(unsigned char enable);

/* Sets a mode without effect. */
TF_CAPI_EXPORT extern void TF_SetXlaAutoJitMode(const char* mode);

/* Returns whether a mode was set. */
TF_CAPI_EXPORT extern unsigned char TF_GetXlaAutoJitEnabled(void);

/* Accepts a size without effect. */
TF_CAPI_EXPORT extern void TF_SetXlaMinClusterSize(int size);

/* Returns a flag without effect. */
TF_CAPI_EXPORT extern unsigned char TF_GetXlaConstantFoldingDisabled(void);

/* Sets a flag without effect. */
TF_CAPI_EXPORT extern void TF_SetXlaConstantFoldingDisabled(unsigned char should_enable);

/* Creates a serialized ConfigProto, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_CreateConfig(
    unsigned char enable_xla_compilation, unsigned char gpu_memory_allow_growth, unsigned int
    num_cpu_devices);

/* Creates a serialized RunOptions, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_CreateRunOptions(unsigned char enable_full_trace);

/* Returns the graph as text that the client frees with free. */
TF_CAPI_EXPORT extern const char* TF_GraphDebugString(TF_Graph* graph, size_t* len);

/* Returns a function as text, to be freed by free. */
TF_CAPI_EXPORT extern char* TF_FunctionDebugString(TF_Function* func, size_t* len);

/* Reads a ServerDef in text form and returns it serialized; the client deletes it. */
TF_CAPI_EXPORT extern TF_Buffer* TFE_GetServerDef(const char* text_proto, TF_Status* status);

/* Makes a status INTERNAL. */
TF_CAPI_EXPORT extern void TF_MakeInternalErrorStatus(TF_Status* status, const char* errMsg);

/* Opens a checkpoint: a file, or the common part of the names of several. */
TF_CAPI_EXPORT extern TF_CheckpointReader* TF_NewCheckpointReader(const char* filename, TF_Status* status);

/* Deletes a reader. */
TF_CAPI_EXPORT extern void TF_DeleteCheckpointReader(TF_CheckpointReader* reader);

/* Returns whether there is a variable of this name. */
TF_CAPI_EXPORT extern int TF_CheckpointReaderHasTensor(TF_CheckpointReader* reader, const char* name);

/* Returns the name of a variable, by its position in the order of names. */
TF_CAPI_EXPORT extern const char* TF_CheckpointReaderGetVariable(TF_CheckpointReader* reader, int index);

/* Returns the number of variables. */
TF_CAPI_EXPORT extern int TF_CheckpointReaderSize(TF_CheckpointReader* reader);

/* Returns the dtype of a variable; 0 if there is none. */
TF_CAPI_EXPORT extern TF_DataType TF_CheckpointReaderGetVariableDataType(
    TF_CheckpointReader* reader, const char* name);

/* Reads the shape of a variable. */
TF_CAPI_EXPORT extern void TF_CheckpointReaderGetVariableShape(
    TF_CheckpointReader* reader, const char* name, int64_t* dims, int num_dims, TF_Status* status);

/* Returns the rank of a variable; -1 if there is none. */
TF_CAPI_EXPORT extern int TF_CheckpointReaderGetVariableNumDims(
    TF_CheckpointReader* reader, const char* name);

/* Reads a variable, which the client deletes. */
TF_CAPI_EXPORT extern TF_Tensor* TF_CheckpointReaderGetTensor(
    TF_CheckpointReader* reader, const char* name, TF_Status* status);

/* Begins a list of attrs. */
TF_CAPI_EXPORT extern TF_AttrBuilder* TF_NewAttrBuilder(const char* op_name);

/* Deletes a list of attrs. */
TF_CAPI_EXPORT extern void TF_DeleteAttrBuilder(TF_AttrBuilder* builder);

/* Sets a dtype. */
TF_CAPI_EXPORT extern void TF_AttrBuilderSetType(
    TF_AttrBuilder* builder, const char* attr_name, TF_DataType value);

/* Sets a list of dtypes. */
TF_CAPI_EXPORT extern void TF_AttrBuilderSetTypeList(
    TF_AttrBuilder* builder, const char* attr_name, const TF_DataType* values, int num_values);

/* Returns whether a type of device has a kernel for the op with these attrs. */
TF_CAPI_EXPORT extern void TF_AttrBuilderCheckCanRunOnDevice(
    TF_AttrBuilder* builder, const char* device_type, TF_Status* status);

/* Returns the attr with the length of an input that is a list of one dtype; the name lives as long as
 * the process. */
TF_CAPI_EXPORT extern const char* TF_GetNumberAttrForOpListInput(
    const char* op_name, int input_index, TF_Status* status);

/* Returns whether an op has state. */
TF_CAPI_EXPORT extern int TF_OpIsStateful(const char* op_type, TF_Status* status);

/* Begins a program; nothing needs to be done. */
TF_CAPI_EXPORT extern void TF_InitMain(const char* usage, int* argc, char*** argv);

/* Returns a TCP port that is not in use; 0 if there is none. */
TF_CAPI_EXPORT extern int TF_PickUnusedPortOrDie(void);

/* Creates a handle of a scalar. */
TF_CAPI_EXPORT extern TFE_TensorHandle* TFE_NewTensorHandleFromScalar(
    TF_DataType data_type, void* data, size_t len, TF_Status* status);

/* Creates a list of unknown shapes. */
TF_CAPI_EXPORT extern TF_ShapeAndTypeList* TF_NewShapeAndTypeList(int num_shapes);

/* Sets a shape. */
TF_CAPI_EXPORT extern void TF_ShapeAndTypeListSetShape(
    TF_ShapeAndTypeList* shape_list, int index, const int64_t* dims, int num_dims);

/* Makes a shape unknown. */
TF_CAPI_EXPORT extern void TF_ShapeAndTypeListSetUnknownShape(TF_ShapeAndTypeList* shape_list, int index);

/* Sets a dtype. */
TF_CAPI_EXPORT extern void TF_ShapeAndTypeListSetDtype(
    TF_ShapeAndTypeList* shape_list, int index, TF_DataType dtype);

/* Deletes a list. */
TF_CAPI_EXPORT extern void TF_DeleteShapeAndTypeList(TF_ShapeAndTypeList* shape_list);

/* Deletes an array of lists and the array. */
TF_CAPI_EXPORT extern void TF_DeleteShapeAndTypeListArray(
    TF_ShapeAndTypeList** shape_list_array, int num_items);

/* Infers the shapes of a call's outputs from shapes, and values where they are known, of its inputs. */
TF_CAPI_EXPORT extern void TFE_InferShapes(
    TFE_Op* op, TF_ShapeAndTypeList* input_shapes, TF_Tensor** input_tensors, TF_ShapeAndTypeList*
    input_tensor_as_shapes, TF_ShapeAndTypeList** input_resource_shapes_and_types, TF_ShapeAndTypeList**
    output_shapes, TF_ShapeAndTypeList*** output_resource_shapes_and_types, TF_Status* status);

/* Accepted; colocation is checked when a session places nodes. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsSetValidateColocationConstraints(
    TF_ImportGraphDefOptions* opts, unsigned char enable);

/* Fails: drivers of devices are not supported. NOT_FOUND if there is no such library. */
TF_CAPI_EXPORT extern TF_Library* TF_LoadPluggableDeviceLibrary(
    const char* library_filename, TF_Status* status);

/* Deletes the handle of a library of devices. */
TF_CAPI_EXPORT extern void TF_DeletePluggableDeviceLibraryHandle(TF_Library* lib_handle);

/* Lets collective ops reach the other tasks, which have clients of their own. */
TF_CAPI_EXPORT extern void TFE_EnableCollectiveOps(
    TFE_Context* ctx, const void* proto, size_t proto_len, TF_Status* status);

/* Ends collective ops, present and future, with the error that the status has. */
TF_CAPI_EXPORT extern void TFE_AbortCollectiveOps(TFE_Context* ctx, TF_Status* status);

/* Fails if a task does not answer in time. A timeout of 0 stands for none. */
TF_CAPI_EXPORT extern void TFE_CollectiveOpsCheckPeerHealth(
    TFE_Context* ctx, const char* task, int64_t timeout_in_ms, TF_Status* status);

/* Removes a function from a graph. */
TF_CAPI_EXPORT extern void TF_GraphRemoveFunction(TF_Graph* g, const char* func_name, TF_Status* status);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_C_API_EXPERIMENTAL_H_ */
