/* Files of a plugin, through the environment, ops, checkpoints and SavedModels: prints what it finds.
 *
 *   filesystem PLUGIN WRONG_PLUGIN MODEL
 *
 * PLUGIN is the library of mem_plugin.c, WRONG_PLUGIN one with another ABI, MODEL a SavedModel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/c_api_experimental.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/c/env.h"
#include "tensorflow/c/tf_tstring.h"

static TF_Status* status;
static TFE_Context* context;

static void check(const char* what) {
  if (TF_GetCode(status) != TF_OK) {
    printf("%s: error %d: %s\n", what, TF_GetCode(status), TF_Message(status));
    exit(1);
  }
}

static void print_error(const char* what) { printf("%s: %d %s\n", what, TF_GetCode(status), TF_Message(status)); }

/* A tensor of texts: a scalar if n is 0. */
static TFE_TensorHandle* texts(const char* const* values, int64_t n) {
  size_t count = n ? (size_t)n : 1;
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, &n, n ? 1 : 0, count * sizeof(TF_TString));
  TF_TString* at = TF_TensorData(tensor);
  for (size_t i = 0; i < count; i++) {
    TF_TString_Init(at + i);
    TF_TString_Copy(at + i, values[i], strlen(values[i]));
  }
  TFE_TensorHandle* handle = TFE_NewTensorHandle(tensor, status);
  check("texts");
  TF_DeleteTensor(tensor);
  return handle;
}

static TFE_TensorHandle* text(const char* value) { return texts(&value, 0); }

static TFE_TensorHandle* number(float value) {
  TF_Tensor* tensor = TF_AllocateTensor(TF_FLOAT, NULL, 0, sizeof value);
  memcpy(TF_TensorData(tensor), &value, sizeof value);
  TFE_TensorHandle* handle = TFE_NewTensorHandle(tensor, status);
  check("number");
  TF_DeleteTensor(tensor);
  return handle;
}

static TFE_Op* op(const char* name, TFE_TensorHandle* a, TFE_TensorHandle* b, TFE_TensorHandle* c) {
  TFE_Op* made = TFE_NewOp(context, name, status);
  check(name);
  if (a) TFE_OpAddInput(made, a, status);
  if (b) TFE_OpAddInput(made, b, status);
  if (c) TFE_OpAddInput(made, c, status);
  check(name);
  return made;
}

/* Runs a call of up to one output; the status has its error. */
static TFE_TensorHandle* run(TFE_Op* call, int n) {
  TFE_TensorHandle* output = NULL;
  TFE_Execute(call, n ? &output : NULL, &n, status);
  TFE_DeleteOp(call);
  return output;
}

static void print_texts(const char* what, TFE_TensorHandle* handle) {
  check(what);
  TF_Tensor* tensor = TFE_TensorHandleResolve(handle, status);
  check(what);
  printf("%s:", what);
  const TF_TString* at = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) {
    printf(" %.*s", (int)TF_TString_GetSize(at + i), TF_TString_GetDataPointer(at + i));
  }
  printf("\n");
  TF_DeleteTensor(tensor);
}

static void print_number(const char* what, TFE_TensorHandle* handle) {
  check(what);
  TF_Tensor* tensor = TFE_TensorHandleResolve(handle, status);
  check(what);
  printf("%s: %g\n", what, *(const float*)TF_TensorData(tensor));
  TF_DeleteTensor(tensor);
}

static void environment(void) {
  TF_CreateDir("mem://host/dir", status);
  check("create dir");
  TF_WritableFileHandle* file;
  TF_NewWritableFile("mem://host/dir/one.txt", &file, status);
  check("new file");
  TF_AppendWritableFile(file, "a 1\nb 2\n", 8, status);
  TF_CloseWritableFile(file, status);
  check("close");
  TF_FileStatistics stats;
  TF_FileStat("mem://host/dir/one.txt", &stats, status);
  check("stat");
  printf("length %d, folder %d\n", (int)stats.length, stats.is_directory);
  TF_StringStream* names = TF_GetChildren("mem://host/dir", status);
  const char* name;
  while (TF_StringStreamNext(names, &name)) printf("child %s\n", name);
  TF_StringStreamDone(names);
  TF_FileStat("mem://host/missing", &stats, status);
  print_error("missing");
}

