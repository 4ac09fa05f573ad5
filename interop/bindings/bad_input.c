/* Bad input for the C API, one case for each run: `bad_input NAME` prints what the library says, `bad_input --list` the
 * names. `c.py` compares the lines of two libraries; a case that ends by a signal counts as such.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/c_api_experimental.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/c/eager/c_api_experimental.h"
#include "tensorflow/c/env.h"
#include "tensorflow/c/kernels.h"

static TF_Status* s;
static TF_Graph* g;

static void say(const char* what) {
  printf("%s: %d %s\n", what, TF_GetCode(s), TF_Message(s));
  TF_SetStatus(s, TF_OK, "");
}
static void told(const char* what, long value) { printf("%s = %ld\n", what, value); }

static TF_Tensor* f32(float v) {
  TF_Tensor* t = TF_AllocateTensor(TF_FLOAT, NULL, 0, 4);
  memcpy(TF_TensorData(t), &v, 4);
  return t;
}
static TF_Tensor* i32(int v) {
  TF_Tensor* t = TF_AllocateTensor(TF_INT32, NULL, 0, 4);
  memcpy(TF_TensorData(t), &v, 4);
  return t;
}
static TF_Operation* placeholder(const char* name, TF_DataType type) {
  TF_OperationDescription* d = TF_NewOperation(g, "Placeholder", name);
  TF_SetAttrType(d, "dtype", type);
  return TF_FinishOperation(d, s);
}
static TF_Operation* constant(const char* name, TF_Tensor* t) {
  TF_OperationDescription* d = TF_NewOperation(g, "Const", name);
  TF_SetAttrType(d, "dtype", TF_TensorType(t));
  TF_SetAttrTensor(d, "value", t, s);
  return TF_FinishOperation(d, s);
}
static TF_Output out(TF_Operation* op, int i) { return (TF_Output){op, i}; }
static TF_Operation* add(const char* name, TF_Output a, TF_Output b) {
  TF_OperationDescription* d = TF_NewOperation(g, "AddV2", name);
  TF_AddInput(d, a);
  TF_AddInput(d, b);
  return TF_FinishOperation(d, s);
}
static TF_Session* session(void) {
  TF_SessionOptions* o = TF_NewSessionOptions();
  TF_Session* session = TF_NewSession(g, o, s);
  TF_DeleteSessionOptions(o);
  return session;
}
static TF_Buffer* buffer(const char* bytes) { return TF_NewBufferFromString(bytes, strlen(bytes)); }
static TF_Buffer* graph_def(void) {
  TF_Buffer* b = TF_NewBuffer();
  TF_GraphToGraphDef(g, b, s);
  return b;
}
#define GARBAGE "\xff\xfe garbage"

/* --- tensors --- */
static void tensor_too_short(void) {
  int64_t dims[] = {4};
  char* data = malloc(8);
  TF_Tensor* t = TF_NewTensor(TF_FLOAT, dims, 1, data, 8, NULL, NULL);
  told("made", t != NULL);
}
static void tensor_bitcast(void) {
  TF_Tensor *from = f32(1), *to = f32(2);
  int64_t dims[] = {3};
  TF_TensorBitcastFrom(from, TF_FLOAT, to, dims, 1, s);
  say("three of one");
  TF_TensorBitcastFrom(from, TF_STRING, to, NULL, 0, s);
  say("to string");
  TF_TensorBitcastFrom(from, TF_INT32, to, NULL, 0, s);
  say("fits");
}
static void tensor_from_proto(void) {
  TF_Tensor* t = f32(0);
  TF_Buffer* b = buffer(GARBAGE);
  TF_TensorFromProto(b, t, s);
  say("garbage");
  TF_DeleteBuffer(b);
  b = TF_NewBufferFromString("\x08\x01\x22\x02\x01", 5);
  TF_TensorFromProto(b, t, s);
  say("truncated");
}
static void tensor_null(void) {
  TF_DeleteTensor(NULL);
  TF_DeleteStatus(NULL);
  TF_DeleteBuffer(NULL);
  TF_DeleteGraph(NULL);
  TF_DeleteSessionOptions(NULL);
  TF_DeleteImportGraphDefOptions(NULL);
  TF_DeleteImportGraphDefResults(NULL);
  TF_DeleteFunction(NULL);
  TF_DeletePRunHandle(NULL);
  TF_DeleteDeviceList(NULL);
  TF_DeleteApiDefMap(NULL);
  TF_DeleteServer(NULL);
  TF_DeleteLibraryHandle(NULL);
  TFE_DeleteContextOptions(NULL);
  TFE_DeleteContext(NULL);
  TFE_DeleteTensorHandle(NULL);
  TFE_DeleteTensorDebugInfo(NULL);
  TFE_DeleteOp(NULL);
  TFE_DeleteExecutor(NULL);
  TFE_DeleteCancellationManager(NULL);
  printf("alive\n");
}
static void status_of_odd_codes(void) {
  TF_SetStatus(s, 77, "odd");
  say("77");
  TF_SetStatus(s, TF_OK, "a message of OK");
  say("OK");
  TF_SetStatus(s, TF_ABORTED, "");
  say("empty");
}

