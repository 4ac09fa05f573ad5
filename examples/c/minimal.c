/* A graph of one addition: build it, run it, read the result.
 *
 *   cargo xtask dist
 *   cc examples/c/minimal.c -Itarget/dist/include -Ltarget/dist/lib -ltensorflow -o minimal
 *   LD_LIBRARY_PATH=target/dist/lib ./minimal
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

/* Ends the program if the last call failed. */
static void check(TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "error %d: %s\n", TF_GetCode(status), TF_Message(status));
    exit(1);
  }
}

static TF_Tensor* scalar(float value) {
  TF_Tensor* tensor = TF_AllocateTensor(TF_FLOAT, NULL, 0, sizeof value);
  memcpy(TF_TensorData(tensor), &value, sizeof value);
  return tensor;
}

int main(void) {
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();

  TF_OperationDescription* node = TF_NewOperation(graph, "Placeholder", "x");
  TF_SetAttrType(node, "dtype", TF_FLOAT);
  TF_Operation* x = TF_FinishOperation(node, status);
  check(status);

  TF_Tensor* two = scalar(2);
  node = TF_NewOperation(graph, "Const", "two");
  TF_SetAttrType(node, "dtype", TF_FLOAT);
  TF_SetAttrTensor(node, "value", two, status);
  check(status);
  TF_Operation* constant = TF_FinishOperation(node, status);
  check(status);
  TF_DeleteTensor(two);

  node = TF_NewOperation(graph, "AddV2", "sum");
  TF_AddInput(node, (TF_Output){x, 0});
  TF_AddInput(node, (TF_Output){constant, 0});
  TF_Operation* sum = TF_FinishOperation(node, status);
  check(status);

  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session = TF_NewSession(graph, options, status);
  check(status);
  TF_DeleteSessionOptions(options);

  TF_Output feed = {x, 0}, fetch = {sum, 0};
  TF_Tensor *three = scalar(3), *result = NULL;
  TF_SessionRun(session, NULL, &feed, &three, 1, &fetch, &result, 1, NULL, 0, NULL, status);
  check(status);
  printf("3 + 2 = %g\n", *(float*)TF_TensorData(result));

  TF_DeleteTensor(result);
  TF_DeleteTensor(three);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
