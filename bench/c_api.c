/* Measures libtensorflow: `c_api minimal`, `c_api calls`, `c_api soak THREADS SECONDS`.
 *
 * minimal: a graph, a session, one run, end; the caller times the process. Prints peak memory in kB.
 * calls:   nanoseconds per call on the calling thread, the best of 15 rounds.
 * soak:    threads that create, run and delete everything; prints memory after the first tenth and at the end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
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

static long resident_kb(void) {
  long pages = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file != NULL && fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * 4;
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

/* One round of everything. */
static void everything(Model* shared, TFE_Context* context) {
  TF_Status* s = TF_NewStatus();
  TF_Tensor* fed = tensor(NUMBERS, 0);
  Model own = build(s);
  if (run(&own, &own.sum, fed, s) != 3 || run(shared, &shared->sum, fed, s) != 3) exit(1);
  TF_Output dx;
  TF_AddGradients(own.graph, &own.sum, 1, &own.x, 1, NULL, s, &dx);
  check(s, "gradients");
  if (run(&own, &dx, fed, s) != 1) exit(1);
  TF_Function* function = TF_GraphToFunction(own.graph, "f", 1, -1, NULL, 1, &own.x, 1, &own.sum, NULL, NULL, NULL, s);
  check(s, "function");
  TF_DeleteFunction(function);
  TF_Buffer* buffer = TF_NewBuffer();
  TF_GraphToGraphDef(own.graph, buffer, s);
  check(s, "export");
  TF_Graph* copy = TF_NewGraph();
  TF_ImportGraphDefOptions* options = TF_NewImportGraphDefOptions();
  TF_ImportGraphDefOptionsSetPrefix(options, "copy");
  TF_GraphImportGraphDef(copy, buffer, options, s);
  check(s, "import");
  TF_DeleteImportGraphDefOptions(options);
  TF_DeleteGraph(copy);
  TF_DeleteBuffer(buffer);
  /* An error. */
  TF_OperationDescription* wrong = TF_NewOperation(own.graph, "AddV2", "wrong");
  if (TF_FinishOperation(wrong, s) != NULL || TF_GetCode(s) != TF_INVALID_ARGUMENT) exit(1);
  TF_DeleteGraph(own.graph);
  TF_CloseSession(own.session, s);
  TF_DeleteSession(own.session, s);
  TFE_Context* mine = eager(s);
  TFE_Context* contexts[2] = {context, mine};
  for (int i = 0; i < 2; i++) {
    TFE_TensorHandle* x = TFE_NewTensorHandle(fed, s);
    execute(contexts[i], "AddV2", x, s);
    check(s, "execute");
    TFE_DeleteTensorHandle(x);
  }
  TFE_DeleteContext(mine);
  TF_DeleteTensor(fed);
  TF_DeleteStatus(s);
}

typedef struct Soak {
  Model* model;
  TFE_Context* context;
  double until;
  atomic_long rounds;
} Soak;

static void* work(void* arg) {
  Soak* soak = arg;
  while (now() < soak->until) {
    everything(soak->model, soak->context);
    atomic_fetch_add(&soak->rounds, 1);
  }
  return NULL;
}

static int soak(int n_threads, double seconds) {
  TF_Status* s = TF_NewStatus();
  Model model = build(s);
  Soak soak = {&model, eager(s), 0, 0};
  long resident[2];
  for (int part = 0; part < 2; part++) {
    soak.until = now() + seconds * (part == 0 ? 0.1 : 0.9);
    pthread_t threads[64];
    for (int i = 0; i < n_threads; i++) pthread_create(&threads[i], NULL, work, &soak);
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    resident[part] = resident_kb();
    printf("%ld rounds, %ld kB resident\n", atomic_load(&soak.rounds), resident[part]);
    fflush(stdout);
  }
  TFE_DeleteContext(soak.context);
  end(&model, s);
  TF_DeleteStatus(s);
  /* Allocators keep some memory; what grows with the number of rounds is a leak. */
  return resident[1] < resident[0] + resident[0] / 4 + 8192 ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "minimal") == 0) return minimal();
  if (strcmp(mode, "calls") == 0) return calls();
  if (strcmp(mode, "soak") == 0 && argc > 3) {
    const int n = atoi(argv[2]);
    return soak(n < 1 ? 1 : n > 64 ? 64 : n, atof(argv[3]));
  }
  fprintf(stderr, "usage: c_api minimal | calls | soak THREADS SECONDS\n");
  return 2;
}