/* --- building --- */
static void op_unknown(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "Nonexistent", "x");
  told("op", TF_FinishOperation(d, s) != NULL);
  say("unknown op");
}
static void op_twice(void) {
  placeholder("x", TF_FLOAT);
  placeholder("x", TF_FLOAT);
  say("twice");
}
static void op_bad_name(void) {
  placeholder("a b", TF_FLOAT);
  say("space");
  placeholder("", TF_FLOAT);
  say("empty");
  placeholder("_x", TF_FLOAT);
  say("underscore");
  placeholder("x:0", TF_FLOAT);
  say("colon");
}
static void op_missing_attr(void) {
  told("op", TF_FinishOperation(TF_NewOperation(g, "Placeholder", "x"), s) != NULL);
  say("no dtype");
}
static void op_wrong_attr(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "Placeholder", "x");
  TF_SetAttrInt(d, "dtype", 3);
  TF_FinishOperation(d, s);
  say("int for type");
  d = TF_NewOperation(g, "Placeholder", "y");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  TF_SetAttrInt(d, "nonexistent", 3);
  TF_FinishOperation(d, s);
  say("unknown attr");
  d = TF_NewOperation(g, "Placeholder", "z");
  TF_SetAttrType(d, "dtype", (TF_DataType)99);
  TF_FinishOperation(d, s);
  say("dtype 99");
}
static void op_attr_out_of_range(void) {
  TF_Operation* x = placeholder("x", TF_FLOAT);
  TF_OperationDescription* d = TF_NewOperation(g, "AvgPool", "pool");
  TF_AddInput(d, out(x, 0));
  int64_t one[] = {1, 1};
  TF_SetAttrIntList(d, "ksize", one, 2);
  TF_SetAttrIntList(d, "strides", one, 2);
  TF_SetAttrString(d, "padding", "ODD", 3);
  TF_FinishOperation(d, s);
  say("padding and length");
}
static void op_inputs(void) {
  TF_Operation *x = placeholder("x", TF_FLOAT), *i = placeholder("i", TF_INT32);
  TF_OperationDescription* d = TF_NewOperation(g, "AddV2", "one");
  TF_AddInput(d, out(x, 0));
  TF_FinishOperation(d, s);
  say("one of two");
  add("types", out(x, 0), out(i, 0));
  say("types");
  d = TF_NewOperation(g, "Neg", "two");
  TF_AddInput(d, out(x, 0));
  TF_AddInput(d, out(x, 0));
  TF_FinishOperation(d, s);
  say("two of one");
  TF_Output list[] = {out(x, 0), out(i, 0)};
  d = TF_NewOperation(g, "AddN", "mixed");
  TF_AddInputList(d, list, 2);
  TF_FinishOperation(d, s);
  say("mixed list");
  d = TF_NewOperation(g, "AddN", "none");
  TF_AddInputList(d, list, 0);
  TF_FinishOperation(d, s);
  say("empty list");
  d = TF_NewOperation(g, "Neg", "list");
  TF_AddInputList(d, list, 1);
  TF_FinishOperation(d, s);
  say("list for one");
}
static void op_colocation(void) {
  TF_Operation* x = placeholder("x", TF_FLOAT);
  TF_OperationDescription* d = TF_NewOperation(g, "Neg", "n");
  TF_AddInput(d, out(x, 0));
  const char* names[] = {"loc:@x", "odd"};
  size_t lengths[] = {6, 3};
  TF_SetAttrStringList(d, "_class", (const void* const*)names, lengths, 2);
  TF_FinishOperation(d, s);
  say("_class");
  d = TF_NewOperation(g, "Neg", "m");
  TF_AddInput(d, out(x, 0));
  TF_SetAttrInt(d, "_class", 1);
  TF_FinishOperation(d, s);
  say("_class of int");
}
static void op_device(void) {
  TF_Operation* x = placeholder("x", TF_FLOAT);
  TF_OperationDescription* d = TF_NewOperation(g, "Neg", "n");
  TF_AddInput(d, out(x, 0));
  TF_SetDevice(d, "/odd:device");
  TF_FinishOperation(d, s);
  say("device");
  TF_Session* session_ = session();
  say("session");
  TF_Output feed = out(x, 0), fetch = out(TF_GraphOperationByName(g, "n"), 0);
  TF_Tensor *in = f32(1), *result = NULL;
  TF_SessionRun(session_, NULL, &feed, &in, 1, &fetch, &result, 1, NULL, 0, NULL, s);
  told("code", TF_GetCode(s));
}
static void op_shapes(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "Placeholder", "x");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  int64_t dims[] = {2, 3}, other[] = {4, 5}, bad[] = {-7};
  TF_SetAttrShape(d, "shape", dims, 2);
  TF_Operation* x = TF_FinishOperation(d, s);
  d = TF_NewOperation(g, "Placeholder", "y");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  TF_SetAttrShape(d, "shape", other, 2);
  TF_Operation* y = TF_FinishOperation(d, s);
  d = TF_NewOperation(g, "MatMul", "m");
  TF_AddInput(d, out(x, 0));
  TF_AddInput(d, out(y, 0));
  TF_FinishOperation(d, s);
  say("matmul");
  add("sum", out(x, 0), out(y, 0));
  say("add");
  TF_GraphSetTensorShape(g, out(x, 0), other, 2, s);
  say("set shape");
  TF_GraphSetTensorShape(g, out(x, 3), other, 2, s);
  say("set shape of output 3");
  told("dims", TF_GraphGetTensorNumDims(g, out(x, 5), s));
  say("dims of output 5");
  int64_t into[1];
  TF_GraphGetTensorShape(g, out(x, 0), into, 1, s);
  say("one of two dims");
  d = TF_NewOperation(g, "Placeholder", "z");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  TF_SetAttrShape(d, "shape", bad, 1);
  TF_FinishOperation(d, s);
  say("-7");
}
static void op_protos(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "Placeholder", "x");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  TF_SetAttrTensorShapeProto(d, "shape", GARBAGE, strlen(GARBAGE), s);
  say("shape");
  TF_SetAttrValueProto(d, "shape", GARBAGE, strlen(GARBAGE), s);
  say("value");
  const char* protos[] = {GARBAGE};
  size_t lengths[] = {strlen(GARBAGE)};
  TF_SetAttrTensorShapeProtoList(d, "shape", (const void* const*)protos, lengths, 1, s);
  say("shapes");
  told("op", TF_FinishOperation(d, s) != NULL);
  say("finish");
}
static void op_foreign(void) {
  TF_Graph* mine = g;
  TF_Operation* x = placeholder("x", TF_FLOAT);
  g = TF_NewGraph();
  TF_OperationDescription* d = TF_NewOperation(g, "Neg", "n");
  TF_AddInput(d, out(x, 0));
  told("op", TF_FinishOperation(d, s) != NULL);
  say("input of another graph");
  told("dims", TF_GraphGetTensorNumDims(g, out(x, 0), s));
  say("shape of another graph's");
  g = mine;
}

