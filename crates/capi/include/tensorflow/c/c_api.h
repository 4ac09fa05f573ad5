/* Graphs, sessions, functions, gradients, SavedModels and servers. */
#ifndef TENSORFLOW_C_C_API_H_
#define TENSORFLOW_C_C_API_H_

#include <stddef.h>
#include <stdint.h>
#include "tensorflow/c/c_api_macros.h"
#include "tensorflow/c/tf_attrtype.h"
#include "tensorflow/c/tf_buffer.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"
#include "tensorflow/c/tf_tstring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Characters without a NUL; they belong to the object that returned them. */
typedef struct TF_StringView {
  const char* data;
  size_t len;
} TF_StringView;

typedef struct TF_SessionOptions TF_SessionOptions;
typedef struct TF_Graph TF_Graph;
typedef struct TF_OperationDescription TF_OperationDescription;
typedef struct TF_Operation TF_Operation;
typedef struct TF_Function TF_Function;
typedef struct TF_FunctionOptions TF_FunctionOptions;
typedef struct TF_ImportGraphDefOptions TF_ImportGraphDefOptions;
typedef struct TF_ImportGraphDefResults TF_ImportGraphDefResults;
typedef struct TF_Session TF_Session;
typedef struct TF_DeprecatedSession TF_DeprecatedSession;
typedef struct TF_DeviceList TF_DeviceList;
typedef struct TF_Library TF_Library;
typedef struct TF_ApiDefMap TF_ApiDefMap;
typedef struct TF_Server TF_Server;

/* An input of an operation. */
typedef struct TF_Input {
  TF_Operation* oper;
  int index;
} TF_Input;

/* An output of an operation. */
typedef struct TF_Output {
  TF_Operation* oper;
  int index;
} TF_Output;

/* What must be known before an attr is read: whether it is a list, the length of the list or -1, the kind, and
 * the bytes of strings or the dimensions of shapes, or -1. */
typedef struct TF_AttrMetadata {
  unsigned char is_list;
  int64_t list_size;
  TF_AttrType type;
  int64_t total_size;
} TF_AttrMetadata;

/* A loop that is being built. The client sets cond_output, body_outputs and name. */
typedef struct TF_WhileParams {
  const int ninputs;
  TF_Graph* const cond_graph;
  const TF_Output* const cond_inputs;
  TF_Output cond_output;
  TF_Graph* const body_graph;
  const TF_Output* const body_inputs;
  TF_Output* const body_outputs;
  const char* name;
} TF_WhileParams;

/* Returns the library's version. */
TF_CAPI_EXPORT extern const char* TF_Version(void);

/* Parses a TensorProto into to. */
TF_CAPI_EXPORT extern void TF_TensorFromProto(const TF_Buffer* from, TF_Tensor* to, TF_Status* status);

/* Creates default options. */
TF_CAPI_EXPORT extern TF_SessionOptions* TF_NewSessionOptions(void);

/* Sets where sessions run. */
TF_CAPI_EXPORT extern void TF_SetTarget(TF_SessionOptions* options, const char* target);

/* Sets the serialized ConfigProto. */
TF_CAPI_EXPORT extern void TF_SetConfig(
    TF_SessionOptions* options, const void* proto, size_t proto_len, TF_Status* status);

/* Deletes options. */
TF_CAPI_EXPORT extern void TF_DeleteSessionOptions(TF_SessionOptions*);

/* Creates an empty graph. */
TF_CAPI_EXPORT extern TF_Graph* TF_NewGraph(void);

/* Deletes a graph; sessions of it go on. */
TF_CAPI_EXPORT extern void TF_DeleteGraph(TF_Graph*);

/* Merges the shape of an output with what the client knows. */
TF_CAPI_EXPORT extern void TF_GraphSetTensorShape(
    TF_Graph* graph, TF_Output output, const int64_t* dims, const int num_dims, TF_Status* status);

/* Returns a serialized CppShapeInferenceResult.HandleData of a resource handle: the shape and dtype of what
   it refers to. NULL if they are not known. */
TF_CAPI_EXPORT extern TF_Buffer* TF_GetHandleShapeAndType(TF_Graph* graph, TF_Output output);

/* Declares them, for the shapes of operations that are added later. */
TF_CAPI_EXPORT extern void TF_SetHandleShapeAndType(
    TF_Graph* graph, TF_Output output, const void* proto, size_t proto_len, TF_Status* status);

/* Returns the rank of an output; -1 if it is unknown. */
TF_CAPI_EXPORT extern int TF_GraphGetTensorNumDims(TF_Graph* graph, TF_Output output, TF_Status* status);

