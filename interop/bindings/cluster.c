/* Eager execution on the tasks of a cluster (the cases of TensorFlow's c_api_remote_test.cc): prints what it computes.
 *
 *   cluster OWN ADDRESS1 ADDRESS2 [async]
 *
 * This process is task 0 at the address OWN; tasks 1 and 2 are servers of the same cluster of the job `localhost`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/c_api_experimental.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/c/eager/c_api_experimental.h"

static const char* const DEVICES[] = {
    "/job:localhost/replica:0/task:0/device:CPU:0",
    "/job:localhost/replica:0/task:1/device:CPU:0",
    "/job:localhost/replica:0/task:2/device:CPU:0",
};

static TF_Status* status;
static TFE_Context* context;

static void check(const char* what) {
  if (TF_GetCode(status) != TF_OK) {
    printf("%s: error %d: %s\n", what, TF_GetCode(status), TF_Message(status));
    exit(1);
  }
}

static TFE_TensorHandle* matrix(int64_t rows, int64_t columns) {
  int64_t dims[] = {rows, columns};
  TF_Tensor* tensor = TF_AllocateTensor(TF_FLOAT, dims, 2, (size_t)(rows * columns) * sizeof(float));
  float* values = TF_TensorData(tensor);
  for (int64_t i = 0; i < rows * columns; i++) values[i] = (float)(i + 1);
  TFE_TensorHandle* handle = TFE_NewTensorHandle(tensor, status);
  check("matrix");
  TF_DeleteTensor(tensor);
  return handle;
}

/* Begins a call; the device may be NULL. */
static TFE_Op* op(const char* name, const char* device, TFE_TensorHandle* a, TFE_TensorHandle* b) {
  TFE_Op* made = TFE_NewOp(context, name, status);
  check(name);
  if (device) TFE_OpSetDevice(made, device, status);
  if (a) TFE_OpAddInput(made, a, status);
  if (b) TFE_OpAddInput(made, b, status);
  check(name);
  return made;
}

/* Runs a call of one output; the status has its error. */
static TFE_TensorHandle* run(TFE_Op* call) {
  TFE_TensorHandle* output = NULL;
  int n = 1;
  TFE_Execute(call, &output, &n, status);
  TFE_DeleteOp(call);
  return output;
}

/* Prints the device and the values of a tensor. */
static void print(const char* what, TFE_TensorHandle* handle) {
  check(what);
  const char* device = TFE_TensorHandleBackingDeviceName(handle, status);
  check(what);
  int dims = TFE_TensorHandleNumDims(handle, status);
  check(what);
  TF_Tensor* tensor = TFE_TensorHandleResolve(handle, status);
  check(what);
  printf("%s on %s, rank %d:", what, strstr(device, "task:"), dims);
  const float* values = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) printf(" %g", values[i]);
  printf("\n");
  TF_DeleteTensor(tensor);
}

static void print_and_delete(const char* what, TFE_TensorHandle* handle) {
  print(what, handle);
  TFE_DeleteTensorHandle(handle);
}

/* The serialized ServerDef of task 0. */
static TF_Buffer* server_def(const char* own, const char* first, const char* second) {
  char text[1024];
  snprintf(text, sizeof text,
           "cluster { job { name: 'localhost' tasks { key: 0 value: '%s' } tasks { key: 1 value: '%s' } "
           "tasks { key: 2 value: '%s' } } } job_name: 'localhost' task_index: 0 protocol: 'grpc'",
           own, first, second);
  TF_Buffer* buffer = TFE_GetServerDef(text, status);
  check("server def");
  return buffer;
}

static void ops(void) {
  TFE_TensorHandle* here = matrix(2, 2);
  TFE_TensorHandle* on1 = TFE_TensorHandleCopyToDevice(here, context, DEVICES[1], status);
  check("copy to task 1");
  TFE_TensorHandle* on2 = TFE_TensorHandleCopyToDevice(here, context, DEVICES[2], status);
  check("copy to task 2");
  print("copy", on2);
  print_and_delete("there", run(op("MatMul", DEVICES[1], on1, on1)));
  /* Tensors of this task and of task 2. */
  print_and_delete("copied silently", run(op("MatMul", DEVICES[1], here, on2)));
  print_and_delete("brought here", run(op("MatMul", DEVICES[0], here, on2)));
  TFE_TensorHandle* moved = TFE_TensorHandleCopyToDevice(on2, context, DEVICES[1], status);
  print_and_delete("moved", moved);
  TFE_TensorHandle* product = run(op("MatMul", DEVICES[2], on1, on2));
  check("product");
  TFE_TensorHandle* back = TFE_TensorHandleCopyToDevice(product, context, DEVICES[0], status);
  print_and_delete("back", back);
  TFE_DeleteTensorHandle(product);
  TFE_DeleteTensorHandle(on1);
  TFE_DeleteTensorHandle(on2);
  TFE_DeleteTensorHandle(here);
}

/* A function of a graph: the product of its arguments, on a device of its own or where it is called. */
static void add_function(const char* name, const char* device) {
  TF_Graph* graph = TF_NewGraph();
  TF_Output arguments[2];
  for (int i = 0; i < 2; i++) {
    TF_OperationDescription* d = TF_NewOperation(graph, "Placeholder", i ? "b" : "a");
    TF_SetAttrType(d, "dtype", TF_FLOAT);
    arguments[i] = (TF_Output){TF_FinishOperation(d, status), 0};
    check("placeholder");
  }
  TF_OperationDescription* d = TF_NewOperation(graph, "MatMul", "product");
  TF_AddInput(d, arguments[0]);
  TF_AddInput(d, arguments[1]);
  TF_SetDevice(d, device);
  TF_Output product = {TF_FinishOperation(d, status), 0};
  check("product");
  TF_Function* function =
      TF_GraphToFunction(graph, name, 0, -1, NULL, 2, arguments, 1, &product, NULL, NULL, NULL, status);
  check("function");
  TFE_ContextAddFunction(context, function, status);
  check("add function");
  TF_DeleteFunction(function);
  TF_DeleteGraph(graph);
}