/* --- reading operations --- */
static void attr_reads(void) {
  TF_Operation* x = constant("c", f32(1));
  TF_OperationGetAttrMetadata(x, "nonexistent", s);
  say("metadata");
  int64_t n;
  TF_OperationGetAttrInt(x, "dtype", &n, s);
  say("int");
  TF_OperationGetAttrInt(x, "value", &n, s);
  say("int of tensor");
  char text[4];
  TF_OperationGetAttrString(x, "dtype", text, 4, s);
  say("string");
  TF_OperationGetAttrIntList(x, "dtype", &n, 1, s);
  say("ints");
  TF_OperationGetAttrShape(x, "value", &n, 1, s);
  say("shape");
  TF_Tensor* t;
  TF_OperationGetAttrTensor(x, "dtype", &t, s);
  say("tensor");
  TF_Buffer* b = buffer("full");
  TF_OperationGetAttrValueProto(x, "dtype", b, s);
  say("full buffer");
  TF_OperationGetAttrValueProto(x, "nonexistent", TF_NewBuffer(), s);
  say("unknown");
  TF_OperationGetAttrTensorShapeProto(x, "value", b, s);
  say("shape proto, full");
  TF_OperationGetAttrTensorShapeProto(x, "value", TF_NewBuffer(), s);
  say("shape proto");
  TF_OperationToNodeDef(x, b, s);
  say("node, full");
  told("length", TF_OperationGetAttrNameLength(x, 99));
  char name[64];
  TF_OperationGetAttrName(x, 99, name, s);
  say("name");
  told("inputs", TF_OperationInputListLength(x, "nope", s));
  say("inputs");
  told("outputs", TF_OperationOutputListLength(x, "nope", s));
  say("outputs");
}
static void attr_lists(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "ParseExample", "p");
  (void)d;
  TF_Operation* x = placeholder("x", TF_FLOAT);
  d = TF_NewOperation(g, "MaxPool", "pool");
  TF_AddInput(d, out(x, 0));
  int64_t one[] = {1, 2, 2, 1};
  TF_SetAttrIntList(d, "ksize", one, 4);
  TF_SetAttrIntList(d, "strides", one, 4);
  TF_SetAttrString(d, "padding", "SAME", 4);
  TF_Operation* pool = TF_FinishOperation(d, s);
  say("pool");
  int64_t two[2] = {0, 0};
  TF_OperationGetAttrIntList(pool, "ksize", two, 2, s);
  say("two of four");
  told("second", two[1]);
  char text[3] = {0};
  TF_OperationGetAttrString(pool, "padding", text, 2, s);
  say("two characters");
  told("second", text[1]);
  float f;
  TF_OperationGetAttrFloatList(pool, "ksize", &f, 1, s);
  say("floats of ints");
  unsigned char flag;
  TF_OperationGetAttrBool(pool, "padding", &flag, s);
  say("bool of string");
}
static void graph_reads(void) {
  placeholder("x", TF_FLOAT);
  TF_Buffer* b = buffer("full");
  TF_GraphToGraphDef(g, b, s);
  say("graph def, full");
  TF_GraphVersions(g, b, s);
  say("versions, full");
  TF_GraphGetOpDef(g, "Placeholder", b, s);
  say("op def, full");
  TF_GraphGetOpDef(g, "Nonexistent", TF_NewBuffer(), s);
  say("op def, unknown");
  told("by name", TF_GraphOperationByName(g, "nope") != NULL);
  told("by empty name", TF_GraphOperationByName(g, "") != NULL);
  size_t at = 77;
  told("next", TF_GraphNextOperation(g, &at) != NULL);
  told("kernels", TF_GetRegisteredKernelsForOp("Nonexistent", s) != NULL);
  say("kernels");
}