/* Writes the dimensions of an output; -1 where one is unknown. */
TF_CAPI_EXPORT extern void TF_GraphGetTensorShape(
    TF_Graph* graph, TF_Output output, int64_t* dims, int num_dims, TF_Status* status);

/* As TF_NewOperation. */
TF_CAPI_EXPORT extern TF_OperationDescription* TF_NewOperationLocked(
    TF_Graph* graph, const char* op_type, const char* oper_name);

/* Begins the description of a node. */
TF_CAPI_EXPORT extern TF_OperationDescription* TF_NewOperation(
    TF_Graph* graph, const char* op_type, const char* oper_name);

/* Sets the requested device. */
TF_CAPI_EXPORT extern void TF_SetDevice(TF_OperationDescription* desc, const char* device);

/* Adds an input, one tensor. */
TF_CAPI_EXPORT extern void TF_AddInput(TF_OperationDescription* desc, TF_Output input);

/* Adds an input, a list of tensors. */
TF_CAPI_EXPORT extern void TF_AddInputList(
    TF_OperationDescription* desc, const TF_Output* inputs, int num_inputs);

/* Adds a node to wait for. */
TF_CAPI_EXPORT extern void TF_AddControlInput(TF_OperationDescription* desc, TF_Operation* input);

/* Places the node where op is. */
TF_CAPI_EXPORT extern void TF_ColocateWith(TF_OperationDescription* desc, TF_Operation* op);

/* Sets a string. */
TF_CAPI_EXPORT extern void TF_SetAttrString(
    TF_OperationDescription* desc, const char* attr_name, const void* value, size_t length);

/* Sets a list of strings. */
TF_CAPI_EXPORT extern void TF_SetAttrStringList(
    TF_OperationDescription* desc, const char* attr_name, const void* const* values, const size_t*
    lengths, int num_values);

/* Sets an integer. */
TF_CAPI_EXPORT extern void TF_SetAttrInt(
    TF_OperationDescription* desc, const char* attr_name, int64_t value);

/* Sets a list of integers. */
TF_CAPI_EXPORT extern void TF_SetAttrIntList(
    TF_OperationDescription* desc, const char* attr_name, const int64_t* values, int num_values);

/* Sets a float. */
TF_CAPI_EXPORT extern void TF_SetAttrFloat(
    TF_OperationDescription* desc, const char* attr_name, float value);

/* Sets a list of floats. */
TF_CAPI_EXPORT extern void TF_SetAttrFloatList(
    TF_OperationDescription* desc, const char* attr_name, const float* values, int num_values);

/* Sets a bool. */
TF_CAPI_EXPORT extern void TF_SetAttrBool(
    TF_OperationDescription* desc, const char* attr_name, unsigned char value);

/* Sets a list of bools. */
TF_CAPI_EXPORT extern void TF_SetAttrBoolList(
    TF_OperationDescription* desc, const char* attr_name, const unsigned char* values, int num_values);

/* Sets a dtype. */
TF_CAPI_EXPORT extern void TF_SetAttrType(
    TF_OperationDescription* desc, const char* attr_name, TF_DataType value);

/* Sets a list of dtypes. */
TF_CAPI_EXPORT extern void TF_SetAttrTypeList(
    TF_OperationDescription* desc, const char* attr_name, const TF_DataType* values, int num_values);

/* Lets the attr be that of the function that the node is in. */
TF_CAPI_EXPORT extern void TF_SetAttrPlaceholder(
    TF_OperationDescription* desc, const char* attr_name, const char* placeholder);

/* Sets a function by its name. */
TF_CAPI_EXPORT extern void TF_SetAttrFuncName(
    TF_OperationDescription* desc, const char* attr_name, const char* value, size_t length);

/* Sets a shape; one of negative rank is unknown. */
TF_CAPI_EXPORT extern void TF_SetAttrShape(
    TF_OperationDescription* desc, const char* attr_name, const int64_t* dims, int num_dims);

/* Sets a list of shapes. */
TF_CAPI_EXPORT extern void TF_SetAttrShapeList(
    TF_OperationDescription* desc, const char* attr_name, const int64_t* const* dims, const int*
    num_dims, int num_shapes);

/* Sets a shape in its file form. */
TF_CAPI_EXPORT extern void TF_SetAttrTensorShapeProto(
    TF_OperationDescription* desc, const char* attr_name, const void* proto, size_t proto_len,
    TF_Status* status);

