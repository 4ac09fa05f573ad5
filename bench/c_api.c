/* Measures libtensorflow: `c_api minimal`, `c_api calls`.
 *
 * minimal: a graph, a session, one run, end; the caller times the process. Prints peak memory in kB.
 * calls:   nanoseconds per call on the calling thread, the best of 15 rounds. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/eager/c_api.h"

static void check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "%s: %s\n", what, TF_Message(status));
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static TF_Tensor* tensor(const float* values, int n_dims) {
  const int64_t dims[2] = {2, 2};
  const size_t n = n_dims == 0 ? 1 : 4;
  TF_Tensor* t = TF_AllocateTensor(TF_FLOAT, dims, n_dims, n * sizeof(float));
  memcpy(TF_TensorData(t), values, n * sizeof(float));
  return t;
}

static const float NUMBERS[4] = {1, 2, 3, 4};

/* A graph that feeds `x`, adds the constant 2 and passes `x` on. */
typedef struct Model {
  TF_Graph* graph;
  TF_Session* session;
  TF_Output x, sum, same, two;
} Model;

static TF_Operation* node(TF_Graph* g, const char* op, const char* name, TF_Output* inputs, int n,
                          TF_Tensor* value, TF_Status* s) {
  TF_OperationDescription* d = TF_NewOperation(g, op, name);
  for (int i = 0; i < n; i++) TF_AddInput(d, inputs[i]);
  if (n == 0) TF_SetAttrType(d, "dtype", TF_FLOAT);
  if (value != NULL) TF_SetAttrTensor(d, "value", value, s);
  TF_Operation* found = TF_FinishOperation(d, s);
  check(s, op);
  return found;
}

static Model build(TF_Status* s) {
  const float two = 2;
  TF_Tensor* value = tensor(&two, 0);
  Model m;
  m.graph = TF_NewGraph();
  m.x = (TF_Output){node(m.graph, "Placeholder", "x", NULL, 0, NULL, s), 0};
  m.two = (TF_Output){node(m.graph, "Const", "two", NULL, 0, value, s), 0};
  TF_Output both[2] = {m.x, m.two};
  m.sum = (TF_Output){node(m.graph, "AddV2", "sum", both, 2, NULL, s), 0};
  m.same = (TF_Output){node(m.graph, "Identity", "same", both, 1, NULL, s), 0};
  TF_SessionOptions* options = TF_NewSessionOptions();
  m.session = TF_NewSession(m.graph, options, s);
  check(s, "session");
  TF_DeleteSessionOptions(options);
  TF_DeleteTensor(value);
  return m;
}

static void end(Model* m, TF_Status* s) {
  TF_CloseSession(m->session, s);
  TF_DeleteSession(m->session, s);
  TF_DeleteGraph(m->graph);
}

static float run(Model* m, const TF_Output* fetch, TF_Tensor* fed, TF_Status* s) {
  TF_Tensor* result = NULL;
  TF_SessionRun(m->session, NULL, &m->x, &fed, fed != NULL, fetch, &result, 1, NULL, 0, NULL, s);
  check(s, "run");
  const float value = *(float*)TF_TensorData(result);
  TF_DeleteTensor(result);
  return value;
}

/* getrusage() also counts the process that forked this one. */
static long peak_kb(void) {
  long peak = 0;
  char line[256];
  FILE* file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) sscanf(line, "VmHWM: %ld", &peak);
  if (file != NULL) fclose(file);
  return peak;
}

static int minimal(void) {
  TF_Status* s = TF_NewStatus();
  Model m = build(s);
  TF_Tensor* fed = tensor(NUMBERS, 0);
  const float got = run(&m, &m.sum, fed, s);
  TF_DeleteTensor(fed);
  end(&m, s);
  TF_DeleteStatus(s);
  printf("%ld\n", peak_kb());
  return got == 3 ? 0 : 1;
}

#define ROUNDS 15
#define CALLS 20000
/* Prints the best round of `body`, which runs once per call. */
#define MEASURE(name, body)                                  \
  do {                                                       \
    double best = 1e9;                                       \
    for (int r = 0; r <= ROUNDS; r++) {                      \
      const double began = now();                            \
      for (int c = 0; c < CALLS; c++) {                      \
        body;                                                \
      }                                                      \
      const double took = (now() - began) / CALLS * 1e9;     \
      if (r > 0 && took < best) best = took;                 \
    }                                                        \
    printf("%s\t%.0f\n", name, best);                        \
    fflush(stdout);                                          \
  } while (0)

static void execute(TFE_Context* context, const char* name, TFE_TensorHandle* x, TF_Status* s) {
  TFE_TensorHandle* result = NULL;
  int n = 1;
  TFE_Op* op = TFE_NewOp(context, name, s);
  TFE_OpAddInput(op, x, s);
  TFE_OpAddInput(op, x, s);
  TFE_Execute(op, &result, &n, s);
  TFE_DeleteOp(op);
  TFE_DeleteTensorHandle(result);
}

static TFE_Context* eager(TF_Status* s) {
  TFE_ContextOptions* options = TFE_NewContextOptions();
  TFE_Context* context = TFE_NewContext(options, s);
  check(s, "context");
  TFE_DeleteContextOptions(options);
  return context;
}

static int calls(void) {
  TF_Status* s = TF_NewStatus();
  Model m = build(s);
  TF_Tensor* fed = tensor(NUMBERS, 0);
  TF_Tensor* square = tensor(NUMBERS, 2);
  MEASURE("TF_SessionRun, one node", run(&m, &m.same, fed, s));
  MEASURE("TF_SessionRun, constant and add", run(&m, &m.sum, fed, s));
  MEASURE("TF_SessionRun, fetch of a constant", run(&m, &m.two, NULL, s));
  end(&m, s);
  TFE_Context* context = eager(s);
  TFE_TensorHandle* x = TFE_NewTensorHandle(fed, s);
  TFE_TensorHandle* xx = TFE_NewTensorHandle(square, s);
  MEASURE("TFE_Execute, scalar AddV2", execute(context, "AddV2", x, s));
  MEASURE("TFE_Execute, 2x2 MatMul", execute(context, "MatMul", xx, s));
  check(s, "execute");
  TFE_DeleteTensorHandle(x);
  TFE_DeleteTensorHandle(xx);
  TFE_DeleteContext(context);
  TF_DeleteTensor(fed);
  TF_DeleteTensor(square);
  TF_DeleteStatus(s);
  return 0;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "minimal") == 0) return minimal();
  if (strcmp(mode, "calls") == 0) return calls();
  fprintf(stderr, "usage: c_api minimal | calls\n");
  return 2;
}