/* --- importing --- */
static TF_ImportGraphDefOptions* options(void) { return TF_NewImportGraphDefOptions(); }
static void import(const char* what, TF_Buffer* def, TF_ImportGraphDefOptions* o) {
  TF_ImportGraphDefResults* r = TF_GraphImportGraphDefWithResults(g, def, o, s);
  told(what, r != NULL);
  say(what);
}
static void import_bytes(void) {
  import("garbage", buffer(GARBAGE), options());
  import("empty", TF_NewBufferFromString("", 0), options());
  placeholder("x", TF_FLOAT);
  TF_Buffer* def = graph_def();
  for (size_t n = 1; n < def->length; n += 7) {
    g = TF_NewGraph();
    TF_Buffer* part = TF_NewBufferFromString(def->data, n);
    TF_GraphImportGraphDef(g, part, options(), s);
    printf("%zu: %d\n", n, TF_GetCode(s));
    TF_SetStatus(s, TF_OK, "");
  }
}
static void import_twice(void) {
  placeholder("x", TF_FLOAT);
  TF_Buffer* def = graph_def();
  import("twice", def, options());
  TF_ImportGraphDefOptions* o = options();
  TF_ImportGraphDefOptionsSetPrefix(o, "bad prefix!");
  import("prefix", def, o);
  o = options();
  TF_ImportGraphDefOptionsSetPrefix(o, "x");
  import("prefix that is a node", def, o);
}
static void import_returns(void) {
  placeholder("x", TF_FLOAT);
  TF_Buffer* def = graph_def();
  g = TF_NewGraph();
  TF_ImportGraphDefOptions* o = options();
  TF_ImportGraphDefOptionsAddReturnOutput(o, "nope", 0);
  import("unknown output", def, o);
  o = options();
  TF_ImportGraphDefOptionsAddReturnOutput(o, "x", 3);
  import("output 3", def, o);
  o = options();
  TF_ImportGraphDefOptionsAddReturnOperation(o, "nope");
  import("unknown operation", def, o);
  o = options();
  TF_Output got;
  TF_GraphImportGraphDefWithReturnOutputs(g, def, o, &got, 1, s);
  say("one of none");
}
static void import_maps(void) {
  TF_Operation *x = placeholder("x", TF_FLOAT), *i = placeholder("i", TF_INT32);
  add("sum", out(x, 0), out(x, 0));
  TF_Buffer* def = graph_def();
  TF_Graph* first = g;
  g = TF_NewGraph();
  TF_ImportGraphDefOptions* o = options();
  TF_ImportGraphDefOptionsAddInputMapping(o, "x", 0, out(x, 0));
  (void)first;
  TF_Operation* mine = placeholder("mine", TF_INT32);
  o = options();
  TF_ImportGraphDefOptionsSetPrefix(o, "p");
  TF_ImportGraphDefOptionsAddInputMapping(o, "x", 0, out(mine, 0));
  import("dtype", def, o);
  o = options();
  TF_ImportGraphDefOptionsSetPrefix(o, "q");
  TF_ImportGraphDefOptionsAddInputMapping(o, "x", 0, out(mine, 4));
  import("output 4", def, o);
  o = options();
  TF_ImportGraphDefOptionsSetPrefix(o, "r");
  TF_ImportGraphDefOptionsAddInputMapping(o, "unused", 2, out(mine, 0));
  TF_ImportGraphDefResults* r = TF_GraphImportGraphDefWithResults(g, def, o, s);
  say("unused");
  int n = 0, *indexes;
  const char** names;
  if (r) {
    TF_ImportGraphDefResultsMissingUnusedInputMappings(r, &n, &names, &indexes);
    told("missing", n);
    if (n) printf("%s:%d\n", names[0], indexes[0]);
  }
  (void)i;
}
static void import_texts(void) {
  /* A node without an op; one whose input does not exist; a cycle; an unknown op; a producer of the future. */
  static const struct {
    const char* what;
    const char* bytes;
    size_t n;
  } rows[] = {
      {"no op", "\x0a\x03\x0a\x01" "a", 5},
      {"unknown op", "\x0a\x09\x0a\x01" "a" "\x12\x04Nope", 11},
      {"no input", "\x0a\x0d\x0a\x01" "a" "\x12\x04" "NoOp" "\x1a\x02" "^b", 15},
      {"no name", "\x0a\x06\x12\x04NoOp", 8},
      {"own input", "\x0a\x0d\x0a\x01" "a" "\x12\x04" "NoOp" "\x1a\x02" "^a", 15},
      {"producer", "\x22\x05\x08\xff\xff\xff\x07", 7},
      {"min consumer", "\x22\x08\x08\xff\x0f\x10\xff\xff\xff\x07", 10},
      {"two inputs", "\x0a\x10\x0a\x01" "a" "\x12\x04" "NoOp" "\x1a\x01" "b" "\x1a\x02" "^c", 18},
      {"bad name", "\x0a\x0b\x0a\x03" "a b" "\x12\x04NoOp", 13},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    g = TF_NewGraph();
    import(rows[i].what, TF_NewBufferFromString(rows[i].bytes, rows[i].n), options());
  }
}