/* Sets a list of shapes in their file form. */
TF_CAPI_EXPORT extern void TF_SetAttrTensorShapeProtoList(
    TF_OperationDescription* desc, const char* attr_name, const void* const* protos, const size_t*
    proto_lens, int num_shapes, TF_Status* status);

/* Sets a tensor. */
TF_CAPI_EXPORT extern void TF_SetAttrTensor(
    TF_OperationDescription* desc, const char* attr_name, TF_Tensor* value, TF_Status* status);

/* Sets a list of tensors. */
TF_CAPI_EXPORT extern void TF_SetAttrTensorList(
    TF_OperationDescription* desc, const char* attr_name, TF_Tensor* const* values, int num_values,
    TF_Status* status);

/* Sets any value in its file form. */
TF_CAPI_EXPORT extern void TF_SetAttrValueProto(
    TF_OperationDescription* desc, const char* attr_name, const void* proto, size_t proto_len,
    TF_Status* status);

/* As TF_FinishOperation. */
TF_CAPI_EXPORT extern TF_Operation* TF_FinishOperationLocked(
    TF_OperationDescription* desc, TF_Status* status);

/* Adds the node to the graph and deletes the description; returns NULL after an error. */
TF_CAPI_EXPORT extern TF_Operation* TF_FinishOperation(TF_OperationDescription* desc, TF_Status* status);

/* Returns the node's name. */
TF_CAPI_EXPORT extern const char* TF_OperationName(TF_Operation* oper);

/* Returns the node's op type. */
TF_CAPI_EXPORT extern const char* TF_OperationOpType(TF_Operation* oper);

/* Returns the device that the node requests. */
TF_CAPI_EXPORT extern const char* TF_OperationDevice(TF_Operation* oper);

/* Returns the number of outputs. */
TF_CAPI_EXPORT extern int TF_OperationNumOutputs(TF_Operation* oper);

/* Returns the dtype of an output; 0 if there is none. */
TF_CAPI_EXPORT extern TF_DataType TF_OperationOutputType(TF_Output oper_out);

/* Returns the number of tensors of an output argument. */
TF_CAPI_EXPORT extern int TF_OperationOutputListLength(
    TF_Operation* oper, const char* arg_name, TF_Status* status);

/* Returns the number of inputs. */
TF_CAPI_EXPORT extern int TF_OperationNumInputs(TF_Operation* oper);

/* Returns the dtype of an input; 0 if there is none. */
TF_CAPI_EXPORT extern TF_DataType TF_OperationInputType(TF_Input oper_in);

/* Returns the number of tensors of an input argument. */
TF_CAPI_EXPORT extern int TF_OperationInputListLength(
    TF_Operation* oper, const char* arg_name, TF_Status* status);

/* Returns the output that an input reads. */
TF_CAPI_EXPORT extern TF_Output TF_OperationInput(TF_Input oper_in);

/* Writes the outputs that the inputs read. */
TF_CAPI_EXPORT extern void TF_OperationAllInputs(TF_Operation* oper, TF_Output* inputs, int max_inputs);

/* Returns the number of inputs that read an output. */
TF_CAPI_EXPORT extern int TF_OperationOutputNumConsumers(TF_Output oper_out);

/* Writes the inputs that read an output; returns their number. */
TF_CAPI_EXPORT extern int TF_OperationOutputConsumers(
    TF_Output oper_out, TF_Input* consumers, int max_consumers);

/* Returns the number of nodes that the node waits for. */
TF_CAPI_EXPORT extern int TF_OperationNumControlInputs(TF_Operation* oper);

/* Writes the nodes that the node waits for; returns their number. */
TF_CAPI_EXPORT extern int TF_OperationGetControlInputs(
    TF_Operation* oper, TF_Operation** control_inputs, int max_control_inputs);

/* Returns the number of nodes that wait for the node. */
TF_CAPI_EXPORT extern int TF_OperationNumControlOutputs(TF_Operation* oper);

/* Writes the nodes that wait for the node; returns their number. */
TF_CAPI_EXPORT extern int TF_OperationGetControlOutputs(
    TF_Operation* oper, TF_Operation** control_outputs, int max_control_outputs);

/* Returns what a client must know before it reads an attr. */
TF_CAPI_EXPORT extern TF_AttrMetadata TF_OperationGetAttrMetadata(
    TF_Operation* oper, const char* attr_name, TF_Status* status);

