/* Threads that create, run and delete everything of the C API: `soak THREADS SECONDS MODEL`.
 *
 * MODEL is a SavedModel with the signature of keras_mlp. Each thread takes the parts in an order of its own; results are
 * checked. Prints rounds and memory after the first tenth and at the end; ends with 1 after a wrong result or if memory
 * grows with the rounds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/c_api_experimental.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/c/eager/c_api_experimental.h"

/* A graph of y = x * x + 2. */
typedef struct Model {
  TF_Graph* graph;
  TF_Session* session;
  TF_Output x, square, two, y;
} Model;

/* What the threads share. */
static Model shared_model;
static TFE_Context* shared_context;
static const char* model_folder;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  _exit(1);
}
static void check(TF_Status* s, const char* what) {
  if (TF_GetCode(s) != TF_OK) fail(what, TF_Message(s));
}
static void refused(TF_Status* s, TF_Code code, const char* what) {
  if (TF_GetCode(s) != code) fail(what, TF_Message(s));
}
static void equal(double got, double want, const char* what) {
  char text[64];
  snprintf(text, sizeof text, "%g instead of %g", got, want);
  if (got != want) fail(what, text);
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- tensors --- */
static TF_Tensor* scalar(float value) {
  TF_Tensor* t = TF_AllocateTensor(TF_FLOAT, NULL, 0, sizeof value);
  memcpy(TF_TensorData(t), &value, sizeof value);
  return t;
}
static float value(const TF_Tensor* t) { return *(const float*)TF_TensorData(t); }

static atomic_long lent;
static void give_back(void* data, size_t size, void* arg) {
  (void)size;
  (void)arg;
  atomic_fetch_sub(&lent, 1);
  free(data);
}
/* A tensor in memory of this program. */
static TF_Tensor* borrowed(int64_t n) {
  void* data = aligned_alloc(64, 64 * (size_t)((n * 4 + 63) / 64));
  for (int64_t i = 0; i < n; i++) ((float*)data)[i] = (float)i;
  atomic_fetch_add(&lent, 1);
  return TF_NewTensor(TF_FLOAT, &n, 1, data, (size_t)n * 4, give_back, NULL);
}
static TF_Tensor* text(const char* words) {
  TF_Tensor* t = TF_AllocateTensor(TF_STRING, NULL, 0, sizeof(TF_TString));
  TF_StringInit(TF_TensorData(t));
  TF_StringCopy(TF_TensorData(t), words, strlen(words));
  return t;
}

/* --- graphs --- */
static TF_Output node(TF_Graph* g, const char* op, const char* name, const TF_Output* inputs, int n, TF_Tensor* constant,
                      TF_Status* s) {
  TF_OperationDescription* d = TF_NewOperation(g, op, name);
  for (int i = 0; i < n; i++) TF_AddInput(d, inputs[i]);
  if (n == 0) TF_SetAttrType(d, "dtype", TF_FLOAT);
  if (constant != NULL) TF_SetAttrTensor(d, "value", constant, s);
  TF_Operation* made = TF_FinishOperation(d, s);
  check(s, name);
  return (TF_Output){made, 0};
}
static TF_Output pair(TF_Graph* g, const char* op, const char* name, TF_Output a, TF_Output b, TF_Status* s) {
  return node(g, op, name, (TF_Output[]){a, b}, 2, NULL, s);
}
static Model build(TF_Status* s) {
  Model m;
  TF_Tensor* two = scalar(2);
  m.graph = TF_NewGraph();
  m.x = node(m.graph, "Placeholder", "x", NULL, 0, NULL, s);
  m.two = node(m.graph, "Const", "two", NULL, 0, two, s);
  m.square = pair(m.graph, "Mul", "square", m.x, m.x, s);
  m.y = pair(m.graph, "AddV2", "y", m.square, m.two, s);
  TF_SessionOptions* options = TF_NewSessionOptions();
  m.session = TF_NewSession(m.graph, options, s);
  check(s, "session");
  TF_DeleteSessionOptions(options);
  TF_DeleteTensor(two);
  return m;
}
static void end_session(TF_Session* session, TF_Status* s) {
  TF_CloseSession(session, s);
  TF_DeleteSession(session, s);
  check(s, "end of a session");
}
static float run(TF_Session* session, TF_Output x, float fed, TF_Output fetch, TF_Status* s) {
  TF_Tensor *in = scalar(fed), *result = NULL;
  TF_SessionRun(session, NULL, &x, &in, 1, &fetch, &result, 1, NULL, 0, NULL, s);
  check(s, "run");
  const float found = value(result);
  TF_DeleteTensor(in);
  TF_DeleteTensor(result);
  return found;
}

static void graphs(TF_Status* s, unsigned seed) {
  const float x = (float)(seed % 7);
  equal(run(shared_model.session, shared_model.x, x, shared_model.y, s), x * x + 2, "shared session");
  Model m = build(s);
  equal(run(m.session, m.x, x, m.y, s), x * x + 2, "own session");
  /* A session takes what is added to its graph. */
  TF_Output dx;
  TF_AddGradients(m.graph, &m.y, 1, &m.x, 1, NULL, s, &dx);
  check(s, "gradient");
  equal(run(m.session, m.x, x, dx, s), 2 * x, "gradient");
  const char* handle = NULL;
  const TF_Output fetches[2] = {m.square, m.y};
  TF_SessionPRunSetup(m.session, &m.x, 1, fetches, 2, NULL, 0, &handle, s);
  check(s, "partial run");
  TF_Tensor *in = scalar(x), *results[2] = {NULL, NULL};
  TF_SessionPRun(m.session, handle, &m.x, &in, 1, &fetches[0], &results[0], 1, NULL, 0, s);
  TF_SessionPRun(m.session, handle, NULL, NULL, 0, &fetches[1], &results[1], 1, NULL, 0, s);
  check(s, "partial run");
  equal(value(results[1]), value(results[0]) + 2, "partial run");
  TF_DeletePRunHandle(handle);
  for (int i = 0; i < 2; i++) TF_DeleteTensor(results[i]);
  TF_DeleteTensor(in);
  TF_DeviceList* devices = TF_SessionListDevices(m.session, s);
  TF_DeleteDeviceList(devices);
  if (seed % 2 == 0) TF_DeleteGraph(m.graph);
  end_session(m.session, s);
  if (seed % 2 == 1) TF_DeleteGraph(m.graph);
}

static void copies(TF_Status* s, unsigned seed) {
  Model m = build(s);
  TF_Buffer* def = TF_NewBuffer();
  TF_GraphToGraphDef(m.graph, def, s);
  check(s, "export");
  TF_Graph* copy = TF_NewGraph();
  TF_ImportGraphDefOptions* options = TF_NewImportGraphDefOptions();
  TF_ImportGraphDefOptionsSetPrefix(options, "copy");
  TF_ImportGraphDefOptionsAddReturnOutput(options, "y", 0);
  TF_ImportGraphDefOptionsAddReturnOutput(options, "x", 0);
  TF_ImportGraphDefResults* results = TF_GraphImportGraphDefWithResults(copy, def, options, s);
  check(s, "import");
  TF_DeleteImportGraphDefOptions(options);
  TF_DeleteBuffer(def);
  end_session(m.session, s);
  TF_DeleteGraph(m.graph);
  int n = 0;
  TF_Output* returned = NULL;
  TF_ImportGraphDefResultsReturnOutputs(results, &n, &returned);
  TF_SessionOptions* none = TF_NewSessionOptions();
  TF_Session* session = TF_NewSession(copy, none, s);
  TF_DeleteSessionOptions(none);
  const float x = (float)(seed % 5);
  equal(run(session, returned[1], x, returned[0], s), x * x + 2, "copy");
  TF_DeleteImportGraphDefResults(results);
  end_session(session, s);
  TF_DeleteGraph(copy);
}

static void loops(TF_Status* s, unsigned seed) {
  TF_Graph* g = TF_NewGraph();
  TF_Tensor *ten = scalar(10), *one = scalar(1);
  TF_Output x = node(g, "Placeholder", "x", NULL, 0, NULL, s);
  TF_WhileParams params = TF_NewWhile(g, &x, 1, s);
  check(s, "loop");
  if (seed % 3 == 0) {
    TF_AbortWhile(&params);
  } else {
    TF_Output limit = node(params.cond_graph, "Const", "limit", NULL, 0, ten, s);
    params.cond_output = pair(params.cond_graph, "Less", "less", params.cond_inputs[0], limit, s);
    TF_Output step = node(params.body_graph, "Const", "step", NULL, 0, one, s);
    params.body_outputs[0] = pair(params.body_graph, "AddV2", "next", params.body_inputs[0], step, s);
    params.name = "loop";
    TF_Output end;
    TF_FinishWhile(&params, s, &end);
    check(s, "loop");
    TF_SessionOptions* options = TF_NewSessionOptions();
    TF_Session* session = TF_NewSession(g, options, s);
    TF_DeleteSessionOptions(options);
    equal(run(session, x, 0, end, s), 10, "loop");
    end_session(session, s);
  }
  TF_DeleteTensor(ten);
  TF_DeleteTensor(one);
  TF_DeleteGraph(g);
}

static void errors(TF_Status* s, unsigned seed) {
  Model m = build(s);
  TF_OperationDescription* wrong = TF_NewOperation(m.graph, "AddV2", "wrong");
  if (TF_FinishOperation(wrong, s) != NULL) fail("op without inputs", "accepted");
  refused(s, TF_INVALID_ARGUMENT, "op without inputs");
  TF_Tensor* result = NULL;
  TF_SessionRun(m.session, NULL, NULL, NULL, 0, &m.y, &result, 1, NULL, 0, NULL, s);
  refused(s, TF_INVALID_ARGUMENT, "placeholder without a value");
  TF_Buffer* garbage = TF_NewBufferFromString("\xff garbage", 9);
  TF_ImportGraphDefOptions* options = TF_NewImportGraphDefOptions();
  TF_GraphImportGraphDef(m.graph, garbage, options, s);
  refused(s, TF_INVALID_ARGUMENT, "garbage");
  TF_DeleteImportGraphDefOptions(options);
  TF_DeleteBuffer(garbage);
  TF_SetPayload(s, "key", "payload");
  TF_DeleteGraph(m.graph);
  if (seed % 2 == 0) TF_CloseSession(m.session, s);
  TF_DeleteSession(m.session, s);
  TF_CheckpointReader* reader = TF_NewCheckpointReader("/no/such/checkpoint", s);
  if (TF_GetCode(s) == TF_OK) fail("missing checkpoint", "opened");
  TF_DeleteCheckpointReader(reader);
}

/* --- files --- */
static void saved_models(TF_Status* s, unsigned seed) {
  (void)seed;
  TF_Graph* g = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Buffer* meta = TF_NewBuffer();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, model_folder, tags, 1, g, meta, s);
  check(s, "SavedModel");
  TF_DeleteSessionOptions(options);
  TF_DeleteBuffer(meta);
  const int64_t dims[] = {1, 4};
  TF_Tensor *in = TF_AllocateTensor(TF_FLOAT, dims, 2, 16), *out = NULL;
  memset(TF_TensorData(in), 0, 16);
  TF_Output x = {TF_GraphOperationByName(g, "serving_default_features"), 0};
  TF_Output y = {TF_GraphOperationByName(g, "StatefulPartitionedCall_1"), 0};
  TF_SessionRun(session, NULL, &x, &in, 1, &y, &out, 1, NULL, 0, NULL, s);
  check(s, "SavedModel");
  equal((double)TF_TensorElementCount(out), 3, "SavedModel");
  TF_DeleteTensor(in);
  TF_DeleteTensor(out);
  TF_DeleteGraph(g);
  end_session(session, s);

  char prefix[4096];
  snprintf(prefix, sizeof prefix, "%s/variables/variables", model_folder);
  TF_CheckpointReader* reader = TF_NewCheckpointReader(prefix, s);
  check(s, "checkpoint");
  for (int i = 0; i < TF_CheckpointReaderSize(reader); i++) {
    TF_Tensor* t = TF_CheckpointReaderGetTensor(reader, TF_CheckpointReaderGetVariable(reader, i), s);
    check(s, "checkpoint");
    TF_DeleteTensor(t);
  }
  TF_DeleteCheckpointReader(reader);
}