/* --- functions --- */
static void functions(void) {
  TF_Operation *x = placeholder("x", TF_FLOAT), *c = constant("c", f32(1));
  TF_Operation* sum = add("sum", out(x, 0), out(c, 0));
  TF_Output in[] = {out(x, 0), out(x, 0)}, result = out(sum, 0), bad = out(sum, 5);
  const char* names[] = {"same", "same"};
  TF_Output twice[] = {result, result};
#define MAKE(what, ...)                                                  \
  do {                                                                   \
    TF_Function* f = TF_GraphToFunction(g, __VA_ARGS__, s);              \
    told(what, f != NULL);                                               \
    say(what);                                                           \
  } while (0)
  MAKE("fine", "f", 0, -1, NULL, 1, in, 1, &result, NULL, NULL, NULL);
  MAKE("input twice", "f", 0, -1, NULL, 2, in, 1, &result, NULL, NULL, NULL);
  MAKE("no inputs", "f", 0, -1, NULL, 0, NULL, 1, &result, NULL, NULL, NULL);
  MAKE("output 5", "f", 0, -1, NULL, 1, in, 1, &bad, NULL, NULL, NULL);
  MAKE("same names", "f", 0, -1, NULL, 1, in, 2, twice, names, NULL, NULL);
  MAKE("input in the body", "f", 0, 1, (const TF_Operation* const*)&x, 1, in, 1, &result, NULL, NULL, NULL);
  MAKE("empty name", "", 0, -1, NULL, 1, in, 1, &result, NULL, NULL, NULL);
  TF_Output wrong = out(x, 2);
  MAKE("input 2", "f", 0, -1, NULL, 1, &wrong, 1, &result, NULL, NULL, NULL);
  TF_Function* f = TF_GraphToFunction(g, "f", 0, -1, NULL, 1, in, 1, &result, NULL, NULL, NULL, s);
  TF_FunctionToFunctionDef(f, buffer("full"), s);
  say("full");
  TF_FunctionGetAttrValueProto(f, "nope", TF_NewBuffer(), s);
  say("attr");
  TF_FunctionSetAttrValueProto(f, "a", GARBAGE, strlen(GARBAGE), s);
  say("set attr");
  told("import", TF_FunctionImportFunctionDef(GARBAGE, strlen(GARBAGE), s) != NULL);
  say("import");
  told("import empty", TF_FunctionImportFunctionDef("", 0, s) != NULL);
  say("import empty");
  TF_GraphCopyFunction(g, NULL, NULL, s);
  say("copy NULL");
  TF_GraphCopyFunction(g, f, f, s);
  say("copy with gradient");
  TF_Function* list[1];
  told("get", TF_GraphGetFunctions(g, list, -1, s));
  say("get -1");
  TF_Function* other = TF_GraphToFunction(g, "f", 0, -1, NULL, 1, in, 1, in, NULL, NULL, NULL, s);
  say("another f");
  TF_GraphCopyFunction(g, other, NULL, s);
  say("copy another f");
}