/* Copies a string. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrString(
    TF_Operation* oper, const char* attr_name, void* value, size_t max_length, TF_Status* status);

/* Copies strings into storage; writes where each is. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrStringList(
    TF_Operation* oper, const char* attr_name, void** values, size_t* lengths, int max_values, void*
    storage, size_t storage_size, TF_Status* status);

/* Reads an integer. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrInt(
    TF_Operation* oper, const char* attr_name, int64_t* value, TF_Status* status);

/* Reads an integer, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrIntList(
    TF_Operation* oper, const char* attr_name, int64_t* values, int max_values, TF_Status* status);

/* Reads a float. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrFloat(
    TF_Operation* oper, const char* attr_name, float* value, TF_Status* status);

/* Reads a float, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrFloatList(
    TF_Operation* oper, const char* attr_name, float* values, int max_values, TF_Status* status);

/* Reads a bool. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrBool(
    TF_Operation* oper, const char* attr_name, unsigned char* value, TF_Status* status);

/* Reads a bool, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrBoolList(
    TF_Operation* oper, const char* attr_name, unsigned char* values, int max_values, TF_Status*
    status);

/* Reads a dtype. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrType(
    TF_Operation* oper, const char* attr_name, TF_DataType* value, TF_Status* status);

/* Reads a dtype, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrTypeList(
    TF_Operation* oper, const char* attr_name, TF_DataType* values, int max_values, TF_Status* status);

/* Reads a shape. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrShape(
    TF_Operation* oper, const char* attr_name, int64_t* value, int num_dims, TF_Status* status);

/* Reads shapes into storage; writes where each is, and its rank, -1 if unknown. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrShapeList(
    TF_Operation* oper, const char* attr_name, int64_t** dims, int* num_dims, int num_shapes, int64_t*
    storage, int storage_size, TF_Status* status);

/* Reads a shape in its file form. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrTensorShapeProto(
    TF_Operation* oper, const char* attr_name, TF_Buffer* value, TF_Status* status);

/* Reads shapes in their file form, as buffers that the client deletes. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrTensorShapeProtoList(
    TF_Operation* oper, const char* attr_name, TF_Buffer** values, int max_values, TF_Status* status);

/* Reads a tensor, which the client deletes. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrTensor(
    TF_Operation* oper, const char* attr_name, TF_Tensor** value, TF_Status* status);

/* Reads a tensor, which the client deletes, of a list: as many as fit. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrTensorList(
    TF_Operation* oper, const char* attr_name, TF_Tensor** values, int max_values, TF_Status* status);

/* Reads any value in its file form. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrValueProto(
    TF_Operation* oper, const char* attr_name, TF_Buffer* output_attr_value, TF_Status* status);

/* Returns the number of attrs. */
TF_CAPI_EXPORT extern int TF_OperationGetNumAttrs(TF_Operation* oper);

/* Returns the length of an attr's name. */
TF_CAPI_EXPORT extern int TF_OperationGetAttrNameLength(TF_Operation* oper, int i);

/* Copies an attr's name, without a NUL. */
TF_CAPI_EXPORT extern void TF_OperationGetAttrName(
    TF_Operation* oper, int i, char* output, TF_Status* status);

/* Returns the node named oper_name, or NULL. */
TF_CAPI_EXPORT extern TF_Operation* TF_GraphOperationByName(TF_Graph* graph, const char* oper_name);

/* Returns the node at *pos and advances *pos; NULL behind the last one. */
TF_CAPI_EXPORT extern TF_Operation* TF_GraphNextOperation(TF_Graph* graph, size_t* pos);

/* Writes the graph as a GraphDef. */
TF_CAPI_EXPORT extern void TF_GraphToGraphDef(
    TF_Graph* graph, TF_Buffer* output_graph_def, TF_Status* status);

/* Writes the OpDef of an op or of a function of the graph. */
TF_CAPI_EXPORT extern void TF_GraphGetOpDef(
    TF_Graph* graph, const char* op_name, TF_Buffer* output_op_def, TF_Status* status);

/* Writes the graph's VersionDef. */
TF_CAPI_EXPORT extern void TF_GraphVersions(
    TF_Graph* graph, TF_Buffer* output_version_def, TF_Status* status);

/* Creates default options. */
TF_CAPI_EXPORT extern TF_ImportGraphDefOptions* TF_NewImportGraphDefOptions(void);

/* Deletes options. */
TF_CAPI_EXPORT extern void TF_DeleteImportGraphDefOptions(TF_ImportGraphDefOptions* opts);

