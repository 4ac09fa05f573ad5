/* Ops one by one: a matrix product, a variable, and an error.
 *
 *   cargo xtask dist
 *   cc examples/c/eager.c -Itarget/dist/include -Ltarget/dist/lib -ltensorflow -o eager
 *   LD_LIBRARY_PATH=target/dist/lib ./eager
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/eager/c_api.h"

static TF_Status* status;

/* Ends the program if the last call failed. */
static void check(void) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "error %d: %s\n", TF_GetCode(status), TF_Message(status));
    exit(1);
  }
}

static TFE_TensorHandle* matrix(int64_t rows, int64_t columns, const float* values) {
  int64_t dims[] = {rows, columns};
  size_t size = (size_t)(rows * columns) * sizeof *values;
  TF_Tensor* tensor = TF_AllocateTensor(TF_FLOAT, dims, 2, size);
  memcpy(TF_TensorData(tensor), values, size);
  TFE_TensorHandle* handle = TFE_NewTensorHandle(tensor, status);
  check();
  TF_DeleteTensor(tensor);
  return handle;
}

/* Runs an op with up to one output; attrs that inputs determine are left out. */
static TFE_TensorHandle* run(TFE_Op* op) {
  TFE_TensorHandle* output = NULL;
  int n = 1;
  TFE_Execute(op, &output, &n, status);
  TFE_DeleteOp(op);
  return output;
}

static TFE_Op* op(TFE_Context* context, const char* name, TFE_TensorHandle* a, TFE_TensorHandle* b) {
  TFE_Op* made = TFE_NewOp(context, name, status);
  check();
  if (a) TFE_OpAddInput(made, a, status);
  if (b) TFE_OpAddInput(made, b, status);
  check();
  return made;
}

static void print(const char* what, TFE_TensorHandle* handle) {
  TF_Tensor* tensor = TFE_TensorHandleResolve(handle, status);
  check();
  const float* values = TF_TensorData(tensor);
  printf("%s", what);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) printf(" %g", values[i]);
  printf("\n");
  TF_DeleteTensor(tensor);
}

int main(void) {
  status = TF_NewStatus();
  TFE_ContextOptions* options = TFE_NewContextOptions();
  TFE_Context* context = TFE_NewContext(options, status);
  check();
  TFE_DeleteContextOptions(options);

  const float values[] = {1, 2, 3, 4};
  TFE_TensorHandle* square = matrix(2, 2, values);
  TFE_TensorHandle* product = run(op(context, "MatMul", square, square));
  check();
  print("product:", product);

  TFE_Op* variable = op(context, "VarHandleOp", NULL, NULL);
  TFE_OpSetAttrType(variable, "dtype", TF_FLOAT);
  TFE_OpSetAttrShape(variable, "shape", NULL, -1, status);
  TFE_OpSetAttrString(variable, "shared_name", "v", 1);
  TFE_TensorHandle* resource = run(variable);
  check();
  run(op(context, "AssignVariableOp", resource, product));
  check();
  run(op(context, "AssignAddVariableOp", resource, square));
  check();
  TFE_Op* read = op(context, "ReadVariableOp", resource, NULL);
  TFE_OpSetAttrType(read, "dtype", TF_FLOAT);
  TFE_TensorHandle* value = run(read);
  check();
  print("variable:", value);

  TFE_TensorHandle* row = matrix(1, 4, values);
  run(op(context, "MatMul", square, row));
  printf("error: code %d\n", TF_GetCode(status));

  TFE_DeleteTensorHandle(row);
  TFE_DeleteTensorHandle(value);
  TFE_DeleteTensorHandle(resource);
  TFE_DeleteTensorHandle(product);
  TFE_DeleteTensorHandle(square);
  TFE_DeleteContext(context);
  TF_DeleteStatus(status);
  return 0;
}