/* --- gradients and loops --- */
static void gradients(void) {
  TF_Operation *x = placeholder("x", TF_FLOAT), *i = placeholder("i", TF_INT32);
  TF_OperationDescription* d = TF_NewOperation(g, "Neg", "n");
  TF_AddInput(d, out(x, 0));
  TF_Operation* n = TF_FinishOperation(d, s);
  TF_Output y = out(n, 0), from = out(x, 0), dx = {NULL, 0}, other = out(i, 0), bad = out(n, 3);
  TF_AddGradients(g, &y, 1, &other, 1, NULL, s, &dx);
  say("not connected");
  told("dx", dx.oper != NULL);
  TF_AddGradients(g, &bad, 1, &from, 1, NULL, s, &dx);
  say("output 3");
  TF_AddGradientsWithPrefix(g, "n", &y, 1, &from, 1, NULL, s, &dx);
  say("prefix that is a node");
  d = TF_NewOperation(g, "EncodeBase64", "e");
  TF_AddInput(d, out(placeholder("t", TF_STRING), 0));
  TF_Operation* e = TF_FinishOperation(d, s);
  y = out(e, 0);
  from = out(TF_GraphOperationByName(g, "t"), 0);
  TF_AddGradients(g, &y, 1, &from, 1, NULL, s, &dx);
  say("no gradient");
  TF_AddGradients(g, NULL, 0, NULL, 0, NULL, s, &dx);
  say("none");
}
static void loops(void) {
  TF_Output in = out(placeholder("x", TF_INT32), 0), result;
  TF_WhileParams none = TF_NewWhile(g, NULL, 0, s);
  told("inputs", none.ninputs);
  say("no inputs");
  TF_WhileParams unset = TF_NewWhile(g, &in, 1, s);
  say("new");
  TF_FinishWhile(&unset, s, &result);
  say("nothing set");
  TF_WhileParams p = TF_NewWhile(g, &in, 1, s);
  p.name = "w";
  p.cond_output = p.cond_inputs[0];
  p.body_outputs[0] = p.body_inputs[0];
  TF_FinishWhile(&p, s, &result);
  say("condition of int");
  told("graph", TF_GraphOperationByName(g, "w/Exit") != NULL);
}
static void evaluation(void) {
  TF_Tensor* t = NULL;
  told("placeholder", TF_TryEvaluateConstant(g, out(placeholder("x", TF_FLOAT), 0), &t, s));
  say("placeholder");
  told("output 4", TF_TryEvaluateConstant(g, out(constant("c", f32(1)), 4), &t, s));
  say("output 4");
}

/* --- sessions --- */
static void run(const char* what, TF_Session* r, TF_Output* feeds, TF_Tensor** in, int n, TF_Output* fetches, int m,
                TF_Operation** targets, int k) {
  TF_Tensor* results[4] = {0};
  TF_SessionRun(r, NULL, feeds, in, n, fetches, results, m, (const TF_Operation* const*)targets, k, NULL, s);
  say(what);
}
static void runs(void) {
  TF_Operation *x = placeholder("x", TF_FLOAT), *c = constant("c", f32(1));
  TF_Operation* sum = add("sum", out(x, 0), out(c, 0));
  TF_Session* r = session();
  TF_Output feed[] = {out(x, 0), out(x, 0)}, fetch = out(sum, 0), bad = out(sum, 7), far = out(x, 3);
  TF_Tensor *one = f32(1), *integer = i32(1), *both[] = {one, one};
  run("nothing", r, NULL, NULL, 0, NULL, 0, NULL, 0);
  run("not fed", r, NULL, NULL, 0, &fetch, 1, NULL, 0);
  run("fed int", r, feed, &integer, 1, &fetch, 1, NULL, 0);
  run("fed twice", r, feed, both, 2, &fetch, 1, NULL, 0);
  run("fetch 7", r, feed, &one, 1, &bad, 1, NULL, 0);
  run("feed 3", r, &far, &one, 1, &fetch, 1, NULL, 0);
  TF_Output fetches[] = {fetch, fetch};
  run("fetched twice", r, feed, &one, 1, fetches, 2, NULL, 0);
  TF_Buffer* full = buffer("full");
  TF_Tensor* result = NULL;
  TF_SessionRun(r, NULL, feed, &one, 1, &fetch, &result, 1, NULL, 0, full, s);
  say("metadata, full");
  TF_Buffer* garbage = buffer(GARBAGE);
  TF_SessionRun(r, garbage, feed, &one, 1, &fetch, &result, 1, NULL, 0, NULL, s);
  say("options");
  TF_CloseSession(r, s);
  say("close");
  run("closed", r, feed, &one, 1, &fetch, 1, NULL, 0);
  TF_CloseSession(r, s);
  say("close again");
  TF_DeleteSession(r, s);
  say("delete");
}
static void runs_foreign(void) {
  placeholder("x", TF_FLOAT);
  TF_Session* r = session();
  g = TF_NewGraph();
  TF_Operation* y = constant("y", f32(1));
  TF_Output fetch = out(y, 0);
  run("another graph's", r, NULL, NULL, 0, &fetch, 1, NULL, 0);
}
static void runs_shapes(void) {
  TF_OperationDescription* d = TF_NewOperation(g, "Placeholder", "x");
  TF_SetAttrType(d, "dtype", TF_FLOAT);
  int64_t dims[] = {2};
  TF_SetAttrShape(d, "shape", dims, 1);
  TF_Operation* x = TF_FinishOperation(d, s);
  d = TF_NewOperation(g, "Neg", "n");
  TF_AddInput(d, out(x, 0));
  TF_Output feed = out(x, 0), fetch = out(TF_FinishOperation(d, s), 0);
  TF_Tensor* one = f32(1);
  run("scalar for a vector", session(), &feed, &one, 1, &fetch, 1, NULL, 0);
}
static void partial_runs(void) {
  TF_Operation* x = placeholder("x", TF_FLOAT);
  TF_Operation* sum = add("sum", out(x, 0), out(x, 0));
  TF_Session* r = session();
  TF_Output feed = out(x, 0), fetch = out(sum, 0);
  const char* handle = NULL;
  TF_Tensor *one = f32(1), *result = NULL;
  TF_SessionPRunSetup(r, &feed, 1, NULL, 0, NULL, 0, &handle, s);
  say("no fetches");
  TF_SessionPRun(r, "nope", &feed, &one, 1, &fetch, &result, 1, NULL, 0, s);
  say("unknown handle");
  handle = NULL;
  TF_SessionPRunSetup(r, &feed, 1, &fetch, 1, NULL, 0, &handle, s);
  say("setup");
  TF_SessionPRun(r, handle, NULL, NULL, 0, &fetch, &result, 1, NULL, 0, s);
  say("fetch without feed");
}
static void session_options(void) {
  TF_SessionOptions* o = TF_NewSessionOptions();
  TF_SetConfig(o, GARBAGE, strlen(GARBAGE), s);
  say("config");
  TF_SetTarget(o, "odd://target");
  told("session", TF_NewSession(g, o, s) != NULL);
  told("code", TF_GetCode(s));
  TF_SetStatus(s, TF_OK, "");
  TF_SetTarget(o, "");
  const char* tags[] = {"serve"};
  told("model", TF_LoadSessionFromSavedModel(o, NULL, "/nonexistent", tags, 1, g, NULL, s) != NULL);
  say("model");
  told("server", TF_NewServer(GARBAGE, strlen(GARBAGE), s) != NULL);
  say("server");
  told("library", TF_LoadLibrary("/nonexistent.so", s) != NULL);
  told("code", TF_GetCode(s));
}
static void deprecated(void) {
  TF_SessionOptions* o = TF_NewSessionOptions();
  TF_DeprecatedSession* r = TF_NewDeprecatedSession(o, s);
  say("new");
  TF_ExtendGraph(r, GARBAGE, strlen(GARBAGE), s);
  say("extend");
  const char* fetch[] = {"nope:0"};
  TF_Tensor* result = NULL;
  TF_Run(r, NULL, NULL, NULL, 0, fetch, &result, 1, NULL, 0, NULL, s);
  say("run");
}