static void servers(TF_Status* s, unsigned seed) {
  /* ServerDef: the cluster {"local": ["localhost:0"]}, job "local", protocol "grpc". */
  static const char def[] =
      "\x0a\x1a\x0a\x18\x0a\x05local\x12\x0f\x08\x00\x12\x0blocalhost:0\x12\x05local\x2a\x04grpc";
  TF_Server* server = TF_NewServer(def, sizeof def - 1, s);
  check(s, "server");
  if (seed % 2 == 0) {
    TF_ServerStart(server, s);
    check(s, "server");
    TF_ServerStop(server, s);
  }
  TF_DeleteServer(server);
}

/* --- eager --- */
static TFE_Context* context(bool is_async, TF_Status* s) {
  TFE_ContextOptions* options = TFE_NewContextOptions();
  TFE_ContextOptionsSetAsync(options, is_async);
  TFE_Context* made = TFE_NewContext(options, s);
  check(s, "context");
  TFE_DeleteContextOptions(options);
  return made;
}
/* Runs an op with up to two inputs and one output, and deletes `a` and `b`. */
static TFE_TensorHandle* call(TFE_Context* c, const char* name, TFE_TensorHandle* a, TFE_TensorHandle* b, TF_Status* s) {
  TFE_Op* op = TFE_NewOp(c, name, s);
  check(s, name);
  if (a != NULL) TFE_OpAddInput(op, a, s);
  if (b != NULL) TFE_OpAddInput(op, b, s);
  TFE_TensorHandle* result = NULL;
  int n = 1;
  TFE_Execute(op, &result, &n, s);
  TFE_DeleteOp(op);
  TFE_DeleteTensorHandle(a);
  TFE_DeleteTensorHandle(b);
  return result;
}
static TFE_TensorHandle* handle(TF_Tensor* t, TF_Status* s) {
  TFE_TensorHandle* made = TFE_NewTensorHandle(t, s);
  check(s, "handle");
  TF_DeleteTensor(t);
  return made;
}
static TF_Tensor* resolved(TFE_TensorHandle* h, TF_Status* s) {
  TF_Tensor* t = TFE_TensorHandleResolve(h, s);
  check(s, "resolve");
  TFE_DeleteTensorHandle(h);
  return t;
}