/* Sets the prefix of all names. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsSetPrefix(
    TF_ImportGraphDefOptions* opts, const char* prefix);

/* Sets the device of nodes that request none. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsSetDefaultDevice(
    TF_ImportGraphDefOptions* opts, const char* device);

/* Sets whether taken names get a number. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsSetUniquifyNames(
    TF_ImportGraphDefOptions* opts, unsigned char uniquify_names);

/* Sets whether a taken prefix gets a number. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsSetUniquifyPrefix(
    TF_ImportGraphDefOptions* opts, unsigned char uniquify_prefix);

/* Lets a tensor of the graph stand for one of the GraphDef. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsAddInputMapping(
    TF_ImportGraphDefOptions* opts, const char* src_name, int src_index, TF_Output dst);

/* Lets control edges start at a node of the graph. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsRemapControlDependency(
    TF_ImportGraphDefOptions* opts, const char* src_name, TF_Operation* dst);

/* Lets the new nodes wait for a node of the graph. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsAddControlDependency(
    TF_ImportGraphDefOptions* opts, TF_Operation* oper);

/* Asks where a tensor of the GraphDef is in the graph. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsAddReturnOutput(
    TF_ImportGraphDefOptions* opts, const char* oper_name, int index);

/* Returns the number of tensors asked for. */
TF_CAPI_EXPORT extern int TF_ImportGraphDefOptionsNumReturnOutputs(const TF_ImportGraphDefOptions* opts);

/* Asks where a node of the GraphDef is in the graph. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefOptionsAddReturnOperation(
    TF_ImportGraphDefOptions* opts, const char* oper_name);

/* Returns the number of nodes asked for. */
TF_CAPI_EXPORT extern int TF_ImportGraphDefOptionsNumReturnOperations(const TF_ImportGraphDefOptions* opts);

/* Returns the tensors asked for; the array belongs to the results. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefResultsReturnOutputs(
    TF_ImportGraphDefResults* results, int* num_outputs, TF_Output** outputs);

/* Returns the nodes asked for; the array belongs to the results. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefResultsReturnOperations(
    TF_ImportGraphDefResults* results, int* num_opers, TF_Operation*** opers);

/* Returns the mapped tensors that the GraphDef neither has nor reads; the arrays belong to the
 * results. */
TF_CAPI_EXPORT extern void TF_ImportGraphDefResultsMissingUnusedInputMappings(
    TF_ImportGraphDefResults* results, int* num_missing_unused_input_mappings, const char*** src_names,
    int** src_indexes);

/* Deletes results. */
TF_CAPI_EXPORT extern void TF_DeleteImportGraphDefResults(TF_ImportGraphDefResults* results);

/* Imports a GraphDef; returns what was asked for. */
TF_CAPI_EXPORT extern TF_ImportGraphDefResults* TF_GraphImportGraphDefWithResults(
    TF_Graph* graph, const TF_Buffer* graph_def, const TF_ImportGraphDefOptions* options, TF_Status*
    status);

/* Imports a GraphDef; writes the tensors asked for. */
TF_CAPI_EXPORT extern void TF_GraphImportGraphDefWithReturnOutputs(
    TF_Graph* graph, const TF_Buffer* graph_def, const TF_ImportGraphDefOptions* options, TF_Output*
    return_outputs, int num_return_outputs, TF_Status* status);

/* Imports a GraphDef. */
TF_CAPI_EXPORT extern void TF_GraphImportGraphDef(
    TF_Graph* graph, const TF_Buffer* graph_def, const TF_ImportGraphDefOptions* options, TF_Status*
    status);

/* Adds a function, and its gradient if any, to a graph. */
TF_CAPI_EXPORT extern void TF_GraphCopyFunction(
    TF_Graph* g, const TF_Function* func, const TF_Function* grad, TF_Status* status);

/* Returns the number of functions of a graph. */
TF_CAPI_EXPORT extern int TF_GraphNumFunctions(TF_Graph* g);

/* Writes at most max_func functions of a graph, which the client deletes; returns their number. */
TF_CAPI_EXPORT extern int TF_GraphGetFunctions(
    TF_Graph* g, TF_Function** funcs, int max_func, TF_Status* status);

/* Writes the node as a NodeDef. */
TF_CAPI_EXPORT extern void TF_OperationToNodeDef(
    TF_Operation* oper, TF_Buffer* output_node_def, TF_Status* status);

/* Begins a loop; the client builds its two graphs, then calls TF_FinishWhile or TF_AbortWhile. */
TF_CAPI_EXPORT extern TF_WhileParams TF_NewWhile(
    TF_Graph* g, TF_Output* inputs, int ninputs, TF_Status* status);

/* Adds the loop to its graph; writes the last values of the loop variables. */
TF_CAPI_EXPORT extern void TF_FinishWhile(
    const TF_WhileParams* params, TF_Status* status, TF_Output* outputs);