/* --- the rest --- */
static void op_docs(void) {
  TF_Buffer* ops = TF_GetAllOpList();
  TF_ApiDefMap* map = TF_NewApiDefMap(ops, s);
  say("map");
  TF_ApiDefMapPut(map, "garbage {", 9, s);
  told("code", TF_GetCode(s));
  TF_SetStatus(s, TF_OK, "");
  told("get", TF_ApiDefMapGet(map, "Nonexistent", 11, s) != NULL);
  say("get");
  told("map", TF_NewApiDefMap(buffer(GARBAGE), s) != NULL);
  say("garbage");
}
static void files(void) {
  TF_FileStatistics stats;
  TF_FileStat("/nonexistent/file", &stats, s);
  say("stat");
  TF_DeleteFile("/nonexistent/file", s);
  say("delete");
  TF_CreateDir("/nonexistent/dir/deeper", s);
  say("create");
  TF_DeleteDir("/nonexistent/dir", s);
  say("delete dir");
  TF_WritableFileHandle* f = NULL;
  TF_NewWritableFile("/nonexistent/file", &f, s);
  say("write");
  TF_CheckpointReader* r = TF_NewCheckpointReader("/nonexistent/ckpt", s);
  told("reader", r != NULL);
  told("code", TF_GetCode(s));
}
static TFE_Context* eager(void) {
  TFE_ContextOptions* o = TFE_NewContextOptions();
  TFE_Context* c = TFE_NewContext(o, s);
  TFE_DeleteContextOptions(o);
  return c;
}
static void eager_options(void) {
  TFE_ContextOptions* o = TFE_NewContextOptions();
  TFE_ContextOptionsSetConfig(o, GARBAGE, strlen(GARBAGE), s);
  say("config");
}
static void eager_ops(void) {
  TFE_Context* c = eager();
  TFE_TensorHandle *h = TFE_NewTensorHandle(f32(1), s), *i = TFE_NewTensorHandle(i32(1), s), *results[2] = {0};
  int n = 1;
  TFE_Op* op = TFE_NewOp(c, "Nonexistent", s);
  told("op", op != NULL);
  say("unknown");
  op = TFE_NewOp(c, "AddV2", s);
  TFE_OpAddInput(op, h, s);
  TFE_Execute(op, results, &n, s);
  say("one of two");
  op = TFE_NewOp(c, "AddV2", s);
  TFE_OpAddInput(op, h, s);
  TFE_OpAddInput(op, i, s);
  told("n", n = 1);
  TFE_Execute(op, results, &n, s);
  say("types");
  op = TFE_NewOp(c, "Neg", s);
  TFE_OpAddInput(op, h, s);
  n = 0;
  TFE_Execute(op, results, &n, s);
  say("no room for results");
  op = TFE_NewOp(c, "Neg", s);
  TFE_OpAddInput(op, h, s);
  n = 2;
  TFE_Execute(op, results, &n, s);
  say("room for two");
  told("n", n);
  op = TFE_NewOp(c, "Neg", s);
  TFE_OpAddInput(op, h, s);
  TFE_OpAddInput(op, h, s);
  say("second input");
  n = 1;
  TFE_Execute(op, results, &n, s);
  say("two of one");
  op = TFE_NewOp(c, "MatMul", s);
  TFE_OpAddInput(op, h, s);
  TFE_OpAddInput(op, h, s);
  TFE_Execute(op, results, &n, s);
  say("matmul of scalars");
}
static void eager_attrs(void) {
  TFE_Context* c = eager();
  TFE_Op* op = TFE_NewOp(c, "MatMul", s);
  unsigned char is_list = 0;
  TFE_OpGetAttrType(op, "nope", &is_list, s);
  say("attr");
  told("type", TFE_OpNameGetAttrType(c, "Nonexistent", "T", &is_list, s));
  say("type of unknown op");
  TFE_OpSetAttrValueProto(op, "transpose_a", GARBAGE, strlen(GARBAGE), s);
  say("value");
  TFE_OpSetDevice(op, "odd", s);
  say("device");
  TFE_OpSetDevice(op, "/job:localhost/device:GPU:99", s);
  say("GPU");
  told("length", TFE_OpGetInputLength(op, "nope", s));
  say("input");
  told("length", TFE_OpGetOutputLength(op, "nope", s));
  say("output");
  int64_t dims[] = {-5};
  TFE_OpSetAttrShape(op, "nope", dims, 1, s);
  say("shape");
  TFE_ContextAddFunctionDef(c, GARBAGE, strlen(GARBAGE), s);
  say("function");
  TFE_ContextRemoveFunction(c, "nope", s);
  say("remove");
  told("has", TFE_ContextHasFunction(c, "nope"));
}
static void eager_handles(void) {
  TFE_Context* c = eager();
  TFE_TensorHandle* h = TFE_NewTensorHandle(f32(1), s);
  told("dim", TFE_TensorHandleDim(h, 0, s));
  say("dim 0");
  told("dim", TFE_TensorHandleDim(h, -1, s));
  say("dim -1");
  told("dims", TFE_TensorHandleNumDims(NULL, s));
  say("dims of NULL");
  told("dim", TFE_TensorHandleDim(NULL, 0, s));
  say("dim of NULL");
  told("elements", TFE_TensorHandleNumElements(NULL, s));
  say("elements of NULL");
  told("device", TFE_TensorHandleDeviceName(NULL, s) != NULL);
  say("device of NULL");
  told("backing", TFE_TensorHandleBackingDeviceName(NULL, s) != NULL);
  say("backing device of NULL");
  told("resolve", TFE_TensorHandleResolve(NULL, s) != NULL);
  say("resolve of NULL");
  told("share", TFE_TensorHandleCopySharingTensor(NULL, s) != NULL);
  say("sharing copy of NULL");
  told("debug", TFE_TensorHandleTensorDebugInfo(NULL, s) != NULL);
  say("debug info of NULL");
  told("pointer", TFE_TensorHandleDevicePointer(NULL, s) != NULL);
  say("pointer of NULL");
  told("copy", TFE_TensorHandleCopyToDevice(h, c, "odd", s) != NULL);
  say("copy to odd");
  told("copy", TFE_TensorHandleCopyToDevice(h, c, "/device:GPU:9", s) != NULL);
  say("copy to GPU");
  told("copy", TFE_TensorHandleCopyToDevice(NULL, c, "CPU:0", s) != NULL);
  say("copy of NULL");
}