static void ops(void) {
  run(op("WriteFile", text("mem://host/dir/sub/two.txt"), text("content"), NULL), 0);
  check("write");
  print_texts("read", run(op("ReadFile", text("mem://host/dir/sub/two.txt"), NULL, NULL), 1));
  print_texts("matching", run(op("MatchingFiles", text("mem://host/dir/*/t*.txt"), NULL, NULL), 1));
  run(op("ReadFile", text("mem://host/nothing"), NULL, NULL), 1);
  print_error("read nothing");
  /* A table of the file that environment() wrote. */
  TFE_Op* make = op("HashTableV2", NULL, NULL, NULL);
  TFE_OpSetAttrType(make, "key_dtype", TF_STRING);
  TFE_OpSetAttrType(make, "value_dtype", TF_FLOAT);
  TFE_TensorHandle* table = run(make, 1);
  check("table");
  TFE_Op* fill = op("InitializeTableFromTextFileV2", table, text("mem://host/dir/one.txt"), NULL);
  TFE_OpSetAttrInt(fill, "key_index", 0);
  TFE_OpSetAttrInt(fill, "value_index", 1);
  TFE_OpSetAttrString(fill, "delimiter", " ", 1);
  run(fill, 0);
  check("fill");
  print_number("table of b", run(op("LookupTableFindV2", table, text("b"), number(0)), 1));
}

static void checkpoints(void) {
  const char* name = "x";
  const char* spec = "";
  const char* prefix = "mem://host/checkpoints/model";
  for (int i = 1; i < 3; i++) {
    TFE_Op* save = op("SaveV2", text(prefix), texts(&name, 1), texts(&spec, 1));
    TFE_TensorHandle* value = number((float)i * 1.5f);
    TFE_OpAddInputList(save, &value, 1, status);
    run(save, 0);
    check("save");
  }
  TFE_Op* restore = op("RestoreV2", text(prefix), texts(&name, 1), texts(&spec, 1));
  TF_DataType type = TF_FLOAT;
  TFE_OpSetAttrTypeList(restore, "dtypes", &type, 1);
  print_number("restored", run(restore, 1));
  print_texts("files", run(op("MatchingFiles", text("mem://host/checkpoints/*"), NULL, NULL), 1));
  TF_CheckpointReader* reader = TF_NewCheckpointReader(prefix, status);
  check("reader");
  printf("reader has x: %d\n", TF_CheckpointReaderHasTensor(reader, "x"));
  TF_DeleteCheckpointReader(reader);
}

/* Copies a local file. */
static void copy(const char* folder, const char* name) {
  char from[1024], to[1024];
  snprintf(from, sizeof from, "%s/%s", folder, name);
  snprintf(to, sizeof to, "mem://host/model/%s", name);
  FILE* file = fopen(from, "rb");
  if (!file) exit(2);
  fseek(file, 0, SEEK_END);
  size_t size = (size_t)ftell(file);
  rewind(file);
  char* bytes = malloc(size);
  if (fread(bytes, 1, size, file) != size) exit(2);
  fclose(file);
  TF_WritableFileHandle* copied;
  TF_NewWritableFile(to, &copied, status);
  check(to);
  TF_AppendWritableFile(copied, bytes, size, status);
  TF_CloseWritableFile(copied, status);
  check(to);
  free(bytes);
}

static void saved_model(const char* model) {
  copy(model, "saved_model.pb");
  copy(model, "variables/variables.index");
  copy(model, "variables/variables.data-00000-of-00001");
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tag = "serve";
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, "mem://host/model", &tag, 1, graph, NULL, status);
  check("load");
  printf("a model was loaded\n");
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  TF_DeleteSessionOptions(options);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  status = TF_NewStatus();
  TF_CreateDir("mem://host/dir", status);
  print_error("no plugin");
  TF_RegisterFilesystemPlugin(argv[2], status);
  print_error("wrong plugin");
  TF_RegisterFilesystemPlugin("/nothing.so", status);
  printf("no library: %d\n", TF_GetCode(status));
  TF_RegisterFilesystemPlugin(argv[1], status);
  check("register");
  TF_RegisterFilesystemPlugin(argv[1], status);
  print_error("twice");
  TFE_ContextOptions* options = TFE_NewContextOptions();
  context = TFE_NewContext(options, status);
  check("context");
  TFE_DeleteContextOptions(options);
  environment();
  ops();
  checkpoints();
  saved_model(argv[3]);
  return 0;
}