static void functions(void) {
  add_function("ProductOn2", DEVICES[2]);
  add_function("Product", "");
  TFE_TensorHandle* here = matrix(2, 2);
  TFE_TensorHandle* on2 = TFE_TensorHandleCopyToDevice(here, context, DEVICES[2], status);
  check("copy to task 2");
  TFE_TensorHandle* called = run(op("ProductOn2", NULL, here, on2));
  check("call");
  TFE_TensorHandle* back = TFE_TensorHandleCopyToDevice(called, context, DEVICES[0], status);
  print_and_delete("called here", back);
  TFE_DeleteTensorHandle(called);
  called = run(op("ProductOn2", DEVICES[1], here, on2));
  check("call on task 1");
  back = TFE_TensorHandleCopyToDevice(called, context, DEVICES[0], status);
  print_and_delete("called on task 1", back);
  TFE_DeleteTensorHandle(called);
  print_and_delete("all on task 1", run(op("Product", DEVICES[1], here, here)));
  TFE_ContextRemoveFunction(context, "Product", status);
  check("remove function");
  TFE_DeleteTensorHandle(on2);
  TFE_DeleteTensorHandle(here);
}

static void variables(void) {
  TFE_Op* make = op("VarHandleOp", DEVICES[1], NULL, NULL);
  TFE_OpSetAttrType(make, "dtype", TF_FLOAT);
  TFE_OpSetAttrShape(make, "shape", NULL, -1, status);
  TFE_OpSetAttrString(make, "shared_name", "v", 1);
  TFE_TensorHandle* variable = run(make);
  check("variable");
  TFE_TensorHandle* value = matrix(1, 3);
  TFE_Op* assign = op("AssignVariableOp", DEVICES[1], variable, value);
  int n = 0;
  TFE_Execute(assign, NULL, &n, status);
  check("assign");
  TFE_DeleteOp(assign);
  /* No device: where the variable is. */
  TFE_Op* read = op("ReadVariableOp", NULL, variable, NULL);
  TFE_OpSetAttrType(read, "dtype", TF_FLOAT);
  print_and_delete("variable", run(read));
  TFE_Op* destroy = op("DestroyResourceOp", DEVICES[1], variable, NULL);
  TFE_Execute(destroy, NULL, &n, status);
  check("destroy");
  TFE_DeleteOp(destroy);
  TFE_DeleteTensorHandle(value);
  TFE_DeleteTensorHandle(variable);
}

static void errors(void) {
  TFE_TensorHandle* a = matrix(2, 2);
  TFE_TensorHandle* b = matrix(3, 3);
  TFE_TensorHandle* product = run(op("MatMul", DEVICES[1], a, b));
  /* An asynchronous call ends with the error later. */
  if (product && TF_GetCode(status) == TF_OK) {
    TFE_TensorHandleResolve(product, status);
    TFE_DeleteTensorHandle(product);
  }
  printf("error %d\n", TF_GetCode(status));
  TFE_Executor* executor = TFE_ContextGetExecutorForThread(context);
  TFE_ExecutorClearError(executor);
  TFE_DeleteExecutor(executor);
  TFE_OpSetDevice(op("MatMul", NULL, a, a), "/job:localhost/task:x", status);
  printf("malformed device: %d\n", TF_GetCode(status));
  TFE_TensorHandleCopyToDevice(a, context, "/job:unknown/replica:0/task:0/device:CPU:0", status);
  printf("unknown device: %d %s\n", TF_GetCode(status), TF_Message(status));
  run(op("MatMul", DEVICES[1], a, a));
  check("after errors");
  TFE_DeleteTensorHandle(a);
  TFE_DeleteTensorHandle(b);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  status = TF_NewStatus();
  TFE_ContextOptions* options = TFE_NewContextOptions();
  TFE_ContextOptionsSetAsync(options, argc > 4);
  TFE_ContextOptionsSetDevicePlacementPolicy(options, TFE_DEVICE_PLACEMENT_SILENT);
  context = TFE_NewContext(options, status);
  check("context");
  TFE_DeleteContextOptions(options);
  TF_Buffer* def = server_def(argv[1], argv[2], argv[3]);
  TFE_ContextSetServerDef(context, 0, def->data, def->length, status);
  check("set server def");
  TF_DeviceList* devices = TFE_ContextListDevices(context, status);
  check("devices");
  printf("%d devices\n", TF_DeviceListCount(devices));
  TF_DeleteDeviceList(devices);
  ops();
  functions();
  variables();
  errors();
  bool is_alive = TFE_ContextCheckAlive(context, "/job:localhost/replica:0/task:1", status);
  check("alive");
  printf("alive: %d\n", is_alive);
  TFE_ContextUpdateServerDef(context, 0, def->data, def->length, status);
  check("update");
  TFE_ContextClearCaches(context);
  ops();
  TFE_ContextAsyncWait(context, status);
  check("wait");
  TF_DeleteBuffer(def);
  TFE_DeleteContext(context);
  TF_DeleteStatus(status);
  return 0;
}