static void eager(TF_Status* s, unsigned seed) {
  TFE_Context* own = seed % 2 == 0 ? context(seed % 4 == 0, s) : NULL;
  TFE_Context* c = own != NULL ? own : shared_context;
  TF_Tensor* sum = resolved(call(c, "AddV2", handle(scalar(1), s), handle(scalar(2), s), s), s);
  equal(value(sum), 3, "sum");
  TF_DeleteTensor(sum);
  TF_Tensor* twice = resolved(call(c, "AddV2", handle(borrowed(100), s), handle(borrowed(100), s), s), s);
  equal(((float*)TF_TensorData(twice))[99], 198, "borrowed memory");
  TF_DeleteTensor(twice);
  TF_Tensor* words = resolved(call(c, "StringUpper", handle(text("a text that is longer than the short ones"), s), NULL, s), s);
  const TF_TString* upper = TF_TensorData(words);
  equal(memcmp(TF_StringGetDataPointer(upper), "A TEXT", 6), 0, "strings");
  TF_DeleteTensor(words);
  /* An op that fails, at once or later. */
  TFE_TensorHandle* bad = call(c, "MatMul", handle(scalar(1), s), handle(scalar(2), s), s);
  if (bad != NULL) {
    TF_Tensor* none = TFE_TensorHandleResolve(bad, s);
    if (none != NULL) fail("product of scalars", "computed");
    TFE_DeleteTensorHandle(bad);
  }
  refused(s, TF_INVALID_ARGUMENT, "product of scalars");
  TFE_DeleteContext(own);
}