/* Frees a loop that is not to be finished. */
TF_CAPI_EXPORT extern void TF_AbortWhile(const TF_WhileParams* params);

/* Adds the derivatives of the sum of y by each of x, in a new scope. */
TF_CAPI_EXPORT extern void TF_AddGradients(
    TF_Graph* g, TF_Output* y, int ny, TF_Output* x, int nx, TF_Output* dx, TF_Status* status,
    TF_Output* dy);

/* Adds the derivatives of the sum of y by each of x, in the scope prefix; dx are the derivatives by
 * the y, or NULL for ones. Writes the results to dy. */
TF_CAPI_EXPORT extern void TF_AddGradientsWithPrefix(
    TF_Graph* g, const char* prefix, TF_Output* y, int ny, TF_Output* x, int nx, TF_Output* dx,
    TF_Status* status, TF_Output* dy);

/* As TF_GraphToFunctionWithControlOutputs, without control outputs. */
TF_CAPI_EXPORT extern TF_Function* TF_GraphToFunction(
    const TF_Graph* fn_body, const char* fn_name, unsigned char append_hash_to_fn_name, int num_opers,
    const TF_Operation* const* opers, int ninputs, const TF_Output* inputs, int noutputs, const
    TF_Output* outputs, const char* const* output_names, const TF_FunctionOptions* opts, const char*
    description, TF_Status* status);

/* Makes a function of a graph, or of some of its nodes. */
TF_CAPI_EXPORT extern TF_Function* TF_GraphToFunctionWithControlOutputs(
    const TF_Graph* fn_body, const char* fn_name, unsigned char append_hash_to_fn_name, int num_opers,
    const TF_Operation* const* opers, int ninputs, const TF_Output* inputs, int noutputs, const
    TF_Output* outputs, const char* const* output_names, int ncontrol_outputs, const TF_Operation*
    const* control_outputs, const char* const* control_output_names, const TF_FunctionOptions* opts,
    const char* description, TF_Status* status);

/* Returns the function's name, which lives as long as it. */
TF_CAPI_EXPORT extern const char* TF_FunctionName(TF_Function* func);

/* Writes the function as a FunctionDef. */
TF_CAPI_EXPORT extern void TF_FunctionToFunctionDef(
    TF_Function* func, TF_Buffer* output_func_def, TF_Status* status);

/* Creates a function of a serialized FunctionDef. */
TF_CAPI_EXPORT extern TF_Function* TF_FunctionImportFunctionDef(
    const void* proto, size_t proto_len, TF_Status* status);

/* Sets an attr of the function, in its file form. */
TF_CAPI_EXPORT extern void TF_FunctionSetAttrValueProto(
    TF_Function* func, const char* attr_name, const void* proto, size_t proto_len, TF_Status* status);

/* Reads an attr of the function in its file form. */
TF_CAPI_EXPORT extern void TF_FunctionGetAttrValueProto(
    TF_Function* func, const char* attr_name, TF_Buffer* output_attr_value, TF_Status* status);

/* Deletes a function; graphs that it was copied to keep it. */
TF_CAPI_EXPORT extern void TF_DeleteFunction(TF_Function* func);

/* Evaluates an output that depends on constants only; returns whether it does. */
TF_CAPI_EXPORT extern unsigned char TF_TryEvaluateConstant(
    TF_Graph* graph, TF_Output output, TF_Tensor** result, TF_Status* status);

/* Creates a session over a graph. */
TF_CAPI_EXPORT extern TF_Session* TF_NewSession(
    TF_Graph* graph, const TF_SessionOptions* opts, TF_Status* status);

/* Loads a SavedModel into an empty graph and creates a session over it, with variables restored. */
TF_CAPI_EXPORT extern TF_Session* TF_LoadSessionFromSavedModel(
    const TF_SessionOptions* session_options, const TF_Buffer* run_options, const char* export_dir,
    const char* const* tags, int tags_len, TF_Graph* graph, TF_Buffer* meta_graph_def, TF_Status*
    status);

/* Ends the session's steps; later runs are errors. */
TF_CAPI_EXPORT extern void TF_CloseSession(TF_Session*, TF_Status* status);

/* Deletes a session. */
TF_CAPI_EXPORT extern void TF_DeleteSession(TF_Session*, TF_Status* status);

/* Runs what the outputs and targets need. */
TF_CAPI_EXPORT extern void TF_SessionRun(
    TF_Session* session, const TF_Buffer* run_options, const TF_Output* inputs, TF_Tensor* const*
    input_values, int ninputs, const TF_Output* outputs, TF_Tensor** output_values, int noutputs, const
    TF_Operation* const* target_opers, int ntargets, TF_Buffer* run_metadata, TF_Status*);