#define CASE(name) {#name, name}
static const struct {
  const char* name;
  void (*run)(void);
} CASES[] = {
    CASE(tensor_too_short), CASE(tensor_bitcast),  CASE(tensor_from_proto), CASE(tensor_null),
    CASE(status_of_odd_codes), CASE(op_unknown),   CASE(op_twice),          CASE(op_bad_name),
    CASE(op_missing_attr),  CASE(op_wrong_attr),   CASE(op_attr_out_of_range), CASE(op_inputs),
    CASE(op_colocation),    CASE(op_device),       CASE(op_shapes),         CASE(op_protos),
    CASE(op_foreign),       CASE(attr_reads),      CASE(attr_lists),        CASE(graph_reads),
    CASE(import_bytes),     CASE(import_twice),    CASE(import_returns),    CASE(import_maps),
    CASE(import_texts),     CASE(functions),       CASE(gradients),         CASE(loops),
    CASE(evaluation),       CASE(runs),            CASE(runs_foreign),      CASE(runs_shapes),
    CASE(partial_runs),     CASE(session_options), CASE(deprecated),        CASE(op_docs),
    CASE(files),            CASE(eager_options),   CASE(eager_ops),         CASE(eager_attrs),
    CASE(eager_handles),
};

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  s = TF_NewStatus();
  g = TF_NewGraph();
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    if (argc > 1 && !strcmp(argv[1], "--list")) puts(CASES[i].name);
    if (argc > 1 && !strcmp(argv[1], CASES[i].name)) CASES[i].run();
  }
  return 0;
}