static void variables(TF_Status* s, unsigned seed) {
  TFE_Op* op = TFE_NewOp(shared_context, "VarHandleOp", s);
  char name[32];
  const int n = snprintf(name, sizeof name, "v%u", seed % 3);
  TFE_OpSetAttrType(op, "dtype", TF_FLOAT);
  TFE_OpSetAttrShape(op, "shape", NULL, 0, s);
  TFE_OpSetAttrString(op, "shared_name", name, (size_t)n);
  TFE_TensorHandle* variable = NULL;
  int outputs = 1;
  TFE_Execute(op, &variable, &outputs, s);
  check(s, "variable");
  TFE_DeleteOp(op);
  call(shared_context, "AssignVariableOp", TFE_TensorHandleCopySharingTensor(variable, s), handle(scalar((float)(seed % 11)), s), s);
  check(s, "assign");
  op = TFE_NewOp(shared_context, "ReadVariableOp", s);
  TFE_OpSetAttrType(op, "dtype", TF_FLOAT);
  TFE_OpAddInput(op, variable, s);
  TFE_TensorHandle* read = NULL;
  TFE_Execute(op, &read, &outputs, s);
  check(s, "read");
  TFE_DeleteOp(op);
  TF_Tensor* found = resolved(read, s);
  /* Another thread may have assigned its own value. */
  if (!(value(found) >= 0 && value(found) < 11)) fail("variable", "a number that no thread assigned");
  TF_DeleteTensor(found);
  TFE_DeleteTensorHandle(variable);
}