/* Begins a step that is fed and fetched in parts. */
TF_CAPI_EXPORT extern void TF_SessionPRunSetup(
    TF_Session*, const TF_Output* inputs, int ninputs, const TF_Output* outputs, int noutputs, const
    TF_Operation* const* target_opers, int ntargets, const char** handle, TF_Status*);

/* Continues a step in parts. */
TF_CAPI_EXPORT extern void TF_SessionPRun(
    TF_Session*, const char* handle, const TF_Output* inputs, TF_Tensor* const* input_values, int
    ninputs, const TF_Output* outputs, TF_Tensor** output_values, int noutputs, const TF_Operation*
    const* target_opers, int ntargets, TF_Status*);

/* Deletes the handle of a step in parts. */
TF_CAPI_EXPORT extern void TF_DeletePRunHandle(const char* handle);

/* Creates a session without a graph. */
TF_CAPI_EXPORT extern TF_DeprecatedSession* TF_NewDeprecatedSession(
    const TF_SessionOptions*, TF_Status* status);

/* Ends the session's steps. */
TF_CAPI_EXPORT extern void TF_CloseDeprecatedSession(TF_DeprecatedSession*, TF_Status* status);

/* Deletes a session. */
TF_CAPI_EXPORT extern void TF_DeleteDeprecatedSession(TF_DeprecatedSession*, TF_Status* status);

/* Forgets variables; the resources of sessions of this process are their own, so there are none. */
TF_CAPI_EXPORT extern void TF_Reset(
    const TF_SessionOptions* opt, const char** containers, int ncontainers, TF_Status* status);

/* Adds a serialized GraphDef to the session's graph. */
TF_CAPI_EXPORT extern void TF_ExtendGraph(
    TF_DeprecatedSession*, const void* proto, size_t proto_len, TF_Status*);

/* Runs what the outputs and targets need; takes the inputs over. */
TF_CAPI_EXPORT extern void TF_Run(
    TF_DeprecatedSession*, const TF_Buffer* run_options, const char** input_names, TF_Tensor** inputs,
    int ninputs, const char** output_names, TF_Tensor** outputs, int noutputs, const char**
    target_oper_names, int ntargets, TF_Buffer* run_metadata, TF_Status*);

/* Begins a step that is fed and fetched in parts. */
TF_CAPI_EXPORT extern void TF_PRunSetup(
    TF_DeprecatedSession*, const char** input_names, int ninputs, const char** output_names, int
    noutputs, const char** target_oper_names, int ntargets, const char** handle, TF_Status*);

/* Continues a step in parts; takes the inputs over. */
TF_CAPI_EXPORT extern void TF_PRun(
    TF_DeprecatedSession*, const char* handle, const char** input_names, TF_Tensor** inputs, int
    ninputs, const char** output_names, TF_Tensor** outputs, int noutputs, const char**
    target_oper_names, int ntargets, TF_Status*);

/* Returns the devices of a session, which the client deletes. */
TF_CAPI_EXPORT extern TF_DeviceList* TF_SessionListDevices(TF_Session* session, TF_Status* status);

/* Returns the devices of a session, which the client deletes. */
TF_CAPI_EXPORT extern TF_DeviceList* TF_DeprecatedSessionListDevices(
    TF_DeprecatedSession* session, TF_Status* status);

/* Deletes a list of devices. */
TF_CAPI_EXPORT extern void TF_DeleteDeviceList(TF_DeviceList* list);

/* Returns the number of devices. */
TF_CAPI_EXPORT extern int TF_DeviceListCount(const TF_DeviceList* list);

/* Returns a device's name. */
TF_CAPI_EXPORT extern const char* TF_DeviceListName(
    const TF_DeviceList* list, int index, TF_Status* status);

/* Returns a device's type. */
TF_CAPI_EXPORT extern const char* TF_DeviceListType(
    const TF_DeviceList* list, int index, TF_Status* status);

/* Returns a device's memory, in bytes. */
TF_CAPI_EXPORT extern int64_t TF_DeviceListMemoryBytes(
    const TF_DeviceList* list, int index, TF_Status* status);

/* Returns a device's incarnation. */
TF_CAPI_EXPORT extern uint64_t TF_DeviceListIncarnation(
    const TF_DeviceList* list, int index, TF_Status* status);