static void functions(TF_Status* s, unsigned seed) {
  static atomic_uint numbers;
  char name[32];
  snprintf(name, sizeof name, "f%u", atomic_fetch_add(&numbers, 1));
  Model m = build(s);
  TF_Function* f = TF_GraphToFunction(m.graph, name, 0, -1, NULL, 1, &m.x, 1, &m.y, NULL, NULL, NULL, s);
  check(s, "function");
  TF_Buffer* def = TF_NewBuffer();
  TF_FunctionToFunctionDef(f, def, s);
  TF_Function* again = TF_FunctionImportFunctionDef(def->data, def->length, s);
  check(s, "function");
  TF_Graph* other = TF_NewGraph();
  TF_GraphCopyFunction(other, again, NULL, s);
  check(s, "function");
  TF_DeleteGraph(other);
  TF_DeleteBuffer(def);
  TFE_ContextAddFunction(shared_context, again, s);
  check(s, "function");
  const float x = (float)(seed % 9);
  TF_Tensor* y = resolved(call(shared_context, name, handle(scalar(x), s), NULL, s), s);
  equal(value(y), x * x + 2, "function");
  TF_DeleteTensor(y);
  TFE_ContextRemoveFunction(shared_context, name, s);
  check(s, "function");
  TF_DeleteFunction(f);
  TF_DeleteFunction(again);
  end_session(m.session, s);
  TF_DeleteGraph(m.graph);
}

static void executors(TF_Status* s, unsigned seed) {
  TFE_Context* c = context(false, s);
  TFE_Executor* executor = TFE_NewExecutor(seed % 2 == 0, false, 0);
  TFE_Executor* before = TFE_ContextGetExecutorForThread(c);
  TFE_ContextSetExecutorForThread(c, executor);
  TFE_TensorHandle* h = handle(scalar(1), s);
  for (int i = 0; i < 20; i++) h = call(c, "AddV2", h, handle(scalar(1), s), s);
  check(s, "executor");
  TFE_ExecutorWaitForAllPendingNodes(executor, s);
  check(s, "executor");
  TF_Tensor* sum = resolved(h, s);
  equal(value(sum), 21, "executor");
  TF_DeleteTensor(sum);
  TFE_CancellationManager* manager = TFE_NewCancellationManager();
  TFE_Op* op = TFE_NewOp(c, "AddV2", s);
  TFE_OpSetCancellationManager(op, manager, s);
  TFE_CancellationManagerStartCancel(manager);
  TFE_DeleteOp(op);
  TFE_DeleteCancellationManager(manager);
  TFE_ContextSetExecutorForThread(c, before);
  TFE_DeleteExecutor(before);
  TFE_DeleteExecutor(executor);
  TFE_DeleteContext(c);
}

typedef void (*Part)(TF_Status*, unsigned);
/* Servers have threads of their own: seldom. */
static const Part PARTS[] = {graphs, copies,    loops,     errors,    saved_models, eager, variables,
                             eager,  functions, executors, variables, graphs,       eager, NULL};
#define N_PARTS (sizeof PARTS / sizeof *PARTS)

static double until;
static atomic_long rounds;
static atomic_uint seeds;

static void* work(void* arg) {
  (void)arg;
  unsigned random = atomic_fetch_add(&seeds, 1) * 2654435761u + 1;
  TF_Status* s = TF_NewStatus();
  while (now() < until) {
    random = random * 1664525u + 1013904223u;
    const unsigned seed = random >> 8;
    const Part part = PARTS[seed % N_PARTS];
    if (part != NULL) part(s, seed / N_PARTS);
    else if (seed / N_PARTS % 16 == 0) servers(s, seed >> 4);
    atomic_fetch_add(&rounds, 1);
    if (seed % 16 == 0) {
      TF_DeleteStatus(s);
      s = TF_NewStatus();
    }
  }
  TF_DeleteStatus(s);
  return NULL;
}

static long resident_kb(void) {
  long pages = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file != NULL && fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * 4;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: soak THREADS SECONDS MODEL\n");
    return 2;
  }
  const int wanted = atoi(argv[1]), n = wanted < 1 ? 1 : wanted > 64 ? 64 : wanted;
  const double seconds = atof(argv[2]);
  model_folder = argv[3];
  TF_Status* s = TF_NewStatus();
  shared_model = build(s);
  shared_context = context(false, s);
  long resident[2];
  for (int part = 0; part < 2; part++) {
    until = now() + seconds * (part == 0 ? 0.1 : 0.9);
    pthread_t threads[64];
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    resident[part] = resident_kb();
    printf("%ld rounds, %ld kB resident\n", atomic_load(&rounds), resident[part]);
    fflush(stdout);
  }
  TFE_DeleteContext(shared_context);
  end_session(shared_model.session, s);
  TF_DeleteGraph(shared_model.graph);
  TF_DeleteStatus(s);
  if (atomic_load(&lent) != 0) fail("borrowed memory", "not given back");
#ifndef __SANITIZE_ADDRESS__
  /* Allocators keep some memory; what grows with the number of rounds is a leak. */
  if (resident[1] >= resident[0] + resident[0] / 4 + 8192) fail("memory", "it grows");
#endif
  return 0;
}