/* Loads a library that defines ops by TF_RegisterOpDefinition when it is loaded. */
TF_CAPI_EXPORT extern TF_Library* TF_LoadLibrary(const char* library_filename, TF_Status* status);

/* Returns the OpList of a library; the bytes belong to the library. */
TF_CAPI_EXPORT extern TF_Buffer TF_GetOpList(TF_Library* lib_handle);

/* Deletes the handle of a library, which stays loaded. */
TF_CAPI_EXPORT extern void TF_DeleteLibraryHandle(TF_Library* lib_handle);

/* Returns the OpList of all ops, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_GetAllOpList(void);

/* Creates a map for the ops of an OpList. */
TF_CAPI_EXPORT extern TF_ApiDefMap* TF_NewApiDefMap(TF_Buffer* op_list_buffer, TF_Status* status);

/* Deletes a map. */
TF_CAPI_EXPORT extern void TF_DeleteApiDefMap(TF_ApiDefMap* apimap);

/* Adds the text of an ApiDefs message. */
TF_CAPI_EXPORT extern void TF_ApiDefMapPut(
    TF_ApiDefMap* api_def_map, const char* text, size_t text_len, TF_Status* status);

/* Returns the serialized ApiDef of an op, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_ApiDefMapGet(
    TF_ApiDefMap* api_def_map, const char* name, size_t name_len, TF_Status* status);

/* Returns the KernelList of all ops, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_GetAllRegisteredKernels(TF_Status* status);

/* Returns the KernelList of an op, which the client deletes. */
TF_CAPI_EXPORT extern TF_Buffer* TF_GetRegisteredKernelsForOp(const char* name, TF_Status* status);

/* Makes an input read another output. */
TF_CAPI_EXPORT extern void TF_UpdateEdge(
    TF_Graph* graph, TF_Output new_src, TF_Input dst, TF_Status* status);

/* Creates a server of a serialized ServerDef, which listens at its task's port. */
TF_CAPI_EXPORT extern TF_Server* TF_NewServer(const void* proto, size_t proto_len, TF_Status* status);

/* Starts serving. */
TF_CAPI_EXPORT extern void TF_ServerStart(TF_Server* server, TF_Status* status);

/* Stops serving. */
TF_CAPI_EXPORT extern void TF_ServerStop(TF_Server* server, TF_Status* status);

/* Waits until the server has stopped. */
TF_CAPI_EXPORT extern void TF_ServerJoin(TF_Server* server, TF_Status* status);

/* Returns the target of sessions on this server; it lives as long as the server. */
TF_CAPI_EXPORT extern const char* TF_ServerTarget(TF_Server* server);

/* Stops and deletes a server. */
TF_CAPI_EXPORT extern void TF_DeleteServer(TF_Server* server);

/* Accepted; Ferroflow does not log. */
TF_CAPI_EXPORT extern void TF_RegisterLogListener(void (*listener)(const char*));

/* Plugins of file systems are C++ objects of TensorFlow's: not supported. */
TF_CAPI_EXPORT extern void TF_RegisterFilesystemPlugin(const char* plugin_filename, TF_Status* status);

/* Adds a control input to a node that is in the graph. */
TF_CAPI_EXPORT extern void TF_AddOperationControlInput(
    TF_Graph* graph, TF_Operation* op, TF_Operation* input);

/* Sets an attr, in its file form, of a node that is in the graph. */
TF_CAPI_EXPORT extern void TF_SetAttr(
    TF_Graph* graph, TF_Operation* op, const char* attr_name, TF_Buffer* attr_value_proto, TF_Status*
    status);

/* Removes an attr of a node that is in the graph. */
TF_CAPI_EXPORT extern void TF_ClearAttr(
    TF_Graph* graph, TF_Operation* op, const char* attr_name, TF_Status* status);

/* Sets the requested device of a node that is in the graph. */
TF_CAPI_EXPORT extern void TF_SetRequestedDevice(TF_Graph* graph, TF_Operation* op, const char* device);

/* Removes the control inputs of a node that is in the graph. */
TF_CAPI_EXPORT extern void TF_RemoveAllControlInputs(TF_Graph* graph, TF_Operation* op);

/* Extends the session by the nodes that were added to its graph, as a run would. */
TF_CAPI_EXPORT extern void TF_ExtendSession(TF_Session* session, TF_Status* status);

/* Adds an input to a Merge of a loop (c_api.h: a hack of the Python client). */
TF_CAPI_EXPORT extern void TF_AddWhileInputHack(
    TF_Graph* graph, TF_Output new_src, TF_Operation* dst, TF_Status* status);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_C_API_H_ */
